"""What blocks of frames save and cost in joint_transducer_loss.

    python -m scripts.benchmarks.loss_blocks FILE.json [--frames N]

One utterance of 40 s, or of N frames, with a large vocabulary, TDT, bf16, on a CPU: peak (growth of the process's resident
memory, Linux) and processor time of forward and backward, with the logits of a whole utterance and with blocks of several
sizes, in turns. Then the whole batch by the formula, on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch

from fastscribe._system.malloc_tuning import disable_malloc_trim
from fastscribe.bench.document import document
from fastscribe.bench.memory import peak_bytes, release, reset_peak, resident_bytes
from fastscribe.training.loss import TransducerLossConfig
from scripts.benchmarks.loss_cases import HEADLINE, Case, joint_call, warm_up
from scripts.benchmarks.loss_memory import LossShape, loss_memory

LARGE = replace(HEADLINE, num_tokens=8193)
_CPU = torch.device("cpu")
_TURNS = 3


def measure(shape: LossShape, blocks: list[int | None]) -> list[dict[str, Any]]:
    """Return a row for each of these values of max_nodes; None is the default."""
    warm_up(_CPU, [Case("joint", "fastscribe", "numba", "bf16", shape)])
    rows: list[dict[str, Any]] = [{"max_nodes": most, "process_s_runs": []} for most in blocks]
    labels_BU = torch.randint(1, shape.num_tokens, (shape.batch_size, shape.num_labels))
    frames_B, labels_B = (torch.full((shape.batch_size,), n) for n in (shape.num_frames, shape.num_labels))
    config = TransducerLossConfig(durations=tuple(range(shape.num_durations)))
    for _ in range(_TURNS):
        for row in rows:
            release(_CPU)
            before = resident_bytes(_CPU) or 0
            call = joint_call(shape, torch.bfloat16, _CPU, (labels_BU, frames_B, labels_B), config, row["max_nodes"])
            reset_peak(_CPU)
            start = process_time()
            call()
            row["process_s_runs"].append(round(process_time() - start, 2))
            row["peak_bytes"] = (peak_bytes(_CPU) or 0) - before
            row["formula_bytes"] = sum(loss_memory(shape, "cpu", row["max_nodes"]).values())
            del call
    return [row | {"process_s": median(row["process_s_runs"])} for row in rows]


def main(target: Path, frames: int) -> None:
    disable_malloc_trim()
    small = replace(LARGE, batch_size=1, num_frames=frames)
    found: dict[str, Any] = {
        "statistic": "process_s: median processor time of forward and backward; bytes: peak with inputs and gradients",
        "dtype": "bf16",
        "shape": asdict(small),
        "rows": measure(small, [small.nodes, None, small.nodes // 2, small.nodes // 8]),
        "headlines_on_a_gpu": [
            {"num_tokens": shape.num_tokens, "bytes_by_part": parts, "bytes": sum(parts.values())}
            for shape in (HEADLINE, LARGE)
            for parts in [loss_memory(shape)]
        ],
    }
    result = document(
        "loss_blocks", _CPU, found, ["max_nodes"], sys.argv[1:], program="python -m scripts.benchmarks.loss_blocks"
    )
    target.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="file for the result")
    parser.add_argument("--frames", type=int, default=LARGE.num_frames, help="of the utterance")
    main(**vars(parser.parse_args()))
