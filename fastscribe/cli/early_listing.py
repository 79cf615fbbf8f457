"""A run's inputs, listed by a thread while the model loads: a folder on a network may take as long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Thread

from fastscribe.audio.inputs import expand
from fastscribe.audio.repeats import Repeats
from fastscribe.types import Failure, Source

_MAX_AHEAD = 50_000  # inputs that wait for the run, a kilobyte each
_PAUSE_S = 0.01


class EarlyListing:
    """The recordings that inputs name, for one run. Iterate over it once.

    Args:
        inputs: As for expand().

    Attributes:
        left_out: As for expand().
        repeats: As for expand().
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self.left_out: Counter[str] = Counter()
        self.repeats = Repeats()
        # None: there are no more. It has no limit of its own, and costs a twentieth of a queue that has one.
        self._found: SimpleQueue[Source | Failure | BaseException | None] = SimpleQueue()
        Thread(target=self._list, args=(inputs,), name="list-inputs", daemon=True).start()

    def __iter__(self) -> Iterator[Source | Failure]:
        while (found := self._found.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    def _list(self, inputs: Sequence[str]) -> None:
        try:
            for found in expand(inputs, left_out=self.left_out, repeats=self.repeats):
                self._found.put(found)
                while self._found.qsize() > _MAX_AHEAD:
                    time.sleep(_PAUSE_S)
            self._found.put(None)
        except BaseException as error:  # raised in the thread that iterates
            self._found.put(error)
