"""Greedy CTC decoding (Graves et al. 2006): the best label of every frame, with repeats merged and blanks dropped.

A token starts at the first frame of its run of equal labels and lasts as long as the run. (NeMo 3.0 gives CTC tokens the
span from the previous token's onset to their own, about one token early; this differs on purpose.) A token's
log-probability is the logarithm of the mean probability over its run.

The device computes each frame's label and probability; the host merges. `collapse` is the reference for one row, and
`collapse_rows` does a whole batch in numpy.

Shapes: B batch, T frames, V labels with blank, R runs of equal labels in all rows, N tokens of all rows.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from fastscribe.model.ctc import CtcHead, split_for_logits
from fastscribe.types import Float32Array, Frames, Hypothesis, Int32Array

_MIN_PROBABILITY = 1e-38  # its logarithm is finite


class CtcDecoder:
    """A Decoder (decoder.py)."""

    def __init__(self, head: CtcHead, blank_id: int) -> None:
        self.head = head
        self.blank_id = blank_id

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Return int32: [B] lengths, [B, T] labels, [B, T] the bits of their float32 probabilities."""
        found = [
            self.head(part_ND).softmax(-1, dtype=torch.float32).max(-1)
            for part_ND in split_for_logits(frames.frames_BTD, self.blank_id + 1)
        ]
        labels, bits = [part.indices.int() for part in found], [part.values.view(torch.int32) for part in found]
        return torch.cat([frames.lengths_B.int(), *labels, *bits])

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        batch = len(frames.lengths_B)
        labels_BT, probs_BT = packed[batch:].reshape(2, batch, -1)
        return collapse_rows(labels_BT, probs_BT.view(np.float32), packed[:batch], self.blank_id)

    def close(self) -> None:
        """Do nothing: `submit` keeps no memory."""


def decode(head: CtcHead, frames: Frames, blank_id: int) -> list[Hypothesis]:
    """Submit and read a batch: one Hypothesis per row."""
    decoder = CtcDecoder(head, blank_id)
    return decoder.read(decoder.submit(frames).cpu().numpy(), frames)


def collapse_rows(
    labels_BT: Int32Array, probs_BT: Float32Array, lengths_B: Int32Array, blank_id: int
) -> list[Hypothesis]:
    """Merge the labels of a batch.

    Args:
        labels_BT: best label of each frame.
        probs_BT: float32 probabilities of these labels.
        lengths_B: valid frames of each row.
        blank_id: the blank's label.

    Returns:
        One Hypothesis per row.
    """
    is_valid_BT = np.arange(labels_BT.shape[1]) < lengths_B[:, None]
    labels_BT = np.where(is_valid_BT, labels_BT, blank_id)
    is_start_BT = labels_BT != blank_id
    is_start_BT[:, 1:] &= labels_BT[:, 1:] != labels_BT[:, :-1]
    is_border_BT = is_start_BT.copy()
    is_border_BT[:, 0] = True
    is_border_BT[:, 1:] |= labels_BT[:, 1:] != labels_BT[:, :-1]
    borders_R = np.flatnonzero(is_border_BT)
    is_token_R = is_start_BT.ravel()[borders_R]
    lengths_N = np.diff(borders_R, append=labels_BT.size)[is_token_R]
    sums_R = np.add.reduceat(probs_BT.ravel().astype(np.float64), borders_R) if len(borders_R) else np.zeros(0)
    logprobs_N = np.log(np.maximum(sums_R[is_token_R] / lengths_N, _MIN_PROBABILITY))
    starts_N = borders_R[is_token_R]
    flat = (labels_BT.ravel()[starts_N], starts_N % labels_BT.shape[1], lengths_N, logprobs_N)
    ids, starts, lengths, logprobs = (values.tolist() for values in flat)
    ends = np.cumsum(is_start_BT.sum(1)).tolist()
    spans = [slice(first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]
    return [
        Hypothesis(tuple(ids[span]), tuple(starts[span]), tuple(lengths[span]), tuple(logprobs[span])) for span in spans
    ]


def collapse(labels: list[int], probs: list[float], blank_id: int) -> Hypothesis:
    """Merge the labels of one row; `labels` and `probs` hold the best label of each frame and its probability."""
    ids: list[int] = []
    starts: list[int] = []
    sums: list[float] = []
    lengths: list[int] = []
    previous = blank_id
    for frame, (label, prob) in enumerate(zip(labels, probs, strict=True)):
        if label != blank_id:
            if label == previous:
                sums[-1] += prob
                lengths[-1] += 1
            else:
                ids.append(label)
                starts.append(frame)
                sums.append(prob)
                lengths.append(1)
        previous = label
    logprobs = tuple(
        math.log(max(total / length, _MIN_PROBABILITY)) for total, length in zip(sums, lengths, strict=True)
    )
    return Hypothesis(tuple(ids), tuple(starts), tuple(lengths), logprobs)
