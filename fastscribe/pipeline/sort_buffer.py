"""Inputs gathered into windows that are sorted together, in a thread of their own, while the model works on the last one.

The first windows are small, so that work starts at once, and each next one is larger. Their sizes depend on the inputs
alone, not on timing, except where the source is slow (names typed or piped in): then whatever is there goes ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_FIRST_WINDOW = 1000
_GROWTH = 1.5  # the next window must be gathered while this one is transcribed, at thousands of files a second
_PATIENCE_S = 1.0  # how long a window that holds something waits for a slow source
_IDLE_S = 0.5  # how long one waits that holds nothing, before whoever holds back results is asked again


class SortBuffer(Generic[T]):
    """Iterates over lists of items. An empty list means that the source has nothing at present: whoever holds
    back results had better let them go; the next step then waits a while. What the source raises is raised here.

    A window is full at `most` items or `most_s` seconds, as `seconds` counts them.
    """

    def __init__(
        self, source: Generator[T, None, None], seconds: Callable[[T], float], most: int, most_s: float
    ) -> None:
        self._source, self._seconds, self._most, self._most_s = source, seconds, most, most_s
        self._next_size = min(most, _FIRST_WINDOW)
        self._change = threading.Condition()
        self._items: list[T] = []
        self._items_s = 0.0
        self._ended = self._closed = False
        self._error: BaseException | None = None
        # Not waited for at exit: it may sit in a read from a terminal that never ends.
        self._thread = threading.Thread(target=self._gather, name="gather", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[list[T]]:
        while True:
            with self._change:
                idle = not self._some()
            if idle:
                yield []
            window = self._take()
            if window is None:
                continue
            if not window:
                if self._error is not None:
                    raise self._error
                return
            yield window

    def close(self) -> None:
        """Lets the thread end: at once, or when the source next lets go of it."""
        with self._change:
            self._closed = True
            self._items = []
            self._change.notify_all()

    def _take(self) -> list[T] | None:
        """The next window, empty only at the end; None where the source has had nothing for a while."""
        with self._change:
            if not self._change.wait_for(self._some, timeout=_IDLE_S):
                return None
            self._change.wait_for(self._enough, timeout=_PATIENCE_S)
            window, self._items, self._items_s = self._items, [], 0.0
            self._next_size = min(self._most, int(self._next_size * _GROWTH))
            self._change.notify_all()
            return window

    def _some(self) -> bool:
        return bool(self._items) or self._ended

    def _enough(self) -> bool:
        return self._ended or len(self._items) >= self._next_size or self._items_s >= self._most_s

    def _gather(self) -> None:
        try:
            for item in self._source:
                with self._change:
                    self._change.wait_for(lambda: self._closed or not self._enough())
                    if self._closed:
                        break
                    self._items.append(item)
                    self._items_s += self._seconds(item)
                    if self._enough() or len(self._items) == 1:
                        self._change.notify_all()
        except BaseException as error:  # raised again in the thread that iterates
            self._error = error
        finally:
            try:
                self._source.close()
            finally:
                with self._change:
                    self._ended = True
                    self._change.notify_all()
