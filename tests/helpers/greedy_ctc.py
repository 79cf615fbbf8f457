"""The definition of greedy CTC decoding, one row and one frame at a time: decode/ctc.py is tested against it."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from fastscribe.decode.ctc import MIN_PROBABILITY
from fastscribe.types import Hypothesis
from tests.helpers.phrase_lists import PhraseLists


def boosted_labels(
    logprobs_TV: torch.Tensor, phrases: PhraseLists, blank_id: int, excluded: Collection[int]
) -> list[int]:
    """Return the label of each frame of one row, with phrases to boost and tokens that are left out."""
    labels: list[int] = []
    states, last, last_score = phrases.start, blank_id, 0.0
    for logprobs_V in logprobs_TV:
        label = int(logprobs_V.argmax())
        if label != blank_id:
            scores = [last_score if other == last else phrases.score(states, other) for other in range(blank_id)]
            chosen_V = logprobs_V[:blank_id] + torch.tensor(scores)
            label = max(set(range(blank_id)).difference(excluded), key=lambda other: (chosen_V[other], -other))
            last_score = scores[label]
            states = phrases.after(states, label) if label != last else states
        last = label
        labels.append(label)
    return labels


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
        math.log(max(total / length, MIN_PROBABILITY)) for total, length in zip(sums, lengths, strict=True)
    )
    return Hypothesis(tuple(ids), tuple(starts), tuple(lengths), logprobs)
