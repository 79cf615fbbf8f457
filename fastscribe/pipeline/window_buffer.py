"""Windows of inputs that are sorted together. Threads prepare the next window while the model works on the last one.

The first windows are small, so that work starts at once; each next one is larger. Their sizes depend on the inputs, not on
timing. The exception is a slow source (paths that are typed or piped in): then a window leaves with the items it has.

One thread reads the source, which may block (a terminal). Threads or helper processes prepare the items; the thread that hears
of a completed one moves the completed items, in order, to the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from threading import Condition, RLock, Thread
from time import monotonic
from typing import Generic, TypeVar

from fastscribe.pipeline.interfaces import IDLE, Idle
from fastscribe.pipeline.prefetch import Group, Prefetcher
from fastscribe.pipeline.thread_pool import ReplacingThreadPool

S = TypeVar("S")
T = TypeVar("T")

AHEAD_PER_THREAD = 8
_FIRST_WINDOW = 1000
_GROWTH = 1.5  # the next window must be gathered while this one is transcribed, at thousands of files a second
_MAX_WAIT_S = 1.0  # a window with items waits this long for a slow source
_IDLE_S = 0.5  # an empty window yields IDLE this often


class PreparationGroup(Group, Generic[S, T]):
    """Prepares some sources in threads, one a call. `items` has what became of them by position; None: skip it."""

    def __init__(self, prepare: Callable[[S], T | None], sources: Sequence[S]) -> None:
        super().__init__(len(sources))
        self._prepare, self.sources = prepare, sources
        self.items: dict[int, T | None] = {}
        self.num_bytes: Sequence[int] = ()  # memory that each source holds

    def call(self, index: int) -> None:
        self.items[index] = self._prepare(self.sources[index])


class SortBuffer(Generic[S, T]):
    """An iterator over windows: lists of prepared items.

    It yields IDLE while no item is ready: finish the work in flight, because the next step may wait. An exception of the
    source or of `prepare` is raised in the iterating thread, after the items before it.

    Args:
        sources: Read and closed by this buffer's thread.
        prepare: Returns the item for a source, or None to skip it. Called by the pool's threads.
        duration_s: Returns an item's audio length in seconds.
        pool: Prepares the items, at most AHEAD_PER_THREAD times its threads at once.
        max_items: Maximum number of items in a window; the last slow ones may exceed it.
        max_s: Audio length in seconds that fills a window.
        num_bytes: Returns the memory that a source holds. Called by this buffer's thread.
        max_bytes: Memory that fills a window. No source is read beyond it.
        expected_s: Audio length of an item, while none is prepared; later their mean counts. Above zero, only as many items are
            prepared at once as fill a window with this length, at least one: they hold memory.
        group: Returns the group that prepares some sources; None: threads call `prepare`, a source each.
        chunk: Sources of a group.
        wake: Called in any thread when a window may be ready. With it the iteration never waits: it yields IDLE instead.
        first_items: Maximum number of items in the first window.
        max_wait_s: A window with items waits this long for others.
    """

    def __init__(
        self,
        sources: Generator[S, None, None],
        prepare: Callable[[S], T | None],
        duration_s: Callable[[T], float],
        pool: ReplacingThreadPool,
        max_items: int,
        max_s: float,
        num_bytes: Callable[[S], int] = lambda source: 0,
        max_bytes: float = math.inf,
        expected_s: float = 0.0,
        group: Callable[[Sequence[S]], PreparationGroup[S, T]] | None = None,
        chunk: int = 1,
        wake: Callable[[], None] | None = None,
        first_items: int | None = None,
        max_wait_s: float | None = None,
    ) -> None:
        self.num_skipped = 0
        self._sources, self._duration_s = sources, duration_s
        self._group: Callable[[Sequence[S]], PreparationGroup[S, T]] | None
        self._group = partial(PreparationGroup[S, T], prepare) if group is None else group
        self._max_items, self._max_s, self._pool = max_items, max_s, pool
        self._num_bytes, self._max_bytes, self._expected_s = num_bytes, max_bytes, expected_s
        self._num_prepared, self._prepared_s = 0, 0.0
        self._chunk, self._wake = chunk, wake
        self._pending: list[tuple[S, int]] = []  # sources of the next group, with their bytes
        self._has_items_since: float | None = None  # when the window got its first item, unless a caller waits for it
        self._next_size = min(max_items, _FIRST_WINDOW if first_items is None else first_items)
        self._max_wait_s = _MAX_WAIT_S if max_wait_s is None else max_wait_s
        self._lock = RLock()  # a group may be complete as soon as it is submitted
        self._room, self._ready = Condition(self._lock), Condition(self._lock)  # for the source, for the window
        self._prefetcher: Prefetcher[PreparationGroup[S, T]] = Prefetcher(pool, self._on_complete)
        self._items: list[T] = []
        self._items_s = 0.0
        self._items_bytes = self._ahead_bytes = 0  # of the items, and of those that are not prepared yet
        self._source_ended = self._stopped = False  # stopped: closed, or `prepare` has raised
        self._error: BaseException | None = None
        # A daemon, because it may block forever in a read from a terminal.
        self._thread = Thread(target=self._feed, name="source", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[list[T] | Idle]:
        while True:
            with self._lock:
                is_idle = self._wake is None and not self._has_items()
            if is_idle:
                yield IDLE
            window = self._pop_window()
            if window is None:
                if self._wake is not None:
                    yield IDLE
                continue
            if not window:
                if self._error is not None:
                    raise self._error
                return
            yield window

    def queued(self) -> tuple[int, float, bool]:
        """Return the number and seconds of the prepared items, and whether no others will come."""
        with self._lock:
            return len(self._items), self._items_s, self._is_all_in() and not self._prefetcher.has_late

    def prepare_here(self, prepare: Callable[[S], T | None]) -> None:
        """Let threads prepare what no group has begun to, and wait for items from now on."""
        with self._lock:
            self._group, self._chunk, self._wake = partial(PreparationGroup[S, T], prepare), 1, None

    def close(self) -> None:
        """Drop the items and stop the thread, at the latest when the source yields its next item.

        Until then the thread holds this buffer, but no group.
        """
        with self._lock:
            self._stop()
            self._items, self._prefetcher = [], Prefetcher(self._pool, self._on_complete)
            self._group = self._wake = None

    def _pop_window(self) -> list[T] | None:
        """Return the next window, an empty one at the end, or None if no item has become ready for a while."""
        with self._lock:
            if self._pending and not len(self._prefetcher):  # the source is slow: the group is as large as it gets
                self._submit()
            if self._wake is not None:
                self._collect()  # what a slow group has done wakes no one
            if not self._wait_for(self._has_items, _IDLE_S if self._wake is None else 0.0):
                return None
            if self._wake is None:
                self._wait_for(self._is_full, self._max_wait_s)
            elif not self._is_full():
                self._has_items_since = self._has_items_since or monotonic()
                if monotonic() - self._has_items_since < self._max_wait_s:
                    return None
            self._has_items_since = None
            window, self._items, self._items_s, self._items_bytes = self._items, [], 0.0, 0
            self._next_size = min(self._max_items, int(self._next_size * _GROWTH))
            self._collect()
            return window

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = monotonic() + timeout_s
        while not condition():
            left_s = deadline - monotonic()
            if left_s <= 0:
                return False
            self._ready.wait(min(left_s, self._prefetcher.remaining_s()))
            self._collect()
        return True

    def _has_items(self) -> bool:
        is_finished = self._is_all_in() and (self._error is not None or not self._prefetcher.has_late)
        return bool(self._items) or self._stopped or is_finished

    def _is_all_in(self) -> bool:
        """Return True if all items but late ones are in."""
        return self._source_ended and not self._pending and not len(self._prefetcher)

    def _is_full(self) -> bool:
        return self._is_at_limit() or self._is_all_in()

    def _is_at_limit(self) -> bool:
        fills = len(self._items) >= self._next_size or self._items_s >= self._max_s
        return self._stopped or fills or self._items_bytes >= self._max_bytes

    def _has_room(self, max_ahead: int) -> bool:
        ahead = len(self._prefetcher) * self._chunk
        fits = self._items_bytes + self._ahead_bytes < self._max_bytes
        if self._expected_s:
            mean_s = (self._expected_s + self._prepared_s) / (1 + self._num_prepared)
            fits = fits and (not ahead or self._items_s + (ahead + 1) * mean_s <= self._max_s)
        return fits and ahead < max_ahead and len(self._items) + ahead < self._next_size and self._items_s < self._max_s

    def _on_complete(self) -> None:
        with self._lock:
            self._collect()

    def _collect(self) -> None:
        """Move prepared items to the window until it is full; wake the threads that can go on."""
        while not self._is_at_limit() and (part := self._prefetcher.poll()) is not None:
            group, done = part
            for index in done:
                self._ahead_bytes -= group.num_bytes[index]
                if index in group.errors:
                    self._error = group.errors[index]
                    self._stop()
                    break
                self._add(group.items.pop(index), group.num_bytes[index])
        if self._is_full() and self._has_items():
            self._notify()
        if self._has_room(AHEAD_PER_THREAD * self._chunk * self._pool.threads // 2):
            self._room.notify()

    def _add(self, item: T | None, num_bytes: int) -> None:
        if item is None:
            self.num_skipped += 1
            return
        item_s = self._duration_s(item)
        self._items.append(item)
        self._items_s += item_s
        self._items_bytes += num_bytes
        self._prepared_s, self._num_prepared = self._prepared_s + item_s, self._num_prepared + 1
        if len(self._items) == 1:
            self._notify()

    def _notify(self) -> None:
        self._ready.notify()
        if self._wake is not None:
            self._wake()

    def _stop(self) -> None:
        self._stopped = True
        self._prefetcher.close()
        self._room.notify()
        self._ready.notify()

    def _feed(self) -> None:
        error: BaseException | None = None
        try:
            while self._wait_for_room():
                try:
                    source = next(self._sources)
                except StopIteration:
                    break
                num_bytes = self._num_bytes(source)
                with self._lock:
                    self._ahead_bytes += num_bytes
                    self._pending.append((source, num_bytes))
                    if len(self._pending) >= self._chunk:
                        self._submit()
                del source
        except BaseException as raised:  # raised again in the thread that iterates
            error = raised
        try:
            self._sources.close()
        finally:
            with self._lock:
                if self._pending:
                    self._submit()
                self._error = self._error or error
                self._source_ended = True
                self._collect()
                self._notify()

    def _submit(self) -> None:
        """Prepare the pending sources, unless the buffer is closed."""
        sources, num_bytes = zip(*self._pending, strict=True)
        self._pending = []
        if self._group is None:
            return
        group = self._group(sources)
        group.num_bytes = num_bytes
        self._prefetcher.submit(group)

    def _wait_for_room(self) -> bool:
        """Wait until another item may be prepared. Return False if the buffer is closed."""
        with self._lock:
            if self._pending:
                return not self._stopped  # a group is begun
            max_ahead = AHEAD_PER_THREAD * self._chunk * self._pool.threads  # the pool may grow
            if not self._has_room(max_ahead):
                while not self._stopped and not self._has_room(max_ahead // 2):
                    self._room.wait(None if self._is_at_limit() else min(1.0, self._prefetcher.remaining_s()))
                    self._collect()
            return not self._stopped
