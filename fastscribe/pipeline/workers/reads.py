"""A batch that helpers read into shared memory. It stays there until its last result has come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import is_held
from fastscribe.pipeline.batch_layout import BatchLayout, ReadRow
from fastscribe.pipeline.prefetch import Group
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.workers.arena import Arena
from fastscribe.pipeline.workers.helpers import HelperPool, Job
from fastscribe.types import Failure, Int64Array, Utterance

ROWS_A_JOB = 32  # a sixteenth of a second of reading short FLAC files


class ReadBatch(Group):
    """The rows of a batch, which helpers read; threads of this process read those whose data it holds.

    Args:
        number: Its number in the run.
        plan: Its utterances.
        layout: Their arrays.
        place: Where these begin in the arena.
        arena: The shared memory.
        helpers: They read.
        homes: By the index of a remote recording, the helper that has its bytes.
    """

    def __init__(
        self,
        number: int,
        plan: Sequence[Utterance],
        layout: BatchLayout,
        place: int,
        arena: Arena,
        helpers: HelperPool,
        homes: dict[int, int],
    ) -> None:
        super().__init__(len(plan))
        self.number, self.utterances, self.layout, self.place = number, list(plan), layout, place
        self.rows: dict[int, ReadRow] = {}  # that are read
        self._failures: dict[int, Failure] = {}  # of helpers
        self.being_written: set[int] = set()  # rows that threads of this process read now
        self.num_undone = len(plan)  # rows without a result
        self.may_be_slow = False
        self.all_started = True
        self._arena, self._helpers, self._homes = arena, helpers, homes

    def call(self, index: int) -> None:
        self.being_written.add(index)
        if self.is_dropped:  # the run has ended, and may have seen no row being written
            self.being_written.discard(index)
            return
        arrays = self.layout.placed(self._arena.view(self.place, self.layout.num_bytes))
        try:
            self._is_read(index, arrays.read(index, self.utterances[index]))
        finally:
            self.being_written.discard(index)

    def _is_read(self, index: int, row: ReadRow) -> None:
        self.rows[index] = row
        self.utterances[index] = row.noted(self.utterances[index])

    def start(self, pool: ReplacingThreadPool, finished: Callable[[int], None]) -> None:
        """Start to read all rows. Neighbours go to one helper."""
        here: list[int] = []
        by_home: defaultdict[int | None, list[int]] = defaultdict(list)
        for row, utterance in enumerate(self.utterances):
            file = utterance.audio.file
            if isinstance(file, str):
                by_home[None].append(row)
            elif is_held(file):
                here.append(row)
            else:
                by_home[self._homes.get(utterance.audio.index, -1)].append(row)
        for home, rows in by_home.items():
            for begin in range(0, len(rows), ROWS_A_JOB):
                self._submit(rows[begin : begin + ROWS_A_JOB], home, finished)
        self.may_be_slow = bool(here)
        for row in here:
            pool.submit(partial(self.attempt, row, finished))

    def failure(self, row: int) -> Failure:
        """Return the Failure of a row that could not be read."""
        failure, audio = self._failures.get(row), self.utterances[row].audio
        if failure is None:
            return to_failure(audio, "load", self.errors[row])
        return failure if audio.given_key is None else replace(failure, given_key=audio.given_key)

    def lengths(self, rows: Sequence[int]) -> Int64Array:
        """Return the lengths [B] of some rows in samples at the model's rate."""
        return np.array([self.rows[row].length for row in rows], np.int64)

    def _submit(self, rows: Sequence[int], home: int | None, finished: Callable[[int], None]) -> None:
        def done(position: int, result: Any, helper: int) -> None:
            row = rows[position]
            if isinstance(result, ReadRow):
                self._is_read(row, result)
            elif isinstance(result, Failure):
                self._failures[row] = result
            else:
                self.errors[row] = result
            finished(row)

        items = [(row, portable(self.utterances[row])) for row in rows]
        prefers = home if home is not None and home >= 0 else None
        shared, is_remote = (self.place, self.layout), home is not None
        self._helpers.submit(Job("read", shared, items, done, self.expect_late, is_remote, prefers))


def portable(utterance: Utterance) -> Utterance:
    """Return an utterance without its caller's key, which may be any object."""
    audio = utterance.audio
    return utterance if audio.given_key is None else replace(utterance, audio=replace(audio, given_key=None))
