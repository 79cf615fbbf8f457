"""Processor time of decoding with tokens that are left out (`--language`), beside the same decoding without.

    python -m scripts.benchmarks.languages --json docs/bench/languages/cpu.json

The decoders have the shape of parakeet-tdt-0.6b-v3 (8,192 tokens) and random weights that are tuned to 3 to 4 labels a second;
frames are noise that changes as slowly as speech (decoding_speed.py). 28 % of the tokens are left out, as for English with the
published vocabulary, and none of them is in the greedy texts. Both ways take turns; numbers are medians of the rounds. The
last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch

from fastscribe.context.vocabulary_mask import VocabularyMask
from fastscribe.decode.batched_beam import BeamDecoder
from fastscribe.decode.ctc import CtcDecoder
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.label_looping import LabelLooping, Network
from fastscribe.families.blocks.ctc import CtcHead
from fastscribe.families.blocks.packed import pack_linears_
from fastscribe.types import Frames
from scripts.benchmarks import decoding_speed
from scripts.benchmarks.gap_recovery import publish
from scripts.shapes import SHAPES

SHAPE = "parakeet-tdt-0.6b-v3"
BATCH_ROWS, ROW_S = 16, 8.0
EXCLUDED_SHARE = 0.28
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def decoders(dtype: torch.dtype) -> dict[str, Decoder]:
    config, device = SHAPES[SHAPE], torch.device("cpu")
    transducer = decoding_speed.random_transducer(config, device, dtype)
    torch.manual_seed(0)
    head = CtcHead(config.encoder.d_model, config.blank_id + 1).to(dtype).requires_grad_(False)
    with torch.inference_mode():
        for module in (transducer, head):
            pack_linears_(module, dtype)  # as in a run
    network = Network.prepare(transducer)
    return {
        "greedy": LabelLooping(network),
        "beam 4": BeamDecoder(network, 4),
        "ctc": CtcDecoder(head, config.blank_id),
    }


def excluded_of(decoder: Decoder, frames: Frames, num_labels: int) -> torch.Tensor:
    """Return a table with a row of tokens that are left out; none of them is in the texts."""
    used = {token for one in decoding_speed.decode(decoder, frames) for token in one.token_ids}
    order = np.random.default_rng(0).permutation(num_labels)
    unused = [int(token) for token in order if int(token) not in used][: round(EXCLUDED_SHARE * num_labels)]
    table_LV = torch.zeros(2, num_labels, dtype=torch.bool)
    table_LV[1, unused] = True
    return table_LV


def seconds(decoder: Decoder, frames: Frames) -> float:
    start = process_time()
    decoding_speed.decode(decoder, frames)
    return process_time() - start


def measure(rounds: int) -> list[dict[str, Any]]:
    config, rows = SHAPES[SHAPE], []
    lengths = [config.num_frames(length_s) for length_s in np.linspace(ROW_S, 0.9 * ROW_S, BATCH_ROWS)]
    for name, dtype in DTYPES.items():
        plain = decoding_speed.random_frames(lengths, config.encoder.d_model, torch.device("cpu"), 2, dtype)
        for kind, decoder in decoders(dtype).items():
            table_LV = excluded_of(decoder, plain, config.blank_id)
            masked = replace(plain, mask=VocabularyMask(table_LV, np.ones(BATCH_ROWS, np.int64)))
            same = decoding_speed.decode(decoder, masked) == decoding_speed.decode(decoder, plain)
            times = [(seconds(decoder, plain), seconds(decoder, masked)) for _ in range(rounds)]
            without, with_mask = (median(column) for column in zip(*times, strict=True))
            rows.append(
                {
                    "decoder": kind,
                    "dtype": name,
                    "rows": BATCH_ROWS,
                    "audio_s": round(sum(np.linspace(ROW_S, 0.9 * ROW_S, BATCH_ROWS)), 1),
                    "tokens_left_out": int(table_LV[1].sum()),
                    "rounds": rounds,
                    "processor_ms_without": round(1000 * without, 1),
                    "processor_ms_with": round(1000 * with_mask, 1),
                    "ratio": round(median(b / a for a, b in times), 3),
                    "equal_texts": same,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="store the document here")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    arguments.model = f"{SHAPE} (random weights)"
    publish(
        "languages",
        "medians of the processor time of a decoded batch, without and with tokens left out by turns; ratio: of the rounds",
        arguments,
        measure(arguments.rounds),
    )


if __name__ == "__main__":
    main()
