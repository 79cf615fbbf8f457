"""Plans of epochs: every example once, all ranks in step, no batch above its size, little padding."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastscribe.training.buckets import (
    Bucket,
    assign,
    draw_speeds,
    fitting_buckets,
    make_buckets,
    naive_batches,
    padding_share,
    plan_epoch,
    rows_of,
)

examples = st.lists(st.tuples(st.floats(0.1, 40), st.integers(0, 200)), min_size=1, max_size=150)
counts = st.integers(1, 8)


def speech(num_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Durations of a corpus of sentences, about seven tokens a second."""
    draw = random.Random(0)
    durations = np.array([min(20, 0.5 + draw.lognormvariate(1.1, 0.6)) for _ in range(num_examples)])
    return durations, np.array([max(1, round(d * draw.uniform(4, 10))) for d in durations])


@given(examples, counts, counts)
def test_assign(rows, num_durations, num_tokens) -> None:
    durations, tokens = zip(*rows, strict=True)
    buckets = make_buckets(durations, tokens, num_durations, num_tokens)
    assert len(buckets) <= num_durations * num_tokens
    assert list(buckets) == sorted(set(buckets))
    for (duration, count), place in zip(rows, assign(durations, tokens, buckets), strict=True):
        fitting = [i for i, (most_s, most) in enumerate(buckets) if duration <= most_s and count <= most]
        assert fitting[0] == place


def test_equal_shares() -> None:
    durations, tokens = speech(20_000)
    chosen = assign(durations, tokens, make_buckets(durations, tokens, 8, 1))
    shares = np.bincount(chosen, durations) / durations.sum()
    assert np.allclose(shares, 1 / 8, atol=0.002)
    cells = durations * (tokens + 1)
    buckets = make_buckets(durations, tokens, 4, 3)
    chosen = assign(durations, tokens, buckets)
    for end in {bucket.max_duration_s for bucket in buckets}:
        inside = [i for i, bucket in enumerate(buckets) if bucket.max_duration_s == end]
        shares = np.array([cells[chosen == i].sum() for i in inside])
        assert len(inside) == 3 and np.allclose(shares / shares.sum(), 1 / 3, atol=0.05)


def test_no_bucket() -> None:
    with pytest.raises(ValueError, match=r"no bucket holds 2\.5 s with 7 tokens"):
        assign([1.0, 2.5], [3, 7], [Bucket(2.0, 10), Bucket(3.0, 6)])


@given(examples, st.floats(1, 200), st.integers(2, 5))
def test_plan_of_several_ranks(rows, budget, world_size) -> None:
    """Except for buckets that are too small for all ranks, which are merged."""
    durations, tokens = (np.array(column) for column in zip(*rows, strict=True))
    buckets = make_buckets(durations, tokens, 5, 2)
    sizes = rows_of(buckets, budget)
    plans = plans_of(durations, tokens, buckets, sizes, world_size)
    chosen = assign(durations, tokens, buckets)
    assert len({len(plan) for plan in plans}) == 1 and bool(plans[0]) == (len(rows) >= world_size)
    for step in zip(*plans, strict=True):
        places = {place for batch in step for place in chosen[batch]}
        assert len(places) == 1 or min(np.bincount(chosen)[list(places)]) < world_size
        rows_of_ranks = [len(batch) for batch in step]
        assert min(rows_of_ranks) >= 1 and max(rows_of_ranks) <= min(rows_of_ranks) + 1
        for batch in step:
            assert len(batch) == 1 or len(batch) * durations[batch].max() <= budget * (1 + 1e-6)
    seen = [i for plan in plans for batch in plan for i in batch]
    assert len(seen) == len(set(seen))
    left_out = np.bincount(chosen) - np.bincount(chosen[np.array(seen, int)], minlength=chosen.max() + 1)
    assert max(left_out) < world_size or len(rows) < world_size


def plans_of(durations, tokens, buckets, sizes, world_size) -> list[list[np.ndarray]]:
    return [
        plan_epoch(durations, tokens, buckets, sizes, epoch=0, seed=1, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]


@given(examples, st.integers(1, 5))
def test_small_buckets_merged(rows, world_size) -> None:
    """With room for all, examples are dropped only if there are fewer than ranks."""
    durations, tokens = zip(*rows, strict=True)
    buckets = make_buckets(durations, tokens, 8, 2)
    plans = plans_of(durations, tokens, buckets, [1000] * len(buckets), world_size)
    seen = sorted(i for plan in plans for batch in plan for i in batch)
    assert seen == (list(range(len(rows))) if len(rows) >= world_size else [])


def test_plan_depends_on_arguments() -> None:
    durations, tokens = speech(500)
    buckets = make_buckets(durations, tokens, 4, 1)
    sizes = rows_of(buckets, 60)

    def plan(epoch: int, seed: int) -> list[list[int]]:
        return [b.tolist() for b in plan_epoch(durations, tokens, buckets, sizes, epoch=epoch, seed=seed)]

    assert plan(3, 1) == plan(3, 1)
    assert plan(3, 1) != plan(4, 1) and plan(3, 1) != plan(3, 2)
    assert not {frozenset(b) for b in plan(3, 1)} & {frozenset(b) for b in plan(4, 1)}  # and batches have other members


def test_remainder_is_spread() -> None:
    plan = plan_epoch([1.0] * 101, [3] * 101, [Bucket(1.0, 3)], [10], epoch=0, seed=0)
    assert sorted(map(len, plan)) == [9] * 9 + [10] * 2


def test_padding_is_low() -> None:
    durations, tokens = speech(6000)
    plain = make_buckets(durations, tokens, 16, 1)
    plan = plan_epoch(durations, tokens, plain, rows_of(plain, 120), epoch=0, seed=0)
    naive = padding_share(naive_batches(6000, 6000 / len(plan), 0), durations, tokens)
    assert padding_share(plan, durations, tokens).frames < 0.04 < 0.5 < naive.frames
    two = make_buckets(durations, tokens, 16, 4)
    finer = plan_epoch(durations, tokens, two, rows_of(two, 120), epoch=0, seed=0)
    wasted = [padding_share(batches, durations, tokens).lattice for batches in (finer, plan)]
    assert wasted[0] < 0.6 * wasted[1] < wasted[1] < naive.lattice


def test_padding_share() -> None:
    share = padding_share([np.array([0, 1]), np.array([2])], [4.0, 2.0, 1.0], [3, 1, 9])
    assert share.frames == pytest.approx(1 - 7 / 9)
    assert share.lattice == pytest.approx(1 - (4 * 4 + 2 * 2 + 10) / (2 * 4 * 4 + 10))


@given(st.integers(1, 300), st.floats(0.5, 50))
def test_naive_batches(num_examples, mean_size) -> None:
    batches = naive_batches(num_examples, mean_size, 0)
    assert sorted(i for batch in batches for i in batch) == list(range(num_examples))
    assert all(len(batch) for batch in batches) or mean_size < 1


def test_rows_of() -> None:
    assert rows_of([Bucket(0.1, 1), Bucket(40, 1), Bucket(200, 1)], 120) == (1200, 3, 1)


def test_draw_speeds() -> None:
    drawn = draw_speeds(3000, (0.9, 1.0, 1.1), epoch=0, seed=0)
    assert set(drawn) == {0.9, 1.0, 1.1} and min(np.unique(drawn, return_counts=True)[1]) > 900
    assert (drawn == draw_speeds(3000, (0.9, 1.0, 1.1), epoch=0, seed=0)).all()
    assert (drawn != draw_speeds(3000, (0.9, 1.0, 1.1), epoch=1, seed=0)).any()


# --- small corpora -----------------------------------------------------------------------------------------------------

SPEEDS = np.array([0.9, 1.0, 1.1])


def packed(played_s: np.ndarray, budget_s: float) -> int:
    """A lower bound for the number of batches: longest first, each batch as long as its first row."""
    num_batches = rows_left = 0
    for duration in sorted(played_s, reverse=True):
        if not rows_left:
            num_batches, rows_left = num_batches + 1, max(1, int(budget_s / duration))
        rows_left -= 1
    return num_batches


@given(
    st.integers(1, 1500),
    st.sampled_from([(0.4, 0.5, 8.0), (1.1, 0.6, 20.0), (1.8, 0.7, 30.0), (2.3, 0.4, 17.0)]),
    st.sampled_from([120, 300, 1000]),
    st.integers(0, 99),
)
@example(386, (1.1, 0.6, 20.0), 300, 0)  # 12 batches instead of the 7 that would do
@settings(max_examples=60, deadline=None)
def test_number_of_batches(num_examples, kind, budget, seed) -> None:
    mean, spread, most = kind
    draw = np.random.default_rng(seed)
    durations = np.minimum(most, 0.5 + draw.lognormal(mean, spread, num_examples))
    tokens = np.maximum(1, (durations * draw.uniform(4, 10, num_examples)).astype(int))
    played, all_tokens = (durations / SPEEDS[:, None]).ravel(), np.tile(tokens, 3)
    buckets = fitting_buckets(played, all_tokens, budget, times=3)
    speeds = draw_speeds(num_examples, SPEEDS, 0, seed)
    plan = plan_epoch(durations / speeds, tokens, buckets, rows_of(buckets, budget), epoch=0, seed=seed)
    assert sorted(np.concatenate(plan).tolist()) == list(range(num_examples))
    assert all(len(batch) * (durations / speeds)[batch].max() <= budget + 1e-6 for batch in plan)
    assert len(plan) <= 1.5 * packed(durations / speeds, budget) + 2


@given(examples, st.integers(1, 6), st.integers(1, 3), st.sampled_from([None, 1.0, 60.0, 1e6]))
def test_fewer_buckets(rows, num_durations, num_tokens, budget) -> None:
    durations, tokens = zip(*rows, strict=True)
    buckets = fitting_buckets(durations, tokens, budget, num_durations, num_tokens)
    assert len(buckets) <= num_durations * num_tokens and list(buckets) == sorted(buckets)
    assert (assign(durations, tokens, buckets) >= 0).all()
    if budget == 1e6:
        assert len(buckets) == 1


def test_large_corpus() -> None:
    durations, tokens = speech(20_000)
    for budget in (120, None):
        assert fitting_buckets(durations, tokens, budget, 16, 2) == make_buckets(durations, tokens, 16, 2)


def test_buckets_without_budget() -> None:
    durations, tokens = speech(1000)
    for times, world_size, expected in ((1, 1, 7), (3, 1, 2), (1, 2, 3), (3, 3, 1)):
        assert len(fitting_buckets(durations, tokens, None, times=times, world_size=world_size)) == expected
