"""The inputs of a run that have no result yet, for the case that the processes which prepare them fail."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from threading import Lock

from fastscribe.types import Failure, Source


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
