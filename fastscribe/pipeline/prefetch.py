"""Prefetching map: threads call a function ahead of the consumer, who gets the results in order unless one is slow.

A result is available as soon as it is done, even while the source of items waits for its next one (paths that are typed).
One thread iterates over the items; a pool calls the function. It uses queues because futures cost as much time as probing a
file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Generic, TypeVar

from fastscribe.pipeline.thread_pool import ReplacingThreadPool

T = TypeVar("T")
R = TypeVar("R")

AHEAD_PER_THREAD = 8
MAX_WAIT_S = 0.5  # how long results that are there wait for one before them


def prefetch_map(
    function: Callable[[T], R], items: Iterable[T], threads: int, name: str = "ahead"
) -> Generator[R, None, None]:
    """Yield function(item) for each item, in order where possible.

    If the next result takes longer than MAX_WAIT_S and later ones are done, they are yielded first. A thread that hangs is
    replaced (pipeline/thread_pool.py). Closing the generator stops the threads.

    Args:
        function: Called from the pool's threads.
        items: Iterated in a thread of its own, at most AHEAD_PER_THREAD items per thread ahead.
        threads: Number of threads that call the function.
        name: Prefix of the threads' names.

    Raises:
        BaseException: Whatever the function raises, at that item's position; whatever the source raises, after its items,
            without waiting for late results.
    """
    calls = _PrefetchedCalls(function, items, threads, name)
    try:
        yield from calls.results()
    finally:
        calls.close()


@dataclass(frozen=True)
class _Raised:
    error: BaseException


@dataclass(frozen=True)
class _SourceEnd:
    error: BaseException | None  # what the source raised


class _PrefetchedCalls(Generic[T, R]):
    def __init__(self, function: Callable[[T], R], items: Iterable[T], threads: int, name: str) -> None:
        self._function, self._items, self._closed = function, items, False
        self._completed: SimpleQueue[tuple[int, R | _Raised | _SourceEnd]] = SimpleQueue()
        self._permits: SimpleQueue[bool] = SimpleQueue()  # one for each item that may be looked at; False: no more
        for _ in range(threads * AHEAD_PER_THREAD):
            self._permits.put(True)
        self._pool = ReplacingThreadPool(threads, name)
        # Not waited for at exit either: it may sit in a read from a terminal that never ends.
        Thread(target=self._feed, name=f"{name}-feed", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._permits.put(False)
        self._pool.close()

    def results(self) -> Generator[R, None, None]:
        early: dict[int, R | _Raised | _SourceEnd] = {}
        late: set[int] = set()  # those let past, no more than there are threads: all before an early one have begun
        expected = 0
        deadline: float | None = None
        while True:
            if expected in early:
                result = early.pop(expected)
                expected, deadline = expected + 1, None
                if isinstance(result, _SourceEnd):
                    yield from self._late_results(late, result)
                    return
                self._permits.put(True)
                yield _unwrap(result)
                continue
            if early and deadline is None:
                deadline = monotonic() + MAX_WAIT_S
            completed = self._next_completed(deadline)
            if completed is None:
                skipped = range(expected, min(early))
                late.update(skipped)
                expected = skipped.stop
                for _ in skipped:
                    self._permits.put(True)
            elif completed[0] in late:
                late.remove(completed[0])
                yield _unwrap(completed[1])
            else:
                early[completed[0]] = completed[1]

    def _next_completed(self, deadline: float | None) -> tuple[int, R | _Raised | _SourceEnd] | None:
        try:
            return self._completed.get(timeout=None if deadline is None else max(0.0, deadline - monotonic()))
        except Empty:
            return None

    def _late_results(self, late: set[int], end: _SourceEnd) -> Generator[R, None, None]:
        if end.error is not None:
            raise end.error
        for _ in late:
            yield _unwrap(self._completed.get()[1])

    def _feed(self) -> None:
        number, error, items = 0, None, iter(self._items)
        try:
            while self._permits.get() and not self._closed:
                try:
                    item = next(items)
                except StopIteration:
                    break
                self._pool.submit(partial(self._call, number, item))
                number += 1
        except BaseException as raised:  # raised again in the thread that iterates
            error = raised
        self._completed.put((number, _SourceEnd(error)))

    def _call(self, number: int, item: T) -> None:
        try:
            result: R | _Raised = self._function(item)
        except BaseException as error:  # see _feed
            result = _Raised(error)
        self._completed.put((number, result))


def _unwrap(result: R | _Raised | _SourceEnd) -> R:
    if isinstance(result, _Raised):
        raise result.error
    assert not isinstance(result, _SourceEnd)
    return result
