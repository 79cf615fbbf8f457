"""Choose examples: the sentences to validate with, and what each epoch draws of the others. Pure.

An epoch has every manifest as often as it repeats, or as its share of the audio asks. A fraction of a manifest is taken from an
endless sequence of its examples, shuffled anew each time round: an epoch goes on where the one before stopped. So all examples
come equally often, and an epoch's draw depends on its number alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.training.corpus import Examples, ManifestPart
from fastscribe.types import AnyArray, Float64Array, Int64Array

_PURPOSE = 3  # of the random numbers; buckets.py has others


class Split(NamedTuple):
    training: Examples
    validation: Examples
    instead_of: int | None  # examples that the share gave, if these were too few or all; None: the share decided


def split_validation(examples: Examples, *, seed: int, share: float, min_count: int = 1) -> Split:
    """Split the examples so that no sentence is on both sides, whatever its speaker, case and punctuation.

    The side of a sentence depends on the sentence and the seed, so a corpus added later moves none.

    Args:
        share: share of the sentences to validate with, approximately.
        min_count: where the share gives fewer examples, or all, whole sentences are taken, as many examples as this or as the
            share says at most; if every sentence has more, the rarest one is taken.

    Raises:
        UsageError: there is one sentence only.
    """
    hashes = np.fromiter((_hash_fraction(sentence_key(text), seed) for text in examples.iter_texts()), float)
    distinct, sizes = np.unique(hashes, return_counts=True)
    if len(distinct) < 2:
        raise UsageError(
            f"{len(examples):,} recording{'s' * (len(examples) > 1)} of one sentence: too few to train on some and "
            "validate with others; give more, or others as data.validation"
        )
    is_chosen, instead_of = hashes < share, None
    if not min_count <= (by_share := int(is_chosen.sum())) < len(examples):
        most = min(max(min_count, round(share * len(examples))), len(examples) - 1)
        is_chosen, instead_of = np.isin(hashes, _whole_sentences(distinct, sizes, most)), by_share
    return Split(examples.take(~is_chosen), examples.take(is_chosen), instead_of)


def _whole_sentences(distinct: Float64Array, sizes: AnyArray, count: int) -> Float64Array:
    """Return sentences that have `count` examples in all at most, or the rarest one."""
    chosen = []
    for sentence, size in zip(distinct, sizes, strict=True):
        if size <= count:
            chosen.append(sentence)
            count -= size
    rarest: Float64Array = distinct[np.lexsort((distinct, sizes))[:1]]
    return np.array(chosen) if chosen else rarest


def sentence_key(text: str) -> str:
    """The letters and digits of a text, which identify its sentence."""
    return "".join(char for char in text.casefold() if char.isalnum())


def _hash_fraction(key: str, seed: int) -> float:
    """Hash the key of a sentence to [0, 1), the same in every run."""
    digest = hashlib.blake2b(key.encode(), digest_size=8, key=f"{seed}".encode()).digest()
    return int.from_bytes(digest, "big") / 2**64


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

    @property
    def has_fractions(self) -> bool:
        """True if epochs take different examples of a manifest."""
        return any(repeat % 1 for repeat in self._repeats)

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
