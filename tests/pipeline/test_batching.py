from __future__ import annotations

import math
import random
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline.batching import Budget, in_turn, padded_within, plan

lengths = st.lists(st.integers(1, 500), max_size=200)
bends = st.one_of(st.just(math.inf), st.floats(1, 1000))
rows = st.one_of(st.just(math.inf), st.integers(1, 50))
budgets = st.builds(
    Budget,
    st.one_of(st.just(math.inf), st.floats(1, 3000)),
    bends,
    max_rows=rows,
)


@given(lengths, budgets)
def test_batches_hold_each_utterance_once_within_budget(frames, budget) -> None:
    items = list(enumerate(frames))
    batches = list(plan(items, lambda item: item[1], budget))
    flat = [item for batch in batches for item in batch]
    assert sorted(flat) == items
    assert flat == sorted(items, key=lambda item: -item[1])  # stable: equal lengths keep their order
    for batch in batches:
        assert batch
        assert len(batch) <= budget.max_rows
        assert len(batch) == 1 or budget.cost(len(batch), batch[0][1]) <= budget.frames


@given(lengths, st.integers(1, 50))
def test_rows_alone_fill_every_batch(frames, most) -> None:
    sizes = [len(batch) for batch in plan(frames, lambda n: n, Budget(math.inf, max_rows=most))]
    assert all(size == most for size in sizes[:-1])


@given(lengths, st.integers(1, 1000))
def test_parts_end_with_the_item_that_fills_them(frames, least) -> None:
    parts = list(in_turn(frames, lambda n: n if n > 20 else 0, least))
    assert [n for part in parts for n in part] == frames
    works = [[n if n > 20 else 0 for n in part] for part in parts]
    assert all(sum(work) >= least > sum(work[:-1]) for work in works[:-1])
    assert all(sum(work[:-1]) < least for work in works)


def test_padding_is_a_few_per_cent() -> None:
    """Lengths of a benchmark (mean near 8 s, 12.5 frames a second), and a few recordings of all lengths."""
    draw = random.Random(0)
    many = [max(8, int(12.5 * draw.lognormvariate(1.8, 0.7))) for _ in range(4000)]
    few = [6, 13, 16, 25, 25, 33, 40, 44, 47, 50, 52, 58, 62, 66, 70, 71, 80, 97, 300]
    for frames, most in ((many, 0.03), (few, 0.25)):
        batches = list(plan(frames, lambda n: n, Budget(1600)))
        padded = sum(len(batch) * batch[0] for batch in batches)
        assert 1 - sum(frames) / padded < most


def test_batches_are_fuller_where_padding_costs_little() -> None:
    frames = [63, 60, 55, 50, 48, 44, 40, 36, 33, 30, 28, 25, 20, 15, 12]
    sizes = [
        [len(batch) for batch in plan(frames, lambda n: n, Budget(700, max_padding=share))]
        for share in (0.05, 0.3, 1.0)
    ]
    assert [len(one) for one in sizes] == sorted((len(one) for one in sizes), reverse=True)
    assert len(sizes[1]) < len(sizes[0])
    for batch in plan(frames, lambda n: n, Budget(700, max_padding=0.3)):
        is_filled = len(batch) * batch[0] > 0.25 * 700 + batch[0]
        assert not is_filled or sum(batch) >= 0.7 * len(batch) * batch[0]


def test_quadratic_cost_counts_for_long_rows() -> None:
    budget = Budget(1000, quadratic_at_frames=100)
    assert budget.cost(2, 100) == 2 * 100 * 2
    assert [len(batch) for batch in plan([100] * 10, lambda n: n, budget)] == [5, 5]
    assert [len(batch) for batch in plan([10] * 90, lambda n: n, budget)] == [90]


def test_shrunk_budget_applies_to_the_next_batch() -> None:
    budget = Budget(1000)
    batches = plan([100] * 30, lambda n: n, budget)
    assert len(next(batches)) == 10
    budget.shrink(10, 100)
    assert len(next(batches)) == 7
    budget.shrink(20, 100)  # a larger one that failed later teaches nothing new
    assert budget.frames == 700
    budget.shrink(1, 1)
    assert [len(batch) for batch in batches] == [1] * 13


@given(lengths, st.integers(1, 2000))
def test_padded_groups_hold_each_item_once_within_their_limit(frames, most) -> None:
    groups = list(padded_within(frames, float, most))
    assert [item for group in groups for item in group] == sorted(frames, reverse=True)
    assert all(len(group) == 1 or len(group) * group[0] <= most for group in groups)
    assert all((len(group) + 1) * group[0] > most for group in groups[:-1])  # the next one would not fit


@given(st.lists(budgets, min_size=1, max_size=4), st.integers(1, 50), st.integers(1, 500))
def test_the_smallest_of_several_budgets_allows_what_all_allow(several, rows, longest) -> None:
    smallest = Budget.smallest(several)
    assert smallest.frames <= min(one.frames for one in several)
    assert smallest.cost(rows, longest) >= max(one.cost(rows, longest) for one in several)
    assert Budget.smallest([Budget(5, 7, 9, 0.3, 8), Budget(6, 8, 8, 0.4, 16)]) == Budget(5, 7, 9, 0.3, 8)


@pytest.mark.parametrize("name", [field.name for field in fields(Budget)])
def test_several_budgets_are_joined_in_every_field(name: str) -> None:
    several = [replace(Budget(5), **{name: value}) for value in (3.0, 4.0)]
    assert getattr(Budget.smallest(several), name) in (3.0, 4.0), f"Budget.smallest() leaves out {name}"
