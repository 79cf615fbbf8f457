"""The inputs of a run on a cluster: listed, checked against the ledger and given a length by threads of the driver.

Nothing is opened here: the workers do that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, cast

from fastscribe.audio.failures import input_failure
from fastscribe.audio.given import all_of, sources
from fastscribe.audio.media import is_held, medium_of
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.config import Options
from fastscribe.pipeline.idle import IDLE
from fastscribe.pipeline.loader import default_threads
from fastscribe.pipeline.sort_buffer import SortBuffer
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.windows import Ledger, expected_sources
from fastscribe.ray.chunks import Item, LengthEstimate
from fastscribe.types import Failure, Source

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs

_UNKNOWN_S = 30.0  # an object whose size only a request would tell
Window = list[Item | Failure]


class Windows:
    """The inputs that this run must transcribe, listed by a thread: windows of Items, and Failures of unusable inputs.

    Args:
        inputs: As Transcriber.transcribe(), or Sources.
        ledger: Decides which inputs belong to the run.
        options: `window`, `channel` and `track` count.
        progress: Counts what is skipped, left out and repeated.
    """

    def __init__(self, inputs: Inputs, ledger: Ledger | None, options: Options, progress: Progress) -> None:
        self.lengths = LengthEstimate()
        self._ledger, self._progress = ledger, progress
        self._error: BaseException | None = None
        self._pool = ReplacingThreadPool(options.threads or default_threads(), "prepare")
        found = sources(all_of(inputs), progress.left_out, None if ledger is None else progress.repeats)
        expected = expected_sources(found, ledger, options)
        self._buffer: SortBuffer[Source | Failure, Item | Failure] = SortBuffer(
            expected, self._prepare, _seconds_of, self._pool, options.window, math.inf
        )
        self._queue: Queue[Window | None] = Queue(1)
        self._is_closed = False
        self.has_ended = False
        Thread(target=self._feed, name="windows", daemon=True).start()

    def take(self, timeout_s: float = 0.0) -> Window:
        """Return the next window; empty if none is ready in this time, or at the end (`has_ended`)."""
        try:
            window = self._queue.get(timeout_s > 0, timeout_s or None)
        except Empty:
            return []
        finally:
            self._progress.skipped = self._buffer.num_skipped
        if window is None:
            self.has_ended = True
            if self._error is not None:
                raise self._error
            return []
        return window

    def close(self) -> None:
        """Stop the threads."""
        self._is_closed = True
        self._buffer.close()
        self._pool.close()
        while not self._queue.empty():
            self._queue.get_nowait()

    def _feed(self) -> None:
        try:
            for window in self._buffer:
                if self._is_closed:
                    return
                if window is not IDLE:
                    self._queue.put(window)
        except BaseException as error:  # raised again by the thread that takes windows
            self._error = error
        if not self._is_closed:
            self._queue.put(None)

    def _prepare(self, source: Source | Failure) -> Item | Failure | None:
        """Return the source with its length, or None if an earlier run has done it. Called from several threads."""
        if self._ledger is not None and self._ledger.is_done(source):
            return None
        if isinstance(source, Failure):
            return source
        if is_held(source.file):
            problem = "is in this process's memory, where the workers cannot read it: give a path or a URL"
            return replace(input_failure(source.path, problem), id=source.id, index=source.index)
        if source.duration_s is not None:
            return Item(source, source.duration_s)
        num_bytes = _num_bytes(source)
        return Item(source, self.lengths.seconds(num_bytes) if num_bytes else _UNKNOWN_S, num_bytes)


def _num_bytes(source: Source) -> int:
    """Return the size of a source's file; 0 if it is missing, or only a request would tell."""
    if isinstance(source.file, RemoteFile):
        return source.file.stated_bytes or 0
    try:
        return medium_of(cast(str, source.file)).num_bytes()
    except (OSError, ValueError):  # the worker says what is wrong with it
        return 0


def _seconds_of(item: Item | Failure) -> float:
    return 0.0 if isinstance(item, Failure) else item.seconds
