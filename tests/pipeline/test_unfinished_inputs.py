"""Inputs that a second reader goes on with: each comes to one of both."""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue
from threading import Event, Thread

import pytest

from fastscribe.pipeline.windows import UnfinishedInputs
from fastscribe.types import Failure, Source


def source(index: int) -> Source:
    return Source(f"{index}", f"{index}", f"{index}", index=index)


def sources(number: int, closed: list[bool]) -> Generator[Source | Failure, None, None]:
    """Yield sources; a flag says when the generator has ended."""
    try:
        yield from map(source, range(number))
    finally:
        closed.append(True)


def test_a_second_reader_goes_on_with_what_has_no_result() -> None:
    closed: list[bool] = []
    inputs = UnfinishedInputs(sources(6, closed))
    first = inputs.read()
    assert [next(first).index for _ in range(4)] == [0, 1, 2, 3]
    inputs.finish(2)
    taken = inputs.stop()
    assert [one.index for one in taken] == [0, 1, 3]
    assert not list(first) and not closed, "a reader that is stopped leaves the source to the other"
    first.close()
    assert [one.index for one in inputs.read(taken[1:])] == [1, 3, 4, 5] and closed


class Typed:
    """Inputs that come one by one, as paths from a terminal do, and a thread that waits for them."""

    def __init__(self) -> None:
        self.typed: SimpleQueue[Source | None] = SimpleQueue()
        self.asked: SimpleQueue[bool] = SimpleQueue()
        self.closed = Event()
        self.found: list[Source | Failure] = []
        self.inputs = UnfinishedInputs(self._sources())
        self.reader = Thread(target=lambda: self.found.extend(self.inputs.read()), daemon=True)
        self.reader.start()
        self.asked.get(timeout=60)

    def _sources(self) -> Generator[Source | Failure, None, None]:
        try:
            while True:
                self.asked.put(True)
                if (one := self.typed.get()) is None:
                    return
                yield one
        finally:
            self.closed.set()


def test_what_comes_to_a_reader_that_was_stopped_is_not_lost() -> None:
    waiting = Typed()
    waiting.typed.put(source(0))
    waiting.asked.get(timeout=60)
    taken = waiting.inputs.stop()
    second = waiting.inputs.read(taken)
    assert [one.index for one in taken] == [0] and next(second).index == 0
    waiting.typed.put(source(1))
    waiting.reader.join(60)
    assert next(second).index == 1
    waiting.typed.put(None)
    assert not list(second) and [one.index for one in waiting.found] == [0]


def test_a_source_that_waits_is_closed_once_its_next_input_has_come() -> None:
    waiting = Typed()
    waiting.inputs.close()
    assert not waiting.closed.is_set()
    waiting.typed.put(source(0))
    waiting.reader.join(60)
    assert waiting.closed.is_set() and not waiting.found


@pytest.mark.parametrize("how", ["closed early", "stopped late"])
def test_a_reader_that_ends_before_it_is_stopped_leaves_the_source_to_the_other(how: str) -> None:
    """As when a thread hears that its windows are closed before anyone has asked for the rest."""
    closed: list[bool] = []
    inputs = UnfinishedInputs(sources(4, closed))
    first = inputs.read()
    assert next(first).index == 0
    if how == "closed early":
        first.close()
    taken = inputs.stop()
    second = inputs.read(taken)
    assert [next(second).index for _ in range(3)] == [0, 1, 2] and not closed
    inputs.close()
    assert closed and not list(second)


def test_an_error_of_the_source_comes_to_the_second_reader_too() -> None:
    def own_sources() -> Generator[Source | Failure, None, None]:
        yield source(0)
        raise OSError("the list cannot be read")

    inputs = UnfinishedInputs(own_sources())
    with pytest.raises(OSError, match="the list"):
        list(inputs.read())
    second = inputs.read(inputs.stop())
    assert next(second).index == 0
    with pytest.raises(OSError, match="the list"):
        next(second)
