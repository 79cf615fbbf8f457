"""The inputs of a run, in windows that are sorted together: listed, probed and cut into utterances ahead of the model.

A manifest row that states its duration becomes an utterance unopened; the executor probes its file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from fastscribe.audio.given import all_of, sources
from fastscribe.audio.media import RemoteMedium, held_memory
from fastscribe.config import Options
from fastscribe.pipeline.interfaces import IDLE, Additions, Idle
from fastscribe.pipeline.loader import REMOTE_THREADS
from fastscribe.pipeline.preparation import Preparation, PreparedInput, release
from fastscribe.pipeline.sort_buffer import SortBuffer
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.types import Failure, Source

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs
    from fastscribe.pipeline.workers.inputs import HelperInputs
    from fastscribe.results.outputs import Ledger

Window = list[PreparedInput]

MAX_WINDOW_BYTES = 512 << 20  # the caller's data in a window, while the model works on another
_EXPECTED_S = 3600.0  # length of a recording that is held as a whole, while that of none is known


class InputWindows:
    """Reads the inputs of a run.

    Attributes:
        error: What the caller's iterator raised, if it did.

    Args:
        preparation: Probes and cuts.
        rooms: Gives inputs what their results are made of, and decides on those that are not done.
        preparers: Threads that prepare. The first URL makes them more, unless the options say how many.
        progress: Counts what is found, skipped and queued.
        elsewhere: Prepares inputs instead of the threads; None: the threads do.
    """

    def __init__(
        self,
        preparation: Preparation,
        rooms: Additions,
        preparers: ReplacingThreadPool,
        progress: Progress,
        elsewhere: HelperInputs | None = None,
    ) -> None:
        self.error: Exception | None = None
        self._preparation, self._options, self._rooms = preparation, preparation.options, rooms
        self._elsewhere = elsewhere
        self._preparers, self._progress = preparers, progress
        self._buffer: SortBuffer[Source | Failure, PreparedInput] | None = None
        self._unfinished: UnfinishedInputs | None = None  # of inputs that are prepared elsewhere
        self._last_data = 0  # id of the memory that the last source holds
        self._num_done = 0  # inputs that an earlier run has done, of those that are prepared elsewhere

    def stop(self) -> None:
        """Stop the thread that iterates over the sources, which stay open for rest()."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def close(self) -> None:
        """Stop that thread for good, and close the sources."""
        self.stop()
        if self._unfinished is not None:
            self._unfinished.close()

    def read(
        self, inputs: Inputs, ledger: Ledger | None, max_window_s: float, dry: bool = False, waits: bool = True
    ) -> Generator[Window | Idle, None, None]:
        """Yield the inputs, probed and split into utterances, in windows that are sorted together. Callable once.

        Args:
            inputs: As Transcriber.transcribe().
            ledger: Decides which inputs belong to the run.
            max_window_s: Seconds of audio that fill a window.
            dry: Estimate only: hold no recording, and believe every duration that a manifest states. Otherwise each
                recording is read as a whole if several models see it.
            waits: False: yield IDLE at once where inputs are prepared elsewhere; the caller waits to be woken.
        """
        options, progress = self._options, self._progress
        repeats = None if ledger is None else progress.repeats  # without a ledger each input gets a result
        found = self._with_threads(sources(self._until_error(inputs), progress.left_out, repeats))
        expected = expected_sources(found, ledger, options, self._rooms.attach)
        self._preparation = replace(self._preparation, dry=dry)
        if self._elsewhere is not None:
            self._unfinished = UnfinishedInputs(self._undone(expected, ledger))
            expected = self._unfinished.read()
        yield from self._windows(expected, partial(self._prepare, ledger, self._preparation), max_window_s, waits)

    def finish(self, index: int) -> None:
        """Note that the input at a position has its result."""
        if self._unfinished is not None:
            self._unfinished.finish(index)

    def rest(
        self, preparation: Preparation, max_window_s: float, last: Collection[int]
    ) -> Iterator[Generator[Window | Idle, None, None]]:
        """Return windows of the inputs without a result, which threads prepare now; then, apart, windows of those at `last`.

        Args:
            preparation: Prepares them.
            max_window_s: As for read().
            last: Positions of inputs.
        """
        assert self._unfinished is not None
        self.stop()
        self._preparation, self._elsewhere = preparation, None
        taken = self._unfinished.stop()
        others = self._unfinished.read([one for one in taken if one.index not in last])
        rest = (others, (one for one in taken if one.index in last))
        return (self._windows(inputs, preparation.prepare, max_window_s, waits=True) for inputs in rest)

    def _windows(
        self,
        sources: Generator[Source | Failure, None, None],
        prepare: Callable[[Source | Failure], PreparedInput | None],
        max_window_s: float,
        waits: bool,
    ) -> Generator[Window | Idle, None, None]:
        progress, elsewhere = self._progress, self._elsewhere
        self._buffer = SortBuffer(
            sources,
            prepare,
            duration_s,
            self._preparers,
            self._options.window,
            max_window_s,
            self._added_bytes,
            MAX_WINDOW_BYTES,
            expected_s=_EXPECTED_S if self._preparation.holds else 0.0,
            group=None if elsewhere is None else elsewhere.group,
            chunk=1 if elsewhere is None else elsewhere.chunk,
            wake=None if elsewhere is None or waits else elsewhere.wake,
        )
        with closing(self._buffer):
            for window in self._buffer:
                if window is not IDLE:
                    progress.planned_files += len(window)
                    progress.planned_s += sum(map(duration_s, window))
                self.count_queued()
                yield window
        self.count_queued()

    def count_queued(self) -> None:
        """Count what is read and waits for the model."""
        if self._buffer is not None:
            self._progress.skipped = self._num_done + self._buffer.num_skipped
            self._progress.queued_files, self._progress.queued_s, self._progress.has_all = self._buffer.queued()

    def _with_threads(self, sources: Iterable[Source | Failure]) -> Iterator[Source | Failure]:
        """Pass the sources on; the first in a store starts the threads that wait for it."""
        for source in sources:
            if not self._options.threads and isinstance(source, Source) and isinstance(source.file, RemoteMedium):
                self._preparers.threads = max(self._preparers.threads, REMOTE_THREADS)
            yield source

    def _added_bytes(self, source: Source | Failure) -> int:
        """Return the memory that a source adds to the ones before. Parts of the same data come one after another."""
        data, num_bytes = (0, 0) if isinstance(source, Failure) else held_memory(source.file)
        is_same, self._last_data = data == self._last_data, data
        return 0 if is_same else num_bytes

    def _until_error(self, inputs: Inputs) -> Iterator[Any]:
        """Yield the caller's inputs. The caller's error ends them."""
        try:
            yield from all_of(inputs)
        except Exception as error:  # anything that a caller's iterator raises
            self.error = error

    def _undone(
        self, sources: Generator[Source | Failure, None, None], ledger: Ledger | None
    ) -> Generator[Source | Failure, None, None]:
        """Yield the inputs that no earlier run has done."""
        for source in sources:
            if ledger is not None and ledger.is_done(source):
                self._num_done += 1
            else:
                yield self._filtered(source)

    def _prepare(
        self, ledger: Ledger | None, preparation: Preparation, source: Source | Failure
    ) -> PreparedInput | None:
        """Prepare one input. Return None if an earlier run has done it. Called from several threads."""
        if ledger is not None and ledger.is_done(source):
            return None
        return preparation.prepare(self._filtered(source))

    def _filtered(self, source: Source | Failure) -> Source | Failure:
        """Return an input as a room has it; after the ledger, to which a row is the same with another language."""
        if self._rooms.filter is None or isinstance(source, Failure):
            return source
        kept = self._rooms.filter.apply(source)
        if isinstance(kept, Failure):
            release(source.file)
        return kept


def expected_sources(
    sources: Iterable[Source | Failure],
    ledger: Ledger | None,
    options: Options,
    attach: Callable[[Source | Failure], Source | Failure] | None = None,
) -> Generator[Source | Failure, None, None]:
    """Number the sources by position, set the channel and the track that they do not name, and yield those of this run."""
    for index, source in enumerate(sources):
        numbered: Source | Failure = replace(source, index=index)
        if attach is not None:
            numbered = attach(numbered)
        if isinstance(numbered, Source):
            track = options.track if numbered.track is None else numbered.track
            channel = options.channel if numbered.channel is None else numbered.channel
            if track is not None or channel is not None:
                numbered = replace(numbered, track=track, channel=channel)
        if ledger is None or ledger.expect(numbered):
            yield numbered


def duration_s(item: PreparedInput) -> float:
    """Return a recording's length in seconds; 0 of one that has failed."""
    return 0.0 if isinstance(item, Failure) else item[0].audio.duration_s


def num_channels(item: PreparedInput) -> int:
    """Return how many channels of a recording are transcribed by themselves; 1 if it is transcribed as a whole."""
    return 1 if isinstance(item, Failure) else len({utterance.audio.channel for utterance in item})


def work_s(item: PreparedInput) -> float:
    """Return the seconds of audio that the model gets of a recording: its length for each of these channels."""
    return duration_s(item) * num_channels(item)


def long_s(item: PreparedInput) -> float:
    """Return work_s() of a recording of several utterances, which is finished late; 0 of another."""
    return 0.0 if isinstance(item, Failure) or len(item) <= num_channels(item) else work_s(item)


# The inputs of a run that have no result yet, for the case that the processes which prepare them fail.


class UnfinishedInputs:
    """The inputs of a run that have no result yet: another reader goes on with them if the processes that prepare them fail.

    The source is read once only: it may be stdin, and it numbers, counts and checks each input as it passes.

    Args:
        sources: All that the run has to do.
    """

    def __init__(self, sources: Generator[Source | Failure, None, None]) -> None:
        self._sources = sources
        self._taken: dict[int, Source | Failure] = {}  # by position, without a result
        self._late: list[Source | Failure] = []  # that came to a reader which had been stopped
        self._error: BaseException | None = None  # what the source has raised: each reader gets it
        self._reader = 0
        self._is_closed = False
        self._turn = Lock()  # of the source, which may block
        self._lock = Lock()  # of the rest

    def finish(self, index: int) -> None:
        """Note that an input has its result."""
        self._taken.pop(index, None)

    def stop(self) -> list[Source | Failure]:
        """Stop the reader, which may wait for the source. Return what it has taken and what has no result, in order."""
        with self._lock:
            self._reader += 1
            return [source for _, source in sorted(self._taken.items())]

    def close(self) -> None:
        """Close the source now, or if another thread waits for its next input, once that has come."""
        self._is_closed = True
        if self._turn.acquire(blocking=False):
            try:
                self._sources.close()
            finally:
                self._turn.release()

    def read(self, again: Iterable[Source | Failure] = ()) -> Generator[Source | Failure, None, None]:
        """Yield `again`, then what no one has taken. One reader at a time. The source outlives it: close() ends that."""
        reader = self._reader
        yield from again
        while (source := self._next(reader)) is not None:
            yield source

    def _next(self, reader: int) -> Source | Failure | None:
        """Return the next input; None: there is none, or the reader is stopped."""
        with self._turn:
            source = self._from_source(reader)
            if self._is_closed:  # meanwhile
                self._sources.close()
                return None
            return source

    def _from_source(self, reader: int) -> Source | Failure | None:
        if self._is_closed or reader != self._reader:
            return None
        if self._late:
            return self._late.pop()
        if self._error is not None:
            raise self._error
        try:
            source = next(self._sources, None)
        except BaseException as error:
            self._error = error
            raise
        if source is None:
            return None
        with self._lock:
            self._taken[source.index] = source
            if reader == self._reader:
                return source
            self._late.append(source)
            return None
