"""Draw the examples of each epoch: every manifest as often as it repeats, or as its share of the audio asks. Pure.

A fraction of a manifest is taken from an endless sequence of its examples, shuffled anew each time round: an epoch goes on
where the one before stopped. So all examples come equally often, and an epoch's draw depends on its number alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.training.corpus import Examples, ManifestPart
from fastscribe.types import AnyArray, Float64Array, Int64Array

_PURPOSE = 3  # of the random numbers; buckets.py has others


def epoch_repeats(parts: Sequence[ManifestPart], durations_s: Sequence[float]) -> list[float]:
    """Return how often an epoch has each manifest. Those without a share make up the rest of its audio.

    Args:
        durations_s: seconds of audio of each manifest.

    Raises:
        UsageError: the shares leave nothing for the rest, or a manifest with one has no audio.
    """
    total = sum(part.share or 0.0 for part in parts)
    rest_s = sum(part.repeat * seconds for part, seconds in zip(parts, durations_s, strict=True) if part.share is None)
    if total and (total >= 1 or not rest_s):
        raise UsageError("data.train: the shares have to leave some of an epoch to manifests without a share")
    repeats = []
    for part, seconds in zip(parts, durations_s, strict=True):
        if part.share is not None and not seconds:
            raise UsageError(f"{part.path}: share {part.share:g}: it has no usable example")
        repeats.append(part.repeat if part.share is None else part.share / (1 - total) * rest_s / seconds)
    return repeats


class EpochDraw:
    """Draws from `examples`. Raises UsageError as `epoch_repeats` does."""

    def __init__(self, examples: Examples, seed: int) -> None:
        self._part_of, self._durations_s, self._seed = examples.part_of, examples.durations_s, seed
        sums = np.bincount(self._part_of, weights=self._durations_s, minlength=len(examples.parts))
        self._repeats = epoch_repeats(examples.parts, sums.tolist())

    def __call__(self, epoch: int) -> Int64Array:
        """Return the indices of an epoch's examples in ascending order; one that repeats comes several times."""
        counts = np.array([math.floor(repeat) for repeat in self._repeats], np.int64)[self._part_of]
        for part, repeat in enumerate(self._repeats):
            if repeat % 1:
                indices = np.flatnonzero(self._part_of == part)
                for drawn in self._fraction(indices, repeat % 1, part, epoch):
                    counts[drawn] += 1
        return np.repeat(np.arange(len(counts)), counts)

    def _fraction(self, indices: AnyArray, fraction: float, part: int, epoch: int) -> list[AnyArray]:
        """Return the span of this epoch in the endless sequence, in one or two rounds."""
        begin, end = epoch * fraction, (epoch + 1) * fraction
        spans = []
        for number in range(math.floor(begin), math.ceil(end)):
            order = np.random.default_rng([self._seed, number, _PURPOSE, part]).permutation(indices)
            starts = number + _shares_before(self._durations_s[order])
            spans.append(order[(starts >= begin) & (starts < end)])
        return spans


def _shares_before(durations_s: Float64Array) -> Float64Array:
    """Return the share of the audio that comes before each recording, from 0 to below 1."""
    ends = np.cumsum(durations_s)
    shares: Float64Array = np.concatenate([[0.0], ends[:-1]]) / max(ends[-1], 1e-9) if len(ends) else ends
    return shares
