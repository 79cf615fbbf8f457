"""Calls that threads share: what one of them is getting, the others wait for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[K, T]):
    """Calls under way, by key."""

    def __init__(self) -> None:
        self._under_way: dict[K, Future[T]] = {}
        self._lock = Lock()

    def call(self, key: K, make: Callable[[], T]) -> T:
        """Return what `make` returns, or raise what it raises; threads that ask meanwhile get the same.

        A thread may come too late to share. So a `make` that fills a cache looks there first.
        """
        with self._lock:
            waiting = self._under_way.get(key)
            mine: Future[T] = Future()
            if waiting is None:
                self._under_way[key] = mine
        try:
            return waiting.result() if waiting is not None else self._make(key, mine, make)
        finally:
            del waiting, mine  # an error's traceback would hold them, and they hold the error

    def _make(self, key: K, mine: Future[T], make: Callable[[], T]) -> T:
        try:
            made = make()
            mine.set_result(made)
            return made
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._under_way[key]
            del mine
