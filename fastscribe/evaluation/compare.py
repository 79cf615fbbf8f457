"""Compare two runs over the same recordings: rates, the interval of their difference, and the recordings that changed. Pure.

The interval is a paired bootstrap over recordings (Bisani and Ney 2004): recordings are drawn with replacement, each with its
errors in both runs, and the percentiles of the difference of the rates are its bounds. A recording's errors hang together, so
recordings and not words are drawn. The matched-pairs test of NIST's sclite (Gillick and Cox 1989) draws segments between words
that both runs have right. It takes those for independent, which they are not in a recording that one run gets wholly wrong,
and it tests the difference without bounding it.

The percentiles exclude 0 too easily where few recordings differ: four that all got better are four heads in a row. So an exact
test guards the verdict. If the runs were equally good, each difference could as well have the other sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fastscribe._system.text_layout import count_of
from fastscribe.errors import UsageError
from fastscribe.evaluation.scores import Aligned, Pair, Score, score_pairs
from fastscribe.types import Float64Array, Int64Array

# With fewer recordings, 95 % intervals held the true difference in less than 92 % of draws (docs/log.md, 2026-11-23).
MIN_RECORDINGS = 20
RESAMPLES = 5_000
MAX_P = 0.05
_SEED = 20_261_123
_EXACT_RECORDINGS = 14  # up to which all signs are tried
_DRAWS = 1 << 22  # in memory at once
_MAX_NAMED = 3


class Interval(NamedTuple):
    """Bounds of 95 % of the differences of the word error rates, as shares."""

    low: float
    high: float


class Change(NamedTuple):
    """A recording with different word errors in the two runs."""

    result: Aligned
    baseline: Aligned

    @property
    def more_errors(self) -> int:
        return self.result.words.errors - self.baseline.words.errors


@dataclass
class Comparison:
    """Scores of both runs over the recordings that both have.

    `better` and `worse` are of the result, by the change of errors. `same_errors` have other words but equally many errors.
    """

    result: Score = field(default_factory=Score)
    baseline: Score = field(default_factory=Score)
    interval: Interval | None = None  # None: fewer than MIN_RECORDINGS, or no reference words
    sign_flip_p: float = 1.0
    better: list[Change] = field(default_factory=list)
    worse: list[Change] = field(default_factory=list)
    same_errors: int = 0
    same_words: int = 0

    @property
    def is_real(self) -> bool:
        """True: chance alone would hardly make this difference, by the interval and by the signs."""
        is_outside = self.interval is not None and not self.interval.low <= 0 <= self.interval.high
        return is_outside and self.sign_flip_p < MAX_P

    @property
    def difference(self) -> float | None:
        """Word error rate of the result less the baseline's."""
        result, baseline = self.result.words.rate, self.baseline.words.rate
        return None if result is None or baseline is None else result - baseline


class Matched(NamedTuple):
    """Pairs of the same recordings in the two runs, and the recordings that only one has."""

    result: list[Pair]
    baseline: list[Pair]
    only_result: list[Pair]
    only_baseline: list[Pair]
    num_skipped: int  # recordings left out because one of the runs failed on them


def match(result: Iterable[Pair], baseline: Iterable[Pair], count_failed: bool) -> Matched:
    """Pair the recordings by file, offset, track and channel; by the duration too where a run has several of these.

    Two runs may know another duration of the same recording: one has it from a manifest, the other from the file. One may lack
    its id, but two ids are two recordings.

    Args:
        result: one run.
        baseline: the run to compare with.
        count_failed: True: all words of a failed recording count as deleted; False: it is left out of both runs.

    Raises:
        UsageError: a recording has different references, and is not left out.
    """
    results, others = list(result), list(baseline)
    both = list(_same_recordings(results, others))
    kept = [pair for pair in both if count_failed or not any(one.hypothesis is None for one in pair)]
    different = [pair for pair, other in kept if pair.reference != other.reference]
    if different:
        names = ", ".join(pair.name for pair in different[:_MAX_NAMED]) + (" .." if different[_MAX_NAMED:] else "")
        raise UsageError(f"the runs have different references for {count_of(len(different), 'recording')}: {names}")
    in_both = {one.key for one, _ in both}, {other.key for _, other in both}
    return Matched(
        [one for one, _ in kept],
        [other for _, other in kept],
        [pair for pair in results if pair.key not in in_both[0]],
        [pair for pair in others if pair.key not in in_both[1]],
        len(both) - len(kept),
    )


def _same_recordings(results: list[Pair], others: list[Pair]) -> Iterator[tuple[Pair, Pair]]:
    named, others_named = ({(pair.key.start, pair.key.id) for pair in run if pair.key.id} for run in (results, others))
    named_in_both = named & others_named
    groups: dict[tuple[object, ...], tuple[list[Pair], list[Pair]]] = {}
    for side, pairs in enumerate((results, others)):
        for pair in pairs:
            key = pair.key.start, pair.key.id
            groups.setdefault(key if key in named_in_both else key[:1], ([], []))[side].append(pair)
    for ours, theirs in groups.values():
        are_single = len(ours) == len(theirs) == 1
        for pair in ours:
            fitting = (other for other in theirs if are_single or other.key.lasts_as(pair.key))
            same = next((other for other in fitting if not other.key.has_other_id(pair.key)), None)
            if same:
                theirs.remove(same)
                yield pair, same


def compare(matched: Matched) -> Comparison:
    """Score both runs over the recordings that both have."""
    found = Comparison()
    more_errors, num_words = [], []
    for result, baseline in zip(score_pairs(matched.result), score_pairs(matched.baseline), strict=True):
        found.result.add(result)
        found.baseline.add(baseline)
        more_errors.append(result.words.errors - baseline.words.errors)
        num_words.append(result.words.units)
        if result.pair.hypothesis == baseline.pair.hypothesis:
            found.same_words += 1
        elif not more_errors[-1]:
            found.same_errors += 1
        else:
            changes = found.worse if more_errors[-1] > 0 else found.better
            changes.append(Change(result.aligned(), baseline.aligned()))
    for changes in (found.better, found.worse):
        changes.sort(key=lambda change: -abs(change.more_errors))
    found.interval = bootstrap_interval(more_errors, num_words)
    found.sign_flip_p = sign_flip_p(more_errors)
    return found


def compare_groups(matched: Matched, num_group_fields: int) -> list[dict[str | None, Comparison]]:
    """Return for each group field the comparison of each value's recordings, by the values of the result's rows."""
    fields = []
    for number in range(num_group_fields):
        groups: dict[str | None, tuple[list[Pair], list[Pair]]] = {}
        for pair, other in zip(matched.result, matched.baseline, strict=True):
            ours, theirs = groups.setdefault(pair.groups[number], ([], []))
            ours.append(pair)
            theirs.append(other)
        fields.append({value: compare(Matched(*pairs, [], [], 0)) for value, pairs in groups.items()})
    return fields


def bootstrap_interval(more_errors: Sequence[int], num_words: Sequence[int]) -> Interval | None:
    """Return the interval of a difference of word error rates; None if there are too few recordings or no words.

    Recordings with the same two numbers are interchangeable, so how often each pair of numbers is drawn is drawn at once, from
    the multinomial distribution that drawing recording by recording has too. The time depends on the number of pairs.

    Args:
        more_errors: for each recording, its errors in one run less those in the other.
        num_words: for each recording, the words of its reference.
    """
    if len(more_errors) < MIN_RECORDINGS or not any(num_words):
        return None
    pairs, first, counts = np.unique(np.array([more_errors, num_words]), axis=1, return_index=True, return_counts=True)
    order = np.argsort(first)  # the same if the runs change sides, so that the interval is then mirrored
    rates = np.concatenate(list(_resampled_rates(pairs[0, order], pairs[1, order], counts[order])))
    low, high = np.nanpercentile(rates, (2.5, 97.5))
    return Interval(float(low), float(high))


def sign_flip_p(more_errors: Sequence[int]) -> float:
    """Return the share of choices of signs whose sum of errors is at least as far from 0 as the true one (Fisher 1935).

    It is exact for few recordings, else of RESAMPLES drawn choices and the true one. With fewer than 6 recordings that differ
    it is at least 2 / 2^5 = 0.06, whatever their errors.

    Args:
        more_errors: for each recording, its errors in one run less those in the other.
    """
    sizes = np.array([size for size in more_errors if size], np.int64)
    sums = np.concatenate(list(_sums_with_other_signs(sizes)))
    return float(np.mean(np.abs(sums) >= abs(sizes.sum())))


def _sums_with_other_signs(sizes: Int64Array) -> Iterator[Int64Array]:
    count = len(sizes)
    if count <= _EXACT_RECORDINGS:
        is_negative = np.arange(1 << count)[:, None] >> np.arange(count) & 1
        yield (1 - 2 * is_negative) @ sizes
        return
    yield sizes.sum(keepdims=True)
    rng, at_once = np.random.default_rng(_SEED), max(1, _DRAWS // count)
    for first in range(0, RESAMPLES, at_once):
        signs = 1 - 2 * rng.integers(2, size=(min(at_once, RESAMPLES - first), count), dtype=np.int8)
        yield signs @ sizes


def _resampled_rates(more_errors: Int64Array, num_words: Int64Array, counts: Int64Array) -> Iterator[Float64Array]:
    rng, num_recordings = np.random.default_rng(_SEED), int(counts.sum())
    at_once = max(1, _DRAWS // len(counts))
    for first in range(0, RESAMPLES, at_once):
        drawn = rng.multinomial(num_recordings, counts / num_recordings, size=min(at_once, RESAMPLES - first))
        words = drawn @ num_words
        yield np.where(words > 0, (drawn @ more_errors) / np.maximum(words, 1), np.nan)
