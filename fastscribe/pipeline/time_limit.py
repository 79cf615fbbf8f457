"""A run's time limit: begin only what is expected to be done by the end. Pure; the clock is a parameter.

A transcript counts only when it is whole, so the limit acts in two places. Of each window, only recordings that are expected to
be done in time are begun (`parts`); a long one that does not fit leaves its place to shorter ones. Before each batch, the
limit looks again (`begin`). The speed is that of the slowest of the last batches, in seconds a second of audio. As long as it
is unknown, the shortest recordings go first, a batch at a time, so that little is lost if the limit is short.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

_BATCHES = 8  # whose speed is remembered
_MIN_PACE = 1e-9  # for clocks that stand still during a batch


class TimeLimit:
    """The end of a run, and what is expected to be done by then. For the one thread that drives the model.

    Args:
        end_s: When the last batch should be done, on the clock.
        clock: Returns seconds.

    Attributes:
        is_reached: Something was not begun, or was dropped, because of the limit.
    """

    def __init__(self, end_s: float, clock: Callable[[], float] = perf_counter) -> None:
        self.is_reached = False
        self._end_s, self._clock = end_s, clock
        self._in_flight_s = 0.0  # audio that the engine has
        self._pace: deque[float] = deque(maxlen=_BATCHES)  # seconds for a second of audio
        self._last_s = -math.inf  # when the last batch was done, or the first one begun after a pause

    def begin(self, audio_s: float) -> bool:
        """Return True if a batch is expected to be done in time, and count it as begun. 0 s: only look at the clock."""
        now_s = self._clock()
        if now_s + (self._in_flight_s + audio_s) * max(self._pace, default=0.0) >= self._end_s:
            self.is_reached = True
            return False
        if not self._in_flight_s:
            self._last_s = now_s
        self._in_flight_s += audio_s
        return True

    def done(self, audio_s: float, is_decoded: bool = True) -> None:
        """Learn the speed from a batch, or from a part of one, whose results have arrived; not if it could not be decoded."""
        now_s = self._clock()
        self._in_flight_s = max(0.0, self._in_flight_s - audio_s)
        if not is_decoded:
            return
        if audio_s:
            self._pace.append(max(_MIN_PACE, (now_s - self._last_s) / audio_s))
        self._last_s = now_s

    def drop(self) -> None:
        """Forget what was begun and is not done: it begins again."""
        self._in_flight_s = 0.0

    def parts(
        self, items: Sequence[T], audio_s: Callable[[T], float], undone_s: Callable[[], float], probe_s: float
    ) -> Iterator[list[T]]:
        """Yield the items in parts that are expected to be done in time; leave out those that are not.

        Args:
            items: The items of a window.
            audio_s: Returns an item's seconds of audio; 0: it costs nothing.
            undone_s: Returns the seconds of audio that were yielded and are not decoded yet.
            probe_s: Seconds of audio in a part while the speed is unknown.
        """
        left = [(audio_s(item), item) for item in items]
        while left:
            fits = self._fits(left, undone_s(), probe_s)
            part = [item for (_, item), fit in zip(left, fits, strict=True) if fit]
            if not part:
                self.is_reached = True
                return
            left = [pair for pair, fit in zip(left, fits, strict=True) if not fit]
            yield part

    def _fits(self, left: Sequence[tuple[float, object]], undone_s: float, probe_s: float) -> list[bool]:
        order: Sequence[int] = range(len(left))
        if self._pace:
            room_s = (self._end_s - self._clock()) / max(self._pace) - undone_s
        else:
            order = sorted(order, key=lambda index: left[index][0])
            room_s = max(probe_s, left[order[0]][0]) if self._clock() < self._end_s else 0.0
        fits = [False] * len(left)
        for index in order:
            if left[index][0] <= room_s or not left[index][0]:
                room_s -= left[index][0]
                fits[index] = True
        return fits
