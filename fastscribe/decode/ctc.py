"""Greedy CTC decoding (Graves et al. 2006): the best label of every frame, repeats merged, blanks dropped.

A token's frames are its own run: it starts at the run's first frame and lasts as long as the run. (NeMo 3.0 gives CTC
tokens the span from the previous token's onset to their own, about one token early; this differs on purpose.) A token's
log-probability is that of the mean probability over its run.

Shapes: B batch, T frames, V labels with blank.
"""

from __future__ import annotations

import math

import torch

from fastscribe.model.ctc import CtcHead
from fastscribe.types import Frames, Hypothesis


@torch.inference_mode()
def decode(head: CtcHead, frames: Frames, blank_id: int) -> list[Hypothesis]:
    """Frames -> one Hypothesis a row."""
    probs_BTV = head(frames.frames_BTD).float().softmax(-1)
    best_BT, labels_BT = probs_BTV.max(-1)
    rows = zip(labels_BT.tolist(), best_BT.tolist(), frames.lengths_B.tolist(), strict=True)
    return [collapse(labels[:length], probs[:length], blank_id) for labels, probs, length in rows]


def collapse(labels: list[int], probs: list[float], blank_id: int) -> Hypothesis:
    """One row's best label and its probability per frame -> Hypothesis."""
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
    logprobs = tuple(math.log(max(total / length, 1e-38)) for total, length in zip(sums, lengths, strict=True))
    return Hypothesis(tuple(ids), tuple(starts), tuple(lengths), logprobs)
