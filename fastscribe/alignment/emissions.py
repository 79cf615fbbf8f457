"""A greedy CTC decoder that also returns the log-probabilities of every frame, for forced alignment.

They take 4 bytes a frame and label on their way to the host, so batches are limited (MAX_BATCH_BYTES).

Shapes: B batch, T frames, V labels with blank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fastscribe.decode.ctc import CtcDecoder
from fastscribe.families.blocks.ctc import CtcHead, split_for_logits
from fastscribe.types import Frames, Hypothesis, Int32Array

MAX_BATCH_BYTES = 128 << 20


class EmissionDecoder:
    """A Decoder (decoder.py) whose hypotheses have `emissions_TV`."""

    def __init__(self, head: CtcHead, blank_id: int) -> None:
        self._greedy = CtcDecoder(head, blank_id)

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Return int32: the greedy decoder's result, then the bits of [B, T, V] float32 log-probabilities."""
        parts = [
            torch.log_softmax(self._greedy.head(part_ND), -1, dtype=torch.float32)
            for part_ND in split_for_logits(frames.frames_BTD, self._greedy.blank_id + 1)
        ]
        best = [part_NV.max(-1) for part_NV in parts]
        labels, probs = [part.indices.int() for part in best], [part.values.exp() for part in best]
        bits = [values.view(torch.int32).flatten() for values in (*probs, *parts)]
        return torch.cat([frames.lengths_B.int(), *labels, *bits])

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        batch, longest = frames.frames_BTD.shape[:2]
        size = batch + 2 * batch * longest
        logprobs_BTV = packed[size:].view(np.float32).reshape(batch, longest, -1)
        return [
            replace(hypothesis, emissions_TV=logprobs_TV[:length])
            for hypothesis, logprobs_TV, length in zip(
                self._greedy.read(packed[:size], frames), logprobs_BTV, packed[:batch].tolist(), strict=True
            )
        ]

    def close(self) -> None:
        """Do nothing: `submit` keeps no memory."""


def max_batch_frames(num_labels: int) -> int:
    """Return the most frames of a batch whose log-probabilities keep within MAX_BATCH_BYTES."""
    return max(1, MAX_BATCH_BYTES // (4 * num_labels))
