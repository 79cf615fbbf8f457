"""The inputs of a run, listed once, by a thread that begins before the model loads: a folder on a network may take as long.

Before the model loads, the command asks the first ones whether there is anything to do, and whether there are many; they stay
for the run. If the first 50,000 are done, it asks the others too, which do not stay: if there is something to do behind them,
they are listed again. The progress has their number from here: once all are listed, and for long lists before, by their size.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread

from fastscribe.audio.formats import list_kind
from fastscribe.audio.given import sources
from fastscribe.audio.input_names import Repeats
from fastscribe.types import Failure, Source

_MAX_AHEAD = 50_000  # inputs that wait for the run, a kilobyte each
_SAMPLE_BYTES = 1 << 20  # of a list, whose rows are about as long as its first ones
_PAUSE_S = 0.01
MAX_WAIT_S = 2.0  # for inputs that say how a run begins


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
        number: The number of recordings, of long lists about; None: not all are listed yet, and they are not all in lists.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self._inputs = inputs
        self._begin()

    def _begin(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.repeats = Repeats()
        self.number: int | None = None
        # It has no limit of its own, and costs a twentieth of a queue that has one.
        self._found: SimpleQueue[Source | Failure | _End] = SimpleQueue()
        self._held: deque[Source | Failure] = deque()  # which ahead() took from the queue
        self._passed = False  # inputs are neither held nor to come
        self._end: _End | None = None
        Thread(target=self._list, args=(self._found,), name="list-inputs", daemon=True).start()

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

    def whole(self) -> Iterator[Source | Failure]:
        """Yield all inputs. Only those of ahead() stay for the run, which needs begin_again() if it comes after all.

        Of inputs that can be read once (a pipe that holds a manifest), yield those of ahead() alone.
        """
        yield from self.ahead()
        if any(os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)) for path in self._inputs):
            return
        while (found := self._next()) is not None:
            self._passed = True
            yield found

    def begin_again(self) -> None:
        """List the inputs a second time if whole() has passed some of them."""
        if self._passed:
            self._begin()

    @property
    def is_whole(self) -> bool:
        """True if the last input has been taken, or yielded by ahead() or whole()."""
        return self._end is not None and self._end.error is None

    @property
    def is_empty(self) -> bool:
        """True if there is no input at all. It waits for the first one."""
        return not any(True for _ in self.ahead()) and self.is_whole

    def has_many(self, many: int) -> bool:
        """Return True if there are at least `many` inputs, or if the first ones take so long that there may be."""
        num = sum(1 for _ in islice(self.ahead(MAX_WAIT_S), many))
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

    def _list(self, queue: SimpleQueue[Source | Failure | _End]) -> None:
        number = 0
        try:
            for found in sources(self._inputs, self.left_out, self.repeats):
                number += 1
                queue.put(found)
                if number == _MAX_AHEAD:  # from here on the listing may wait for the run
                    self.number = _estimated_number(self._inputs)
                while queue.qsize() > _MAX_AHEAD and queue is self._found:
                    time.sleep(_PAUSE_S)
                if queue is not self._found:  # the listing has begun again
                    return
            self.number = number
            queue.put(_End())
        except BaseException as error:  # raised in the thread that iterates
            queue.put(_End(error))


def _estimated_number(inputs: Sequence[str]) -> int | None:
    """Return about how many recordings there are if all inputs are files; None: there are folders, archives or packed lists."""
    from fastscribe.audio.manifest import GZIP  # here, as most runs have no list

    number = 0
    for path in inputs:
        if not os.path.isfile(path) or list_kind(path) == "tar":
            return None
        if not list_kind(path):
            number += 1
            continue
        try:
            with open(path, "rb") as file:
                head, size = file.read(_SAMPLE_BYTES), os.path.getsize(path)
        except OSError:
            return None
        if head.startswith(GZIP) or b"\n" not in head:
            return None
        number += size * head.count(b"\n") // len(head)
    return number
