"""Windows of inputs that are planned together. The next window is prepared while the model works on the last one.

The first windows are small, so that work starts at once; each next one is larger. Their sizes depend on the inputs, not on
timing. The exception is a slow source (paths that are typed or piped in): then a window leaves with the items it has. Data in
memory, which a server gives as they come, do so soon if the model has nothing else. Paths wait longer, as a listing may pause.

One thread reads the source, which may block (a terminal). Threads or helper processes prepare the items; the thread that hears
of a completed one moves the completed items, in order, to the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition, RLock, Thread
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from fastscribe.pipeline.interfaces import IDLE, Idle
from fastscribe.pipeline.prefetch import Group, Prefetcher
from fastscribe.pipeline.thread_pool import ReplacingThreadPool

S = TypeVar("S")
T = TypeVar("T")

AHEAD_PER_THREAD = 8
_FIRST_WINDOW = 1000
_GROWTH = 1.5  # the next window must be gathered while this one is transcribed, at thousands of files a second
_IDLE_S = 0.05  # without a window, the iteration yields IDLE this often: a text that threads finish waits no longer
_QUIET_S = 0.05  # data in memory wait no longer for others than until none has come for this long


class PreparationGroup(Group, Generic[S, T]):
    """Prepares some sources in threads, one a call. `items` has what became of them by position; None: skip it."""

    def __init__(self, prepare: Callable[[S], T | None], sources: Sequence[S]) -> None:
        super().__init__(len(sources))
        self._prepare, self.sources = prepare, sources
        self.items: dict[int, T | None] = {}
        self.num_bytes: Sequence[int] = ()  # memory that each source holds

    def call(self, index: int) -> None:
        self.items[index] = self._prepare(self.sources[index])


@dataclass(frozen=True)
class Preparers(Generic[S, T]):
    """Who prepares items.

    Attributes:
        group: Returns the group that prepares some sources.
        chunk: Sources of a group.
        wake: Called in any thread when a window may be ready, so that the iteration need not wait; None: it waits.
    """

    group: Callable[[Sequence[S]], PreparationGroup[S, T]]
    chunk: int = 1
    wake: Callable[[], None] | None = None

    @classmethod
    def threads(cls, prepare: Callable[[S], T | None], wake: Callable[[], None] | None = None) -> Preparers[S, T]:
        """Return threads of this process, which call `prepare`. It returns the item for a source, or None to skip it."""
        return cls(partial(PreparationGroup[S, T], prepare), wake=wake)


class WindowSize(NamedTuple):
    """When a window is full, and how long it waits for that.

    Attributes:
        items: Maximum number of items; the last slow ones, and those of the last group, may exceed it.
        seconds: Audio length.
        wait_s: A window with items waits this long for others.
        first_items: Maximum number of items of the first window.
        num_bytes: Memory that the sources hold. No source is read beyond it.
        expected_s: Audio length of an item, while none is prepared; later their mean counts. Above zero, only as many items are
            prepared at once as fill a window with this length, at least one: they hold memory.
    """

    items: int
    seconds: float
    wait_s: float
    first_items: int = _FIRST_WINDOW
    num_bytes: float = math.inf
    expected_s: float = 0.0


class WindowBuffer(Generic[S, T]):
    """An iterator over windows, lists of prepared items in the order of their sources, with IDLE while no window is ready.

    IDLE: finish the work in flight, because the next step may wait. An exception of the source or of a group is raised in the
    iterating thread, after the items before it.

    Args:
        sources: Read and closed by this buffer's thread.
        preparers: Prepare the items.
        duration_s: Returns an item's audio length in seconds.
        pool: Its threads are the preparers, or what helpers leave to this process. At most AHEAD_PER_THREAD times their number
            of groups are prepared at once.
        size: Of a window.
        num_bytes: Returns the memory that a source holds. Called by this buffer's thread.
    """

    def __init__(
        self,
        sources: Generator[S, None, None],
        preparers: Preparers[S, T],
        duration_s: Callable[[T], float],
        pool: ReplacingThreadPool,
        size: WindowSize,
        num_bytes: Callable[[S], int] = lambda source: 0,
    ) -> None:
        self.num_skipped = 0
        self._sources, self._duration_s, self._pool, self._num_bytes = sources, duration_s, pool, num_bytes
        self._preparers: Preparers[S, T] | None = preparers  # None: closed
        self._size, self._max_items = size, min(size.items, size.first_items)  # of this window
        self._num_prepared, self._prepared_s = 0, 0.0
        self._pending: list[tuple[S, int]] = []  # sources of the next group, with their bytes
        self._waits_since: float | None = None  # when the window was first asked for since it has items
        self._last_at = 0.0  # when the last source came
        self._lock = RLock()  # a group may be complete as soon as it is submitted
        self._room, self._ready = Condition(self._lock), Condition(self._lock)  # for the source, for the window
        self._prefetcher: Prefetcher[PreparationGroup[S, T]] = Prefetcher(pool, self._on_complete)
        self._items: list[T] = []
        self._items_s = 0.0
        self._items_bytes = self._ahead_bytes = 0  # of the items, and of those that are not prepared yet
        self._source_ended = self._stopped = False  # stopped: closed, or a group has an error
        self._error: BaseException | None = None
        # A daemon, because it may block forever in a read from a terminal.
        self._thread = Thread(target=self._feed, name="source", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[list[T] | Idle]:
        while True:
            window = self._take()
            if window is None:
                yield IDLE
                self._wait()
            elif window:
                yield window
            elif self._error is not None:
                raise self._error
            else:
                return

    def queued(self) -> tuple[int, float, bool]:
        """Return the number and seconds of the prepared items, and whether no others will come."""
        with self._lock:
            return len(self._items), self._items_s, self._is_all_in() and not self._prefetcher.has_late

    def prepare_here(self, prepare: Callable[[S], T | None]) -> None:
        """Let threads prepare what no group has begun to, and wait for items from now on."""
        with self._lock:
            self._preparers = Preparers.threads(prepare)

    def close(self) -> None:
        """Drop the items and stop the thread, at the latest when the source yields its next item.

        Until then the thread holds this buffer, but no group.
        """
        with self._lock:
            self._stop()
            self._items, self._prefetcher = [], Prefetcher(self._pool, self._on_complete)
            self._preparers = None

    def _take(self) -> list[T] | None:
        """Return the next window, an empty one at the end, or None if it is not ready."""
        with self._lock:
            if self._pending and not len(self._prefetcher):  # the source is slow: the group is as large as it gets
                self._submit()
            self._collect()  # what a slow group has done wakes no one
            if not self._has_items():
                return None
            if not self._is_full() and not self._has_waited():
                return None
            self._waits_since = None
            window, self._items, self._items_s, self._items_bytes = self._items, [], 0.0, 0
            self._max_items = min(self._size.items, int(self._max_items * _GROWTH))
            self._collect()
            return window

    def _has_waited(self) -> bool:
        """Return True if a window that is not full has waited long enough, or if its data need not wait."""
        now = monotonic()
        if self._waits_since is None:
            self._waits_since = now
        elif self._items_bytes and self._is_awaited() and not len(self._prefetcher) and now - self._last_at >= _QUIET_S:
            return True  # it is asked for again, after IDLE: the model has nothing else
        return now - self._waits_since >= self._size.wait_s

    def _is_awaited(self) -> bool:
        """Return True if the iterating thread waits for a window, and does nothing else meanwhile."""
        return self._preparers is not None and self._preparers.wake is None

    def _wait(self) -> None:
        """Wait until a window may be ready, for a moment at most."""
        with self._lock:
            if self._is_awaited() and not (self._has_items() and self._is_full()):
                longest_s = _QUIET_S if self._items_bytes else _IDLE_S
                self._ready.wait(min(longest_s, self._size.wait_s, self._prefetcher.remaining_s()))

    def _has_items(self) -> bool:
        """Return True if there is an item, or no other one will come."""
        is_finished = self._is_all_in() and (self._error is not None or not self._prefetcher.has_late)
        return bool(self._items) or self._stopped or is_finished

    def _is_all_in(self) -> bool:
        """Return True if all items but late ones are in."""
        return self._source_ended and not self._pending and not len(self._prefetcher)

    def _is_full(self) -> bool:
        return self._is_at_limit() or self._is_all_in()

    def _is_at_limit(self) -> bool:
        fills = len(self._items) >= self._max_items or self._items_s >= self._size.seconds
        return self._stopped or fills or self._items_bytes >= self._size.num_bytes

    def _has_room(self, fraction: int = 1) -> bool:
        """Return True if another source may be read: less is being prepared than this fraction of what may be."""
        size, chunk = self._size, 1 if self._preparers is None else self._preparers.chunk
        ahead = len(self._prefetcher) * chunk
        if ahead >= AHEAD_PER_THREAD * chunk * self._pool.threads // fraction:  # the pool may grow
            return False
        if size.expected_s and ahead:
            mean_s = (size.expected_s + self._prepared_s) / (1 + self._num_prepared)
            if self._items_s + (ahead + 1) * mean_s > size.seconds:
                return False
        fits = len(self._items) + ahead < self._max_items and self._items_s < size.seconds
        return fits and self._items_bytes + self._ahead_bytes < size.num_bytes

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
        if self._has_room(fraction=2):
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
        if self._preparers is not None and self._preparers.wake is not None:
            self._preparers.wake()

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
                self._add_source(source, self._num_bytes(source))
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

    def _add_source(self, source: S, num_bytes: int) -> None:
        with self._lock:
            self._last_at = monotonic()
            self._ahead_bytes += num_bytes
            self._pending.append((source, num_bytes))
            if self._preparers is None or len(self._pending) >= self._preparers.chunk:
                self._submit()

    def _submit(self) -> None:
        """Prepare the pending sources, unless the buffer is closed."""
        sources, num_bytes = zip(*self._pending, strict=True)
        self._pending = []
        if self._preparers is not None:
            group = self._preparers.group(sources)
            group.num_bytes = num_bytes
            self._prefetcher.submit(group)

    def _wait_for_room(self) -> bool:
        """Wait until another item may be prepared. Return False if the buffer is closed."""
        with self._lock:
            if not self._pending and not self._has_room():  # else a group is begun
                while not self._stopped and not self._has_room(fraction=2):
                    self._room.wait(None if self._is_at_limit() else min(1.0, self._prefetcher.remaining_s()))
                    self._collect()
            return not self._stopped
