"""Windows of inputs that are sorted together. A thread fills the next window while the model works on the last one.

The first windows are small, so that work starts at once; each next one is larger. Their sizes depend on the inputs, not on
timing. The exception is a slow source (paths that are typed or piped in): then the items that are there go ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_FIRST_WINDOW = 1000
_GROWTH = 1.5  # the next window must be gathered while this one is transcribed, at thousands of files a second
_MAX_WAIT_S = 1.0  # how long a window that holds something waits for a slow source
_IDLE_S = 0.5  # how long one waits that holds nothing, before whoever holds back results is asked again


class SortBuffer(Generic[T]):
    """An iterator over windows: lists of items from `source`, which a thread reads.

    An empty window means that the source has no item ready: finish what is in flight, because the next step may wait. An
    exception from the source is raised in the iterating thread.

    Args:
        source: The items; closed by this buffer's thread.
        seconds: Returns an item's audio length in seconds.
        max_items: Maximum number of items in a window.
        max_s: Audio length in seconds that fills a window.
    """

    def __init__(
        self, source: Generator[T, None, None], seconds: Callable[[T], float], max_items: int, max_s: float
    ) -> None:
        self._source, self._seconds, self._max_items, self._max_s = source, seconds, max_items, max_s
        self._next_size = min(max_items, _FIRST_WINDOW)
        self._changed = threading.Condition()
        self._items: list[T] = []
        self._items_s = 0.0
        self._ended = self._closed = False
        self._error: BaseException | None = None
        # Not waited for at exit: it may sit in a read from a terminal that never ends.
        self._thread = threading.Thread(target=self._fill, name="gather", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[list[T]]:
        while True:
            with self._changed:
                idle = not self._has_items()
            if idle:
                yield []
            window = self._pop_window()
            if window is None:
                continue
            if not window:
                if self._error is not None:
                    raise self._error
                return
            yield window

    def close(self) -> None:
        """Drop the items and stop the thread, at the latest when the source yields its next item."""
        with self._changed:
            self._closed = True
            self._items = []
            self._changed.notify_all()

    def _pop_window(self) -> list[T] | None:
        """Return the next window, an empty one at the end, or None if the source has yielded nothing for a while."""
        with self._changed:
            if not self._changed.wait_for(self._has_items, timeout=_IDLE_S):
                return None
            self._changed.wait_for(self._is_full, timeout=_MAX_WAIT_S)
            window, self._items, self._items_s = self._items, [], 0.0
            self._next_size = min(self._max_items, int(self._next_size * _GROWTH))
            self._changed.notify_all()
            return window

    def _has_items(self) -> bool:
        return bool(self._items) or self._ended

    def _is_full(self) -> bool:
        return self._ended or len(self._items) >= self._next_size or self._items_s >= self._max_s

    def _fill(self) -> None:
        try:
            for item in self._source:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or not self._is_full())
                    if self._closed:
                        break
                    self._items.append(item)
                    self._items_s += self._seconds(item)
                    if self._is_full() or len(self._items) == 1:
                        self._changed.notify_all()
        except BaseException as error:  # raised again in the thread that iterates
            self._error = error
        finally:
            try:
                self._source.close()
            finally:
                with self._changed:
                    self._ended = True
                    self._changed.notify_all()
