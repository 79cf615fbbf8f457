"""Plan batches: buckets of similar length, rows per batch of each, and the batches of an epoch. Pure.

Buckets are two-dimensional as in "Training and inference efficiency of encoder-decoder speech models" (arXiv 2503.05931):
by duration, each range with the same amount of audio, and within that by number of tokens. So neither the encoder's frames
nor the transducer's lattice (frames x tokens) is padded much.

A plan depends on its arguments alone. All ranks of a data-parallel run make the same one and take their own part. At
every step they draw from the same bucket, so that none waits for another's longer batch. To resume at step k, make the
plan again and drop its first k batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fastscribe.types import Float64Array, Int64Array

Indices: TypeAlias = Int64Array  # indices of examples, [rows]
Numbers: TypeAlias = "Sequence[float] | Int64Array | Float64Array"
_POOLED_STEPS = 4  # steps whose examples are sorted together
_MANY_STEPS = 4  # steps per bucket from which a partly filled last batch does not matter
_STEPS_TOLERANCE = 1.1  # x the fewest possible steps of an epoch
_ROWS_TO_A_BUCKET = 128  # if only the device's memory limits a batch


class Bucket(NamedTuple):
    """Upper bounds of a bucket. An example belongs to the first bucket whose bounds it meets."""

    max_duration_s: float
    max_tokens: int


def rows_of(buckets: Sequence[Bucket], batch_s: float) -> tuple[int, ...]:
    """Return the most rows of each bucket in a batch of so many seconds of audio with padding; at least 1."""
    return tuple(max(1, math.floor(batch_s / bucket.max_duration_s + 1e-9)) for bucket in buckets)


def make_buckets(
    durations_s: Numbers, tokens: Numbers, num_durations: int = 16, num_tokens: int = 2
) -> tuple[Bucket, ...]:
    """Split the corpus into ranges of duration with equal audio, each into `num_tokens` ranges with equal lattices.

    Returns:
        The buckets in the order in which assign() tries them; fewer if bounds coincide. The last of each duration range
        has its largest number of tokens, so every example has a bucket.
    """
    durations = np.asarray(durations_s, float)
    lattice = durations * (np.asarray(tokens) + 1)
    ends = _cuts(durations, durations, num_durations)
    range_index = np.searchsorted(ends, durations)
    buckets = []
    for index, end in enumerate(ends):
        inside = np.flatnonzero(range_index == index)
        for limit in _cuts(np.asarray(tokens)[inside], lattice[inside], num_tokens):
            buckets.append(Bucket(float(end), int(limit)))
    return tuple(buckets)


def fitting_buckets(
    durations_s: Numbers,
    tokens: Numbers,
    budget_s: float | None,
    num_durations: int = 16,
    num_tokens: int = 2,
    *,
    times: int = 1,
    world_size: int = 1,
) -> tuple[Bucket, ...]:
    """Make buckets as make_buckets does, but fewer for a small corpus, whose batches more buckets could not fill.

    It takes the smallest number of buckets, up to those given, with which an epoch needs hardly more steps than
    with the best.

    Args:
        durations_s, tokens: every example `times` times, once at every speed.
        budget_s: audio of a batch with padding; None if it is unknown, and the number of examples decides.
        times: how often each example is given; an epoch has it once.
    """
    if budget_s is None:
        limit = max(1, len(durations_s) // (times * _ROWS_TO_A_BUCKET * world_size))
        num_durations = min(num_durations, limit)
        return make_buckets(durations_s, tokens, num_durations, min(num_tokens, max(1, limit // num_durations)))
    needed = float(np.sum(durations_s)) / (times * world_size * budget_s)
    if needed >= _MANY_STEPS * num_durations * num_tokens:
        return make_buckets(durations_s, tokens, num_durations, num_tokens)
    tried = [
        make_buckets(durations_s, tokens, some_durations, some_tokens)
        for some_durations in _descending_counts(num_durations)
        for some_tokens in {1, num_tokens}
    ]
    steps = [_num_steps(durations_s, tokens, buckets, budget_s, times, world_size) for buckets in tried]
    few = [buckets for buckets, count in zip(tried, steps, strict=True) if count <= _STEPS_TOLERANCE * min(steps)]
    return min(few, key=lambda buckets: (len(buckets), buckets))


def covering(buckets: Sequence[Bucket], durations_s: Numbers, tokens: Numbers) -> tuple[Bucket, ...]:
    """Return the buckets with a last one that is large enough for these examples too."""
    fits = np.zeros(len(durations_s), bool)
    for max_duration_s, max_tokens in buckets:
        fits |= (np.asarray(durations_s) <= max_duration_s) & (np.asarray(tokens) <= max_tokens)
    if fits.all():
        return tuple(buckets)
    last = buckets[-1]
    longest_s, most = np.asarray(durations_s)[~fits].max(), np.asarray(tokens)[~fits].max()
    return (*buckets[:-1], Bucket(max(last.max_duration_s, float(longest_s)), max(last.max_tokens, int(most))))


def _descending_counts(limit: int) -> list[int]:
    """`limit` down to 1, each about three quarters of the one before."""
    return [limit, *_descending_counts(limit * 3 // 4)] if limit > 1 else [1]


def _num_steps(
    durations_s: Numbers, tokens: Numbers, buckets: Sequence[Bucket], budget_s: float, times: int, world_size: int
) -> int:
    """Approximate number of steps of an epoch; the exact number depends on the speeds that are drawn."""
    counts = np.bincount(assign(durations_s, tokens, buckets), minlength=len(buckets))
    sizes = np.array(rows_of(buckets, budget_s))
    return int(np.ceil(counts / (times * world_size * sizes)).sum())


def _cuts(values: Float64Array, weights: Float64Array, parts: int) -> Float64Array:
    """Upper ends of ranges of `values` with equal sums of `weights`, ascending; the largest value is last."""
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order])
    indices = np.searchsorted(shares, shares[-1] * np.arange(1, parts + 1) / parts)
    cuts: Float64Array = np.unique(values[order][np.minimum(indices, len(values) - 1)])
    return cuts


def assign(durations_s: Numbers, tokens: Numbers, buckets: Sequence[Bucket]) -> Int64Array:
    """Return the index of each example's bucket [examples]. Raises ValueError if an example fits in none."""
    bounds = np.array(buckets, float)
    durations, counts = np.asarray(durations_s, float), np.asarray(tokens)
    chosen = np.full(len(durations), -1)
    for index, (max_duration_s, max_tokens) in enumerate(bounds):
        chosen[(chosen < 0) & (durations <= max_duration_s) & (counts <= max_tokens)] = index
    if (chosen < 0).any():
        first = int(np.flatnonzero(chosen < 0)[0])
        raise ValueError(f"no bucket holds {durations[first]:g} s with {counts[first]} tokens")
    return chosen


def draw_speeds(num_examples: int, speeds: Sequence[float], epoch: int, seed: int) -> Float64Array:
    """Draw the playback speed of each example in this epoch: [examples].

    The plan needs the resulting durations (duration / speed), so speeds are drawn before it. Drawn within the batches,
    speeds from 0.9 to 1.1 would pad each batch by another tenth.
    """
    return _random(seed, epoch, 1).choice(np.asarray(speeds, float), num_examples)


def plan_epoch(
    durations_s: Numbers,
    tokens: Numbers,
    buckets: Sequence[Bucket],
    batch_sizes: Sequence[int],
    *,
    epoch: int,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
) -> list[Indices]:
    """Plan this rank's batches of an epoch.

    A bucket's examples are spread evenly over as few steps as its batch size allows, so no batch is a small remainder.

    Returns:
        Batches of indices in order, none empty or larger than its bucket's batch size, each example at most once. One
        rank sees every example. Several ranks have the same number of steps, and batches that differ by at most one row.
        A bucket with fewer examples than ranks is merged with the next. What its batch size leaves over (fewer than
        `world_size` examples) is dropped, a different part each epoch. Empty with fewer examples than ranks.
    """
    random = _random(seed, epoch, 0)
    chosen = assign(durations_s, tokens, buckets)
    steps: list[Indices] = []
    durations = np.asarray(durations_s, float)
    for indices, batch_size in _merged(np.bincount(chosen, minlength=len(buckets)), buckets, batch_sizes, world_size):
        examples = random.permutation(np.flatnonzero(np.isin(chosen, indices)))
        steps += _steps(examples, durations, batch_size, world_size)
    return [steps[step][rank::world_size] for step in random.permutation(len(steps))]


def _merged(
    counts: Int64Array, buckets: Sequence[Bucket], batch_sizes: Sequence[int], world_size: int
) -> list[tuple[list[int], int]]:
    """Merge buckets until each group has `world_size` examples; return the groups with their common batch size.

    Durations ascend, so the last of a group is the longest. If another has more tokens, the batch has fewer rows in
    proportion.
    """
    groups: list[list[int]] = []
    pending: list[int] = []
    for index in np.flatnonzero(counts).tolist():
        pending.append(index)
        if counts[pending].sum() >= world_size:
            groups.append(pending)
            pending = []
    if pending and groups:
        groups[-1] += pending
    return [(group, _common_size(group, buckets, batch_sizes)) for group in groups]


def _common_size(group: list[int], buckets: Sequence[Bucket], batch_sizes: Sequence[int]) -> int:
    max_tokens = max(buckets[index].max_tokens for index in group)
    last = group[-1]
    return max(1, batch_sizes[last] * (buckets[last].max_tokens + 1) // (max_tokens + 1))


def _steps(examples: Indices, durations_s: Float64Array, batch_size: int, world_size: int) -> list[Indices]:
    """Split a bucket's examples, given in random order, into steps of all ranks, longest first.

    The examples of several steps are pooled and sorted: the rows of a step are of similar length within the bucket too,
    and their combination changes with every epoch.
    """
    num_steps = math.ceil(len(examples) / (batch_size * world_size))
    if num_steps and len(examples) // num_steps < world_size:
        num_steps = len(examples) // world_size
        examples = examples[: num_steps * world_size]
    if num_steps == 0:
        return []
    steps = np.array_split(examples, num_steps)
    pool_size = max(1, min(_POOLED_STEPS, num_steps // 2))
    pools = [steps[first : first + pool_size] for first in range(0, num_steps, pool_size)]
    return [step for pool in pools for step in _sorted(pool, durations_s)]


def _sorted(pool: list[Indices], durations_s: Float64Array) -> list[Indices]:
    """Split the pool into steps of the same sizes again, the longest examples first."""
    examples = np.concatenate(pool)
    examples = examples[np.argsort(-durations_s[examples], kind="stable")]
    return np.split(examples, np.cumsum([len(step) for step in pool])[:-1])


def _random(seed: int, epoch: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, purpose])))


@dataclass(frozen=True)
class PaddingShare:
    """Shares from 0 to 1 of the computation that padding takes."""

    frames: float  # of the encoder's frames
    lattice: float  # of the transducer's frames x tokens


def padding_share(batches: Sequence[Indices], durations_s: Numbers, tokens: Numbers) -> PaddingShare:
    """Return the padding of batches that are padded to their longest row and their most tokens."""
    durations, labels = np.asarray(durations_s, float), np.asarray(tokens) + 1.0
    rows = [(durations[batch], labels[batch]) for batch in batches]
    real_s, real_cells = sum(d.sum() for d, _ in rows), sum((d * u).sum() for d, u in rows)
    padded_s = sum(len(d) * d.max() for d, _ in rows)
    padded_cells = sum(len(d) * d.max() * u.max() for d, u in rows)
    return PaddingShare(float(1 - real_s / padded_s), float(1 - real_cells / padded_cells))


def naive_batches(num_examples: int, mean_size: float, seed: int) -> list[Indices]:
    """Return random batches without buckets, about `mean_size` examples each, for comparison."""
    order = _random(seed, 0, 2).permutation(num_examples)
    return list(np.array_split(order, max(1, round(num_examples / mean_size))))
