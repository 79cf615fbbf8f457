"""The inputs of a run, in windows that are sorted together: listed, probed and cut into utterances ahead of the model.

A manifest row that states its duration becomes an utterance unopened; the executor probes its file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fastscribe.audio.given import all_of, sources
from fastscribe.audio.media import RemoteMedium, held_memory
from fastscribe.config import Options
from fastscribe.pipeline.interfaces import IDLE, Additions, Idle
from fastscribe.pipeline.loader import REMOTE_THREADS
from fastscribe.pipeline.preparation import Preparation, PreparedInput, release
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.window_buffer import Preparers, WindowBuffer, WindowSize
from fastscribe.types import Failure, RenderedTranscript, Source, Transcript

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs
    from fastscribe.pipeline.executor import HostWork
    from fastscribe.results.interfaces import Ledger

Window = list[PreparedInput]

MAX_WINDOW_BYTES = 512 << 20  # the caller's data in a window, while the model works on another
_MAX_WAIT_S = 1.0  # a window with recordings waits this long for a slow source, if they are files (window_buffer.py)
_EXPECTED_S = 3600.0  # length of a recording that is held as a whole, while that of none is known


class InputWindows:
    """Reads the inputs of a run.

    Attributes:
        error: What the caller's iterator or the ledger raised, if one did.

    Args:
        preparation: Probes and cuts.
        rooms: Gives inputs what their results are made of, and decides on those that are not done.
        preparers: Threads that prepare. The first URL makes them more, unless the options say how many.
        progress: Counts what is found, skipped and queued.
    """

    def __init__(
        self,
        preparation: Preparation,
        rooms: Additions,
        preparers: ReplacingThreadPool,
        progress: Progress,
    ) -> None:
        self.error: Exception | None = None
        self._preparation, self._options, self._rooms = preparation, preparation.options, rooms
        self._preparers, self._progress = preparers, progress
        self._buffer: WindowBuffer[Source | Failure, PreparedInput] | None = None
        # By position, of inputs without a result: the caller's keys, which need not be such as travel between processes.
        self._keys: dict[int, Any] = {}
        self._last_data = 0  # id of the memory that the last source holds
        self._num_done = 0  # inputs that an earlier run has done, of those that are prepared elsewhere

    def close(self) -> None:
        """Stop the thread that iterates over the sources, and close them."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None

    def read(
        self, inputs: Inputs, ledger: Ledger | None, max_window_s: float, work: HostWork, dry: bool = False
    ) -> Generator[Window | Idle, None, None]:
        """Return the inputs, probed and split into utterances, in windows that are sorted together. Callable once.

        Args:
            inputs: As Transcriber.transcribe().
            ledger: Decides which inputs belong to the run.
            max_window_s: Seconds of audio that fill a window.
            work: Says whether other processes prepare inputs instead of the threads. If the caller is woken, IDLE comes at once
                while no window is ready.
            dry: Estimate only: hold no recording, and believe every duration that a manifest states. Otherwise each
                recording is read as a whole if several models see it.
        """
        progress = self._progress
        repeats = None if ledger is None else progress.repeats  # without a ledger each input gets a result
        found = self._with_threads(sources(self._until_error(inputs), progress.left_out, repeats))
        expected = expected_sources(found, ledger, self._options, self._attached)
        self._preparation = replace(self._preparation, dry=dry)
        size = WindowSize(
            self._options.window,
            max_window_s,
            _MAX_WAIT_S,
            num_bytes=MAX_WINDOW_BYTES,
            expected_s=_EXPECTED_S if self._preparation.holds else 0.0,
        )
        self._buffer = WindowBuffer(
            expected if work.helpers is None else self._undone(expected, ledger),
            work.helpers or Preparers.threads(partial(self._prepare, ledger), work.wake),
            duration_s,
            self._preparers,
            size,
            self._added_bytes,
        )
        return self._windows(self._buffer)

    def _windows(self, buffer: WindowBuffer[Source | Failure, PreparedInput]) -> Generator[Window | Idle, None, None]:
        """Yield the windows. An error of the ledger ends them."""
        progress = self._progress
        try:
            with closing(buffer):
                for window in buffer:
                    if window is not IDLE:
                        progress.planned_files += len(window)
                        progress.planned_s += sum(map(duration_s, window))
                    self.count_queued()
                    yield window
        except Exception as error:  # anything that a ledger raises
            self.error = self.error or error
        self.count_queued()

    def prepare_here(self) -> None:
        """Let threads prepare from now on, because the processes that did have failed."""
        if self._buffer is not None:
            self._buffer.prepare_here(self._preparation.prepare)

    def finish(self, result: Transcript | Failure) -> Transcript | Failure:
        """Return the result of an input with the caller's key."""
        key = self._keys.pop(result.index, None)
        if key is None:
            return result
        if isinstance(result, Failure):
            return replace(result, given_key=key)
        audio = replace(result.audio, given_key=key)
        if isinstance(result, RenderedTranscript):
            result.set_audio(audio)
            return result
        return replace(result, audio=audio)

    def count_queued(self) -> None:
        """Count what is read and waits for the model."""
        if self._buffer is not None:
            self._progress.skipped = self._num_done + self._buffer.num_skipped
            self._progress.queued_files, self._progress.queued_s, self._progress.has_all = self._buffer.queued()

    def _attached(self, source: Source | Failure) -> Source | Failure | None:
        """Return an input with its text, or as it is; None for one that is left out, which counts as textless."""
        attached = source if self._rooms.attach is None else self._rooms.attach(source)
        self._progress.textless += attached is None
        return attached

    def _with_threads(self, sources: Iterable[Source | Failure]) -> Iterator[Source | Failure]:
        """Pass the sources on; the first in a store starts the threads that wait for it."""
        for source in sources:
            if not self._options.threads and isinstance(source, Source) and isinstance(source.file, RemoteMedium):
                self._preparers.threads = max(self._preparers.threads, REMOTE_THREADS)
            yield source

    def _added_bytes(self, source: Source | Failure) -> int:
        """Return the memory that a source adds to the ones before; 0 for files.

        Parts of the same data come one after another. Each but the first counts as a byte.
        """
        data, num_bytes = (0, 0) if isinstance(source, Failure) else held_memory(source.file)
        is_same, self._last_data = data == self._last_data, data
        return min(1, num_bytes) if is_same else num_bytes

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
            if ledger is not None and ledger.skip(source):
                self._num_done += 1
            else:
                yield self._begun(source)

    def _prepare(self, ledger: Ledger | None, source: Source | Failure) -> PreparedInput | None:
        """Prepare one input. Return None if an earlier run has done it. Called from several threads."""
        if ledger is not None and ledger.skip(source):
            return None
        return self._preparation.prepare(self._begun(source))

    def _begun(self, source: Source | Failure) -> Source | Failure:
        """Return an input as it is prepared: without the caller's key, and as a room has it.

        That is after the ledger, to which a row is the same with another language.
        """
        if source.given_key is not None:
            self._keys[source.index] = source.given_key
            source = replace(source, given_key=None)
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
    attach: Callable[[Source | Failure], Source | Failure | None] | None = None,
) -> Generator[Source | Failure, None, None]:
    """Number the sources by position, set the channel and the track that they do not name, and yield those of this run."""
    for index, source in enumerate(sources):
        given: Source | Failure = replace(source, index=index)
        numbered = given if attach is None else attach(given)
        if numbered is None:
            continue
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
