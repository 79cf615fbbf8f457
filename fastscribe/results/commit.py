"""The queue of finished recordings: one thread takes all that wait and has the storage make them durable together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from time import monotonic

from fastscribe.errors import OutputError
from fastscribe.results.items import Item
from fastscribe.results.storage import Storage

_MAX_BYTES = 1 << 26  # of items that wait, until `add` does


class Committer:
    """Commits finished recordings in a thread of its own.

    After an error nothing more is committed, and every method raises the error as an OutputError. The next run repeats what
    was not committed.

    Args:
        storage: Where they go, and how they gather before.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._pace = storage, storage.pace
        self._changed = threading.Condition()  # of all below
        self._queued: list[Item] = []
        self._current: list[Item] = []
        self._num_bytes = self._num_flushing = 0
        self._is_closing = False
        self._error: OutputError | None = None
        self._start_s = self._last_s = monotonic()
        self._thread = threading.Thread(target=self._work, name="commit", daemon=True)
        self._thread.start()

    def add(self, item: Item) -> None:
        """Queue an item; wait while the queue is full. Raise OutputError if an earlier item could not be committed."""
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._raise()
            self._queued.append(item)
            self._num_bytes += item.num_bytes
            self._changed.notify_all()

    def is_queued(self, name: str) -> bool:
        """Return True if files of this name wait for their commit or their rename."""
        with self._changed:
            return any(item.name == name for item in chain(self._current, self._queued))

    def flush(self) -> None:
        """Wait until all items are durable. Raises OutputError."""
        with self._changed:
            self._num_flushing += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._error is not None or not (self._queued or self._current))
            finally:
                self._num_flushing -= 1
            self._raise()

    def close(self) -> None:
        """Make everything durable, and end the thread. Raises OutputError."""
        try:
            self.flush()
            self._storage.end_commits()
        finally:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._thread.join()
            for item in self._queued:
                self._storage.discard(item.files)

    def _has_room(self) -> bool:
        has_room = len(self._queued) < self._pace.max_queued and self._num_bytes < _MAX_BYTES
        return self._error is not None or has_room

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while items := self._take():
            error = self._commit(items)
            with self._changed:
                self._error, self._current, self._last_s = error, [], monotonic()
                self._changed.notify_all()
                if error is not None:
                    return

    def _take(self) -> list[Item]:
        """Wait until a commit is due, and return its items; none if the thread has to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._is_closing)
            self._changed.wait_for(self._is_due, self._pause_s())
            items, num_bytes = self._queued[: self._pace.max_results], 0
            for number, item in enumerate(items, start=1):
                num_bytes += item.num_bytes
                if num_bytes >= self._pace.max_bytes:
                    del items[number:]
            del self._queued[: len(items)]
            self._num_bytes -= num_bytes
            self._current = items
            self._changed.notify_all()
            return items

    def _is_due(self) -> bool:
        is_full = len(self._queued) >= self._pace.max_results or self._num_bytes >= self._pace.max_bytes
        return is_full or self._is_closing or self._num_flushing > 0

    def _pause_s(self) -> float:
        now, pace = monotonic(), self._pace
        pause_s = min(pace.max_pause_s, max(pace.min_pause_s, pace.pause_share * (now - self._start_s)))
        return max(0.0, self._last_s + pause_s - now)

    def _commit(self, items: Sequence[Item]) -> OutputError | None:
        try:
            self._storage.commit(items)
        except OSError as error:
            return OutputError(str(error.filename or self._storage.where), error)
        except BaseException as error:  # if the thread died, the run would wait for ever
            return OutputError(self._storage.where, OSError(None, f"{type(error).__name__}: {error}"))
        return None
