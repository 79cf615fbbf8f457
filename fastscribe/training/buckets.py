"""Which examples make a batch: buckets of like length, how many rows a batch of each takes, and the plan of an epoch. Pure.

Buckets are two-dimensional as in "Training and inference efficiency of encoder-decoder speech models" (arXiv 2503.05931):
by duration, each stretch holding the same amount of audio, and within that by number of tokens, so that neither the
encoder's frames nor the transducer's lattice (frames x tokens) is padded much.

A plan depends on its arguments alone. All ranks of a data-parallel run make the same one and take their own part; at
every step they draw from the same bucket, so that none waits for another's longer batch. To go on from step k after a
restart, make the plan again and leave out its first k batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fastscribe.types import Float64Array, Int64Array

Indices: TypeAlias = Int64Array  # of examples, [rows]
Numbers: TypeAlias = "Sequence[float] | Int64Array | Float64Array"
_POOLED_STEPS = 4  # drawn and sorted together
_MANY_STEPS = 4  # to a bucket, of which the last may be part empty
_NEARLY_FEWEST = 1.1  # of the steps that an epoch needs
_ROWS_TO_A_BUCKET = 128  # where only the device knows how many make a batch


class Bucket(NamedTuple):
    """Holds what is neither longer nor has more tokens, and fits into no bucket before it."""

    max_duration_s: float
    max_tokens: int


@dataclass(frozen=True)
class MemoryModel:
    """What one row of a batch takes of `budget`, in any unit: bytes, or seconds of audio with the defaults.

    per_second covers the encoder, per_second_squared full attention, per_second_token the transducer's lattice.
    """

    budget: float
    per_second: float = 1.0
    per_second_squared: float = 0.0
    per_second_token: float = 0.0

    def row(self, bucket: Bucket) -> float:
        duration_s, tokens = bucket
        seconds = self.per_second + self.per_second_squared * duration_s + self.per_second_token * (tokens + 1)
        return duration_s * seconds

    def batch_sizes(self, buckets: Sequence[Bucket]) -> tuple[int, ...]:
        """The most rows of each bucket that stay within the budget; at least one."""
        return tuple(max(1, math.floor(self.budget / self.row(bucket) + 1e-9)) for bucket in buckets)


def make_buckets(
    durations_s: Numbers, tokens: Numbers, num_durations: int = 16, num_tokens: int = 2
) -> tuple[Bucket, ...]:
    """Stretches of duration with equal shares of the audio, each cut in `num_tokens` with equal shares of its lattice.

    In the order in which an example looks for its place. Fewer where values coincide. The last of each stretch takes
    its largest number of tokens, so every example given here has a bucket.
    """
    durations = np.asarray(durations_s, float)
    lattice = durations * (np.asarray(tokens) + 1)
    ends = _cuts(durations, durations, num_durations)
    stretch = np.searchsorted(ends, durations)
    buckets = []
    for place, end in enumerate(ends):
        inside = np.flatnonzero(stretch == place)
        for most in _cuts(np.asarray(tokens)[inside], lattice[inside], num_tokens):
            buckets.append(Bucket(float(end), int(most)))
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
    """As make_buckets, but of a small corpus fewer: a bucket that cannot fill its batches makes more of them, not better.

    Of the numbers up to those given, the fewest buckets with which an epoch takes hardly more steps than need be.
    `budget_s` is the audio of a batch, padding included; None where it is not known, and examples are counted then. Each
    example is given `times` times, once at every speed, and comes once in an epoch.
    """
    if budget_s is None:
        most = max(1, len(durations_s) // (times * _ROWS_TO_A_BUCKET * world_size))
        num_durations = min(num_durations, most)
        return make_buckets(durations_s, tokens, num_durations, min(num_tokens, max(1, most // num_durations)))
    needed = float(np.sum(durations_s)) / (times * world_size * budget_s)
    if needed >= _MANY_STEPS * num_durations * num_tokens:
        return make_buckets(durations_s, tokens, num_durations, num_tokens)
    tried = [
        make_buckets(durations_s, tokens, some_durations, some_tokens)
        for some_durations in _fewer(num_durations)
        for some_tokens in {1, num_tokens}
    ]
    steps = [_num_steps(durations_s, tokens, buckets, budget_s, times, world_size) for buckets in tried]
    few = [buckets for buckets, count in zip(tried, steps, strict=True) if count <= _NEARLY_FEWEST * min(steps)]
    return min(few, key=lambda buckets: (len(buckets), buckets))


def _fewer(most: int) -> list[int]:
    """From `most` to 1, each about three quarters of the one before."""
    return [most, *_fewer(most * 3 // 4)] if most > 1 else [1]


def _num_steps(
    durations_s: Numbers, tokens: Numbers, buckets: Sequence[Bucket], budget_s: float, times: int, world_size: int
) -> int:
    """Of an epoch, about: how many examples a bucket has depends on the speeds that are drawn."""
    counts = np.bincount(assign(durations_s, tokens, buckets), minlength=len(buckets))
    sizes = np.array(MemoryModel(budget_s).batch_sizes(buckets))
    return int(np.ceil(counts / (times * world_size * sizes)).sum())


def _cuts(values: Float64Array, weights: Float64Array, parts: int) -> Float64Array:
    """Upper ends of stretches of `values` that share `weights` equally, ascending, the largest value last."""
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order])
    places = np.searchsorted(shares, shares[-1] * np.arange(1, parts + 1) / parts)
    return np.unique(values[order][np.minimum(places, len(values) - 1)])


def assign(durations_s: Numbers, tokens: Numbers, buckets: Sequence[Bucket]) -> Int64Array:
    """Each example's bucket: the first that holds it. Raises ValueError where none does."""
    bounds = np.array(buckets, float)
    durations, counts = np.asarray(durations_s, float), np.asarray(tokens)
    chosen = np.full(len(durations), -1)
    for place, (most_s, most_tokens) in enumerate(bounds):
        chosen[(chosen < 0) & (durations <= most_s) & (counts <= most_tokens)] = place
    if (chosen < 0).any():
        first = int(np.flatnonzero(chosen < 0)[0])
        raise ValueError(f"no bucket holds {durations[first]:g} s with {counts[first]} tokens")
    return chosen


def draw_speeds(num_examples: int, speeds: Sequence[float], epoch: int, seed: int) -> Float64Array:
    """The speed at which each example is played in this epoch.

    Drawn before the plan, so that an epoch is planned over the durations that result (duration / speed): drawn inside
    the batches, speeds from 0.9 to 1.1 would pad each by a further tenth.
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
    """This rank's batches of the epoch in order, none empty or beyond its bucket's batch size, each example at most once.

    A bucket's examples are spread evenly over as few steps as its batch size allows, so no batch is a mere remainder.
    One rank sees every example. Of several, all have the same number of steps, and batches that differ by at most a row;
    a bucket that cannot give each a row (fewer than `world_size` examples) is merged with the next, and what its batch
    size leaves over (fewer than `world_size` again) is left out, others each epoch. Empty with fewer examples than ranks.
    """
    random = _random(seed, epoch, 0)
    chosen = assign(durations_s, tokens, buckets)
    steps: list[Indices] = []
    durations = np.asarray(durations_s, float)
    for places, batch_size in _merged(np.bincount(chosen, minlength=len(buckets)), buckets, batch_sizes, world_size):
        examples = random.permutation(np.flatnonzero(np.isin(chosen, places)))
        steps += _steps(examples, durations, batch_size, world_size)
    return [steps[step][rank::world_size] for step in random.permutation(len(steps))]


def _merged(
    counts: Int64Array, buckets: Sequence[Bucket], batch_sizes: Sequence[int], world_size: int
) -> list[tuple[list[int], int]]:
    """Buckets that are planned as one, at least `world_size` examples each, and the batch size that all of them allow.

    Durations ascend, so that of those merged the last is the longest; where another has more tokens, there are fewer
    rows in proportion.
    """
    groups: list[list[int]] = []
    waiting: list[int] = []
    for place in np.flatnonzero(counts).tolist():
        waiting.append(place)
        if counts[waiting].sum() >= world_size:
            groups.append(waiting)
            waiting = []
    if waiting and groups:
        groups[-1] += waiting
    return [(group, _common_size(group, buckets, batch_sizes)) for group in groups]


def _common_size(group: list[int], buckets: Sequence[Bucket], batch_sizes: Sequence[int]) -> int:
    most_tokens = max(buckets[place].max_tokens for place in group)
    last = group[-1]
    return max(1, batch_sizes[last] * (buckets[last].max_tokens + 1) // (most_tokens + 1))


def _steps(examples: Indices, durations_s: Float64Array, batch_size: int, world_size: int) -> list[Indices]:
    """A bucket's examples, which come in random order, for one step of all ranks each, longest first.

    Drawn by the pool of several steps and sorted there: steps are of like length within the bucket too, while who
    meets whom changes with every epoch.
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
    """Steps of the same sizes, with the pool's longest examples in the first."""
    examples = np.concatenate(pool)
    examples = examples[np.argsort(-durations_s[examples], kind="stable")]
    return np.split(examples, np.cumsum([len(step) for step in pool])[:-1])


def _random(seed: int, epoch: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, purpose])))


@dataclass(frozen=True)
class PaddingShare:
    """Shares from 0 to 1 of what is computed for nothing."""

    frames: float  # of the encoder's frames
    lattice: float  # of the transducer's frames x tokens


def padding_share(batches: Sequence[Indices], durations_s: Numbers, tokens: Numbers) -> PaddingShare:
    """Of these batches, each padded to its longest row and its most tokens."""
    durations, labels = np.asarray(durations_s, float), np.asarray(tokens) + 1.0
    rows = [(durations[batch], labels[batch]) for batch in batches]
    real_s, real_cells = sum(d.sum() for d, _ in rows), sum((d * u).sum() for d, u in rows)
    padded_s = sum(len(d) * d.max() for d, _ in rows)
    padded_cells = sum(len(d) * d.max() * u.max() for d, u in rows)
    return PaddingShare(float(1 - real_s / padded_s), float(1 - real_cells / padded_cells))


def naive_batches(num_examples: int, mean_size: float, seed: int) -> list[Indices]:
    """Random batches without buckets, for comparison: as many as have that size on average."""
    order = _random(seed, 0, 2).permutation(num_examples)
    return list(np.array_split(order, max(1, round(num_examples / mean_size))))
