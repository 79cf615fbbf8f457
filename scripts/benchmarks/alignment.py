"""Time CTC forced alignment on this machine: a batch of recordings and a CTC head of the size of canary-1b-v2's aligner.

    python -m scripts.benchmarks.alignment [--batch 16] [--seconds 30] [--device cpu]

Prints the median of five batches after a warm-up, with and without the head, as one JSON line. It does not include the
encoder, which takes most of an aligner's time: `fastscribe bench` measures encoders.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from fastscribe.alignment.forced_alignment import LogProbs, align
from fastscribe.families.blocks.ctc import CtcHead

WIDTH, LABELS, FRAME_S, TOKENS_PER_S = 1024, 16385, 0.08, 3.5


def median_ms(logprobs: LogProbs, lengths: list[int], texts: list[list[int]], device: torch.device) -> float:
    found = []
    for _ in range(6):
        start = time.perf_counter()
        align(logprobs, lengths, texts, LABELS - 1, device)
        found.append(1000 * (time.perf_counter() - start))
    return round(statistics.median(found[1:]), 1)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    num_frames, num_tokens = int(arguments.seconds / FRAME_S), int(arguments.seconds * TOKENS_PER_S)
    lengths = [num_frames] * arguments.batch
    texts = torch.randint(LABELS - 1, (arguments.batch, num_tokens)).tolist()
    head = CtcHead(WIDTH, LABELS).to(device, dtype)
    frames_BTD = torch.randn(arguments.batch, num_frames, WIDTH, device=device, dtype=dtype)

    def with_head(first: int, stop: int) -> torch.Tensor:
        logits_BTV: torch.Tensor = head(frames_BTD[:, first:stop])
        return logits_BTV.log_softmax(-1, dtype=torch.float32)

    flat_B1V = torch.randn(arguments.batch, 1, LABELS, device=device).log_softmax(-1)

    def without_head(first: int, stop: int) -> torch.Tensor:
        return flat_B1V.expand(-1, stop - first, -1)

    measured = {
        "rows": arguments.batch,
        "seconds_a_row": arguments.seconds,
        "tokens_a_row": num_tokens,
        "device": arguments.device,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "head_and_viterbi_ms": median_ms(with_head, lengths, texts, device),
        "viterbi_ms": median_ms(without_head, lengths, texts, device),
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
