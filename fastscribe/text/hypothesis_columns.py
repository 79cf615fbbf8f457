"""A batch's hypotheses as a few arrays, which become objects of Python one row at a time.

A thread that launches GPU kernels has no time for thousands of small tuples, and a pickle of five arrays is much smaller and
faster than one of a thousand hypotheses. So the results of transducers stay in columns until a row is read. Columns hold
token ids, frames, durations and log-probabilities; decoders that return more than these make lists of Hypothesis.

Shapes: B rows, N tokens of all rows, row after row, K selected rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index as to_index
from typing import Any, TypeAlias, overload

import numpy as np

from fastscribe.types import BoolArray, Float32Array, Hypothesis, Int32Array, Int64Array

_Tokens: TypeAlias = "slice | BoolArray | Int64Array"  # places of tokens, or whether each is taken


@dataclass(frozen=True, eq=False)
class HypothesisColumns(Sequence[Hypothesis]):
    """A sequence of Hypothesis, one a row. It equals any sequence of equal hypotheses.

    Reading all rows in a loop is faster than indexing each: the loop converts each column once.

    Attributes:
        counts_B: Number of tokens of each row.
        ids_N: Hypothesis.token_ids of all rows.
        frames_N: Hypothesis.token_frames.
        durations_N: Hypothesis.token_durations.
        logprobs_N: Hypothesis.logprobs.
        problems: Hypothesis.problem of the rows that have one; such a row has no tokens.
    """

    counts_B: Int32Array
    ids_N: Int32Array
    frames_N: Int32Array
    durations_N: Int32Array
    logprobs_N: Float32Array
    problems: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def concat(cls, parts: Sequence[HypothesisColumns]) -> HypothesisColumns:
        """Return the rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            nothing = np.zeros(0, np.int32)
            return cls(nothing, nothing, nothing, nothing, np.zeros(0, np.float32))
        problems, num_rows = {}, 0
        for part in parts:
            problems.update({num_rows + row: problem for row, problem in part.problems.items()})
            num_rows += len(part)
        return cls(
            np.concatenate([part.counts_B for part in parts]),
            np.concatenate([part.ids_N for part in parts]),
            np.concatenate([part.frames_N for part in parts]),
            np.concatenate([part.durations_N for part in parts]),
            np.concatenate([part.logprobs_N for part in parts]),
            problems,
        )

    @property
    def _columns(self) -> tuple[Int32Array, Int32Array, Int32Array, Float32Array]:
        return self.ids_N, self.frames_N, self.durations_N, self.logprobs_N

    def _of_tokens(self, counts_B: Int32Array, tokens: _Tokens, problems: Mapping[int, str]) -> HypothesisColumns:
        """Return some of the tokens, in rows of their own."""
        ids_N, frames_N, durations_N, logprobs_N = self._columns
        return HypothesisColumns(
            counts_B, ids_N[tokens], frames_N[tokens], durations_N[tokens], logprobs_N[tokens], problems
        )

    @cached_property
    def _ends(self) -> Int64Array:
        """Position after each row's last token."""
        return np.cumsum(self.counts_B, dtype=np.int64)

    @property
    def are_finite(self) -> BoolArray:
        """True for rows whose log-probabilities are all finite, as they are in a row without tokens."""
        is_finite_B = np.ones(len(self), np.bool_)
        places = np.flatnonzero(~np.isfinite(self.logprobs_N))
        is_finite_B[np.searchsorted(self._ends, places, side="right")] = False
        return is_finite_B

    def with_problem(self, has_problem_B: BoolArray, problem: str) -> HypothesisColumns:
        """Return the rows with a problem, and without tokens, where `has_problem_B` is True.

        Args:
            has_problem_B: True for rows that get `problem` in place of tokens or of a former problem.
            problem: Hypothesis.problem of these rows.
        """
        rows = np.flatnonzero(has_problem_B).tolist()
        if not rows:
            return self
        is_kept_N = np.repeat(~has_problem_B, self.counts_B)
        counts_B = np.where(has_problem_B, np.int32(0), self.counts_B)
        problems = {**self.problems, **dict.fromkeys(rows, problem)}
        return self._of_tokens(counts_B, is_kept_N, problems)

    def take(self, rows: Sequence[int]) -> HypothesisColumns:
        """Return some rows in the given order: views of this memory if they are neighbours in order, else copies.

        Args:
            rows: Numbers of rows from 0; a row may occur more than once.

        Raises:
            IndexError: There is no such row.
        """
        if not rows:
            return self.concat(())
        if min(rows) < 0 or max(rows) >= len(self):
            raise IndexError(f"rows {min(rows)} to {max(rows)} of {len(self)}")
        problems = {}
        if self.problems:
            problems = {new: self.problems[row] for new, row in enumerate(rows) if row in self.problems}
        first = rows[0]
        tokens: _Tokens
        if list(rows) == list(range(first, first + len(rows))):
            counts_K = self.counts_B[first : first + len(rows)]
            tokens = slice(self._start(first), int(self._ends[first + len(rows) - 1]))
        else:
            rows_K = np.asarray(rows)
            counts_K = self.counts_B[rows_K]
            ends_K = np.cumsum(counts_K, dtype=np.int64)
            tokens = np.arange(ends_K[-1]) + np.repeat(self._ends[rows_K] - ends_K, counts_K)
        return self._of_tokens(counts_K, tokens, problems)

    def _start(self, row: int) -> int:
        return int(self._ends[row] - self.counts_B[row])

    def __len__(self) -> int:
        return len(self.counts_B)

    @overload
    def __getitem__(self, index: int) -> Hypothesis: ...
    @overload
    def __getitem__(self, index: slice) -> HypothesisColumns: ...
    def __getitem__(self, index: int | slice) -> Hypothesis | HypothesisColumns:
        """Return one row as a Hypothesis, or a slice as columns (see take)."""
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        row = to_index(index)
        row += len(self) if row < 0 else 0
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        if row in self.problems:
            return Hypothesis(problem=self.problems[row])
        span = slice(self._start(row), int(self._ends[row]))
        ids, frames, durations, logprobs = (tuple(column_N[span].tolist()) for column_N in self._columns)
        return Hypothesis(ids, frames, durations, logprobs)

    def __iter__(self) -> Iterator[Hypothesis]:
        ids, frames, durations, logprobs = (column_N.tolist() for column_N in self._columns)
        problems, end = self.problems, 0
        for row, count in enumerate(self.counts_B.tolist()):
            span = slice(end, end := end + count)
            if row in problems:
                yield Hypothesis(problem=problems[row])
            else:
                yield Hypothesis(tuple(ids[span]), tuple(frames[span]), tuple(durations[span]), tuple(logprobs[span]))

    def __eq__(self, other: object) -> bool:
        """Compare row by row, with lists and tuples too."""
        if not isinstance(other, (HypothesisColumns, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(one == its for one, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone: numpy copies what a view shows, not the array that it is a view of."""
        return HypothesisColumns, (self.counts_B, *self._columns, dict(self.problems))


def problems_of(hypotheses: Sequence[Hypothesis]) -> Mapping[int, str]:
    """Return Hypothesis.problem of the rows that have one. Columns know it without a look at their rows."""
    if isinstance(hypotheses, HypothesisColumns):
        return hypotheses.problems
    return {row: hypothesis.problem for row, hypothesis in enumerate(hypotheses) if hypothesis.problem}
