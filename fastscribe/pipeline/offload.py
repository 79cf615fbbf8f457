"""Calls that threads make while the model works, for the one thread that drives it."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from fastscribe.pipeline.thread_pool import ReplacingThreadPool

T = TypeVar("T")

MAX_QUEUED = 1000  # calls without a result


class Offload(Generic[T]):
    """Calls in flight. One thread uses it.

    Args:
        pool: Makes the calls.
        take: Receives each result, in the thread that uses this object.
    """

    def __init__(self, pool: ReplacingThreadPool, take: Callable[[T], None]) -> None:
        self._pool, self._take = pool, take
        self._results: SimpleQueue[T] = SimpleQueue()
        self._num_calls = 0

    def submit(self, call: Callable[[], T]) -> None:
        """Queue a call, which must not raise. Blocks while MAX_QUEUED are in flight."""
        self._num_calls += 1
        self._pool.submit(lambda: self._results.put(call()))
        while self._num_calls > MAX_QUEUED:
            self._take_next()

    def collect(self) -> None:
        """Take the results that are there. Does not wait."""
        while not self._results.empty():
            self._take_next()

    def wait(self) -> bool:
        """Wait for one result and take it. Return False if there is nothing to wait for."""
        if self._num_calls:
            self._take_next()
            return True
        return False

    def _take_next(self) -> None:
        result = self._results.get()
        self._num_calls -= 1
        self._take(result)
