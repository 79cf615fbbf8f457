"""HypothesisColumns equal the list of hypotheses that they stand for, through slices, selections and pickles."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.text.hypothesis_columns import HypothesisColumns, problems_of
from fastscribe.types import Hypothesis

INTS = st.integers(0, 2**31 - 1)
TOKENS = st.lists(st.tuples(INTS, INTS, INTS, st.floats(-100, 0, width=32)), max_size=4)
ROWS = st.lists(st.one_of(TOKENS, st.sampled_from(["it does not stop", "not finite"])), max_size=8)


def columns_of(rows: list) -> HypothesisColumns:
    tokens = [token for row in rows if not isinstance(row, str) for token in row]
    ids, frames, durations, logprobs = zip(*tokens, strict=True) if tokens else ((), (), (), ())
    return HypothesisColumns(
        np.array([0 if isinstance(row, str) else len(row) for row in rows], np.int32),
        np.array(ids, np.int32),
        np.array(frames, np.int32),
        np.array(durations, np.int32),
        np.array(logprobs, np.float32),
        {number: row for number, row in enumerate(rows) if isinstance(row, str)},
    )


def hypothesis_of(row) -> Hypothesis:
    return Hypothesis(problem=row) if isinstance(row, str) else Hypothesis(*zip(*row, strict=True))


def assert_same(found: HypothesisColumns, rows: list) -> None:
    """Compare values and types, row by row and as a whole."""
    expected = [hypothesis_of(row) for row in rows]
    assert isinstance(found, HypothesisColumns)
    assert len(found) == len(expected)
    assert repr(list(found)) == repr([found[row] for row in range(len(found))]) == repr(expected)
    assert found == expected and expected == found and found == tuple(expected)
    assert found.problems == problems_of(found) == problems_of(expected)
    assert [array.dtype for array in (found.counts_B, found.ids_N, found.frames_N, found.durations_N)] == [np.int32] * 4
    assert found.logprobs_N.dtype == np.float32
    assert found.counts_B.sum() == len(found.ids_N) == len(found.logprobs_N)


def few(*strategies: st.SearchStrategy):
    """Rows of every kind come in few examples."""
    return lambda test: settings(max_examples=30)(given(*strategies)(test))


@few(ROWS)
def test_rows_equal_a_list_of_hypotheses(rows: list) -> None:
    found = columns_of(rows)
    assert_same(found, rows)
    assert all(found[row - len(rows)] == found[np.int64(row)] for row in range(len(rows)))
    for index in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            found[index]


@few(ROWS, st.integers(-9, 9) | st.none(), st.integers(-9, 9) | st.none())
def test_slices_are_views(rows: list, start: int | None, stop: int | None) -> None:
    columns = columns_of(rows)
    found = columns[start:stop]
    assert_same(found, rows[start:stop])
    if len(found.ids_N):
        assert np.shares_memory(found.ids_N, columns.ids_N) and np.shares_memory(found.logprobs_N, columns.logprobs_N)
    assert_same(found[1:], rows[start:stop][1:])
    assert_same(columns[::-1], rows[::-1])


@few(ROWS, st.data())
def test_take(rows: list, data: st.DataObject) -> None:
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    assert_same(columns_of(rows).take(picked), [rows[row] for row in picked])
    for row in (-1, len(rows)):
        with pytest.raises(IndexError):
            columns_of(rows).take([*picked, row])


@few(st.lists(ROWS, max_size=4))
def test_concat(parts: list[list]) -> None:
    assert_same(HypothesisColumns.concat([columns_of(rows) for rows in parts]), [row for rows in parts for row in rows])


@few(ROWS, st.data())
def test_with_problem(rows: list, data: st.DataObject) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    found = columns_of(rows).with_problem(np.array(flags, np.bool_), "late")
    assert_same(found, ["late" if flag else row for row, flag in zip(rows, flags, strict=True)])


@few(ROWS, st.data())
def test_rows_that_are_not_finite(rows: list, data: st.DataObject) -> None:
    expected = []
    for number, row in enumerate(rows):
        is_damaged = not isinstance(row, str) and len(row) > 0 and data.draw(st.booleans())
        if is_damaged:
            damage = data.draw(st.sampled_from([float("nan"), float("inf"), float("-inf")]))
            place = data.draw(st.integers(0, len(row) - 1))
            rows[number] = [(*token[:3], damage if at == place else token[3]) for at, token in enumerate(row)]
        expected.append(not is_damaged)
    assert columns_of(rows).are_finite.tolist() == expected


@few(ROWS, st.integers(0, 8), st.integers(0, 8))
def test_pickles(rows: list, start: int, stop: int) -> None:
    columns = columns_of(rows)
    list(columns), columns[:1]  # what is cached is no part of the pickle
    for protocol in (2, 5):
        assert_same(pickle.loads(pickle.dumps(columns, protocol)), rows)
        assert_same(pickle.loads(pickle.dumps(columns[start:stop], protocol)), rows[start:stop])


def test_size_of_pickles() -> None:
    num_rows, num_tokens = 1000, 50
    columns = columns_of([[(7, 8, 1, -0.5)] * num_tokens] * num_rows)
    assert len(pickle.dumps(columns, 5)) < 1000 + num_rows * (4 + num_tokens * 16)
    assert len(pickle.dumps(columns[10:20], 5)) < 1000 + 10 * (4 + num_tokens * 16)
    assert len(pickle.dumps(columns[10:20], 5)) - len(pickle.dumps(columns[10:11], 5)) < 9 * (8 + num_tokens * 16)


def test_other_values_are_not_equal() -> None:
    rows = [[(1, 2, 3, -0.5)], []]
    columns = columns_of(rows)
    assert columns != columns_of(rows[:1]) and columns != columns_of([[(1, 2, 3, -0.25)], []]) and columns != 3
    assert columns != columns_of(["damaged", []]) and columns != [None, None]


def test_loops_make_no_row_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop converts each column as a whole; problems are known without any row."""
    columns = columns_of([[(1, 2, 3, -0.5)] * 3, "damaged", []])
    monkeypatch.setattr(HypothesisColumns, "__getitem__", None)
    assert len(list(columns)) == 3
    monkeypatch.setattr(HypothesisColumns, "__iter__", None)
    assert problems_of(columns) == {1: "damaged"}
