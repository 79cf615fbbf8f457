"""Calls that helpers make: to prepare inputs, and to read a batch. Threads make those whose data this process holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import is_held
from fastscribe.errors import DeviceFailed
from fastscribe.pipeline.batch_layout import BatchLayout, ReadRow
from fastscribe.pipeline.loader import RowGroup
from fastscribe.pipeline.prefetch import Group
from fastscribe.pipeline.preparation import Preparation, PreparedInput
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.window_buffer import PreparationGroup
from fastscribe.pipeline.workers.arena import Arena
from fastscribe.pipeline.workers.helpers import HelperPool, Job
from fastscribe.pipeline.workers.messages import Kind
from fastscribe.types import Failure, File, Source, Utterance

ITEMS_A_JOB = 32  # two milliseconds of reading headers, a sixteenth of a second of reading short FLAC files
_NO_HOME = -1


class HelperGroup(Group):
    """Calls that helpers make, neighbours together. A call for which no helper is left is made by a thread of this process.

    Attributes:
        helpers: They make the calls.
        kind: What they do.
        shared: What the calls have in common.
    """

    helpers: HelperPool
    kind: Kind
    shared: Any = None

    def recordings(self) -> Iterator[tuple[int, File | None, Any]]:
        """Yield of each call the recording's position in the run, its file, and what a helper gets; no file: none gets it."""
        raise NotImplementedError

    def take(self, index: int, result: Any) -> None:
        """Keep what a helper has made of a call, or the error of one that was given up."""
        raise NotImplementedError

    def start(self, pool: ReplacingThreadPool, finished: Callable[[int], None]) -> None:
        """Start all calls. Each helper keeps the bytes of its own remote recordings, which are shared out once."""
        here: list[int] = []
        items: defaultdict[int | None, dict[int, Any]] = defaultdict(dict)  # by the helper that has the bytes
        for index, (recording, file, item) in enumerate(self.recordings()):
            if isinstance(file, str):
                items[None][index] = item
            elif file is None or is_held(file):
                here.append(index)
            else:
                items[self.helpers.homes.get(recording, _NO_HOME)][index] = item
        self.all_started, self.may_be_slow = True, bool(here)
        for home, given in items.items():
            size = -(-len(given) // self.helpers.number) if home == _NO_HOME else ITEMS_A_JOB
            numbers = list(given)
            for begin in range(0, len(numbers), size):
                self._submit({one: given[one] for one in numbers[begin : begin + size]}, home, pool, finished)
        for index in here:
            pool.submit(partial(self.attempt, index, finished))

    def _submit(
        self, items: dict[int, Any], home: int | None, pool: ReplacingThreadPool, finished: Callable[[int], None]
    ) -> None:
        def done(index: int, result: Any) -> None:
            if isinstance(result, DeviceFailed):  # no helper is left
                self.may_be_slow = True
                pool.submit(partial(self.attempt, index, finished))
                return
            self.take(index, result)
            finished(index)

        prefers = None if home == _NO_HOME else home
        job = Job(self.kind, self.shared, items, done, self.expect_late, is_remote=home is not None, prefers=prefers)
        self.helpers.submit(job)


class InputGroup(HelperGroup, PreparationGroup[Source | Failure, PreparedInput]):
    """Inputs that helpers prepare. See PreparationGroup.

    Args:
        preparation: What is done.
        helpers: They do it.
        sources: The inputs.
    """

    kind = "prepare"

    def __init__(self, preparation: Preparation, helpers: HelperPool, sources: Sequence[Source | Failure]) -> None:
        super().__init__(preparation.prepare, sources)
        self.helpers = helpers

    def recordings(self) -> Iterator[tuple[int, File | None, Any]]:
        return ((one.index, None if isinstance(one, Failure) else one.file, one) for one in self.sources)

    def take(self, index: int, result: Any) -> None:
        source = self.sources[index]
        assert isinstance(source, Source)
        self.items[index] = to_failure(source, "probe", result) if isinstance(result, BaseException) else result


class ReadBatch(HelperGroup, RowGroup):
    """The rows of a batch, which helpers read into shared memory. It stays there until its last result has come.

    Args:
        number: Its number in the run.
        plan: Its utterances.
        layout: Their arrays.
        place: Where these begin in the arena.
        arena: The shared memory.
        helpers: They read.
    """

    kind = "read"

    def __init__(
        self,
        number: int,
        plan: Sequence[Utterance],
        layout: BatchLayout,
        place: int,
        arena: Arena,
        helpers: HelperPool,
    ) -> None:
        super().__init__(plan)
        self.number, self.layout, self.place = number, layout, place
        self.shared = place, layout
        self._failures: dict[int, Failure] = {}  # of helpers
        self.being_written: set[int] = set()  # rows that threads of this process read now
        self.num_undone = len(plan)  # rows without a result
        self.helpers, self._arena = helpers, arena

    def recordings(self) -> Iterator[tuple[int, File | None, Any]]:
        return ((one.audio.index, one.audio.file, (row, one)) for row, one in enumerate(self.utterances))

    def call(self, index: int) -> None:
        self.being_written.add(index)
        if self.is_dropped:  # the run has ended, and may have seen no row being written
            self.being_written.discard(index)
            return
        arrays = self.layout.placed(self._arena.view(self.place, self.layout.num_bytes))
        try:
            self.keep(index, arrays.read(index, self.utterances[index]))
        finally:
            self.being_written.discard(index)

    def take(self, index: int, result: Any) -> None:
        if isinstance(result, ReadRow):
            self.keep(index, result)
        elif isinstance(result, Failure):
            self._failures[index] = result
        else:
            self.errors[index] = result

    def failure(self, row: int) -> Failure:
        return self._failures.get(row) or super().failure(row)
