"""The inputs of a run, listed once, by a thread that begins before the model loads: a folder on a network may take as long.

Before the model loads, the command asks the first ones whether there is anything to do, and whether there are many; they stay
for the run. The progress has their number from here once all are listed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread

from fastscribe.audio.given import sources
from fastscribe.audio.repeats import Repeats
from fastscribe.types import Failure, Source

_MAX_AHEAD = 50_000  # inputs that wait for the run, a kilobyte each
_PAUSE_S = 0.01
_MAX_WAIT_S = 2.0  # for the inputs that has_many() asks for


@dataclass(frozen=True)
class _End:
    """Comes behind the last input, with the error that ended the listing, if one did."""

    error: BaseException | None = None


class Listing:
    """The recordings that inputs name, for one run. Iterate over it once.

    Args:
        inputs: As for expand().

    Attributes:
        left_out: As for expand().
        repeats: As for expand().
        number: The number of recordings; None: not all are listed yet.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self.left_out: Counter[str] = Counter()
        self.repeats = Repeats()
        self.number: int | None = None
        # It has no limit of its own, and costs a twentieth of a queue that has one.
        self._found: SimpleQueue[Source | Failure | _End] = SimpleQueue()
        self._held: deque[Source | Failure] = deque()  # which ahead() took from the queue
        self._end: _End | None = None
        Thread(target=self._list, args=(inputs,), name="list-inputs", daemon=True).start()

    def __iter__(self) -> Iterator[Source | Failure]:
        while self._held:
            yield self._held.popleft()
        while self._end is None:
            if (found := self._next()) is not None:
                yield found
        if self._end.error is not None:
            raise self._end.error

    def ahead(self, max_wait_s: float | None = None) -> Iterator[Source | Failure]:
        """Yield the first inputs, which stay for the run: all of them if `is_whole` is True then.

        Args:
            max_wait_s: Wait no longer than this for all of them; None: as long as it takes.
        """
        end_s = None if max_wait_s is None else time.monotonic() + max_wait_s
        yield from tuple(self._held)
        while len(self._held) < _MAX_AHEAD:
            found = self._next(None if end_s is None else max(0.0, end_s - time.monotonic()))
            if found is None:
                return
            self._held.append(found)
            yield found

    @property
    def is_whole(self) -> bool:
        """True if the last input has been taken, or yielded by ahead()."""
        return self._end is not None and self._end.error is None

    def has_many(self, many: int) -> bool:
        """Return True if there are at least `many` inputs, or if the first ones take so long that there may be."""
        num = sum(1 for _ in islice(self.ahead(_MAX_WAIT_S), many))
        return num >= many or not self.is_whole

    def _next(self, max_wait_s: float | None = None) -> Source | Failure | None:
        """Take an input from the queue; None: there are no more, or none has come in time."""
        if self._end is not None:
            return None
        try:
            found = self._found.get(timeout=max_wait_s)
        except Empty:
            return None
        if isinstance(found, _End):
            self._end = found
            return None
        return found

    def _list(self, inputs: Sequence[str]) -> None:
        number = 0
        try:
            for found in sources(inputs, self.left_out, self.repeats):
                number += 1
                self._found.put(found)
                while self._found.qsize() > _MAX_AHEAD:
                    time.sleep(_PAUSE_S)
            self.number = number
            self._found.put(_End())
        except BaseException as error:  # raised in the thread that iterates
            self._found.put(_End(error))
