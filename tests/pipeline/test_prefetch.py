"""Groups come complete and in order; a slow one is overtaken and comes in parts; each call comes once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.pipeline import prefetch, thread_pool
from fastscribe.pipeline.prefetch import Group, Prefetcher
from fastscribe.pipeline.thread_pool import ReplacingThreadPool


class Numbers(Group):
    """A group of calls of a function, each with its number."""

    def __init__(self, numbers: range, function: Callable[[int], object]) -> None:
        super().__init__(len(numbers))
        self.numbers, self._function = numbers, function

    def call(self, index: int) -> None:
        self._function(self.numbers[index])


class Stream:
    """A prefetcher of groups of the given sizes, numbered in sequence."""

    def __init__(
        self, sizes: list[int], function: Callable[[int], object], threads: int, may_be_slow: bool = True
    ) -> None:
        self.wakeup, self.pool = threading.Event(), ReplacingThreadPool(threads, "ahead")
        self.prefetcher = Prefetcher[Numbers](self.pool, self.wakeup.set)
        first = 0
        for size in sizes:
            group = Numbers(range(first, first + size), function)
            group.may_be_slow = may_be_slow
            self.prefetcher.submit(group)
            first += size

    def __iter__(self) -> Iterator[list[int]]:
        while len(self.prefetcher) or self.prefetcher.has_late:
            self.wakeup.clear()
            if (part := self.prefetcher.poll()) is not None:
                group, done = part
                yield [group.numbers[index] for index in done]
            else:
                self.wakeup.wait(min(10.0, self.prefetcher.remaining_s()))

    def close(self) -> None:
        self.prefetcher.close()
        self.pool.close()


def groups_of(sizes: list[int]) -> list[list[int]]:
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [list(range(first, first + size)) for first, size in zip(firsts, sizes, strict=True)]


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), max_size=12),
    delays_ms=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    threads=st.integers(1, 5),
    may_be_slow=st.booleans(),
)
def test_groups_come_in_order(sizes: list[int], delays_ms: list[int], threads: int, may_be_slow: bool) -> None:
    def function(number: int) -> None:
        time.sleep(delays_ms[number % len(delays_ms)] / 1000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "MAX_WAIT_S", 20)
        with closing(Stream(sizes, function, threads, may_be_slow)) as stream:
            assert list(stream) == groups_of(sizes)


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), max_size=10),
    slow=st.sets(st.integers(0, 29), max_size=6),
    threads=st.integers(1, 4),
)
def test_each_call_comes_once_if_some_are_slow(sizes: list[int], slow: set[int], threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "MAX_WAIT_S", 0.01)
        patch.setattr(thread_pool, "STUCK_S", 0.015)
        patch.setattr(thread_pool, "_CHECK_INTERVAL_S", 0.005)
        with closing(Stream(sizes, lambda number: time.sleep(0.03 * (number in slow)), threads)) as stream:
            found = list(stream)
    assert sorted(number for numbers in found for number in numbers) == list(range(sum(sizes)))


def test_slow_group_does_not_block_others(impatient) -> None:
    release = threading.Event()
    with closing(Stream([3, 3, 3], lambda number: number != 1 or release.wait(60), 2)) as stream:
        found = iter(stream)
        first = [next(found) for _ in range(3)]
        assert sorted(first) == [[0, 2], [3, 4, 5], [6, 7, 8]]
        assert stream.prefetcher.has_late and not len(stream.prefetcher)
        release.set()
        assert list(found) == [[1]]


def test_a_group_that_may_not_be_slow_is_waited_for(impatient) -> None:
    with closing(Stream([2, 2, 2], lambda number: time.sleep(0.3 * (number == 1)), 2, may_be_slow=False)) as stream:
        assert list(stream) == [[0, 1], [2, 3], [4, 5]]


def test_slow_call_gets_a_grace_period(monkeypatch) -> None:
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 20)
    with closing(Stream([1] * 10, lambda number: time.sleep(0.1 * (number == 0)), 2)) as stream:
        assert next(iter(stream)) == [0]


@pytest.mark.parametrize("error", [KeyError("no"), SystemExit(3), MemoryError()])
def test_errors_are_kept_with_their_group(error: BaseException) -> None:
    def function(number: int) -> None:
        if number == 4:
            raise error

    with closing(Stream([3, 3, 3], function, 2)) as stream:
        groups = list(stream.prefetcher._groups)
        assert list(stream) == groups_of([3, 3, 3])
    assert [group.errors for group in groups] == [{}, {1: error}, {}]


def test_close_drops_pending_calls() -> None:
    begun, release, started = threading.Event(), threading.Event(), []

    def function(number: int) -> None:
        started.append(number)
        begun.set()
        release.wait(60)

    stream = Stream([5, 5], function, 1)
    assert begun.wait(60)
    stream.prefetcher.close()  # the pool keeps running
    release.set()
    ended = threading.Event()
    stream.pool.submit(ended.set)
    assert ended.wait(60) and started == [0]
    stream.pool.close()


def test_call_that_ends_between_two_looks_comes_once(monkeypatch) -> None:
    """The last call of a late group ends after poll() has seen the group incomplete and before it takes what is done."""
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 0.0)
    tasks: list[Callable[[], None]] = []

    class Pool:
        def submit(self, task: Callable[[], None]) -> None:
            tasks.append(task)

    class Racing(Numbers):
        runs_next = False

        @property
        def is_complete(self) -> bool:
            seen = super().is_complete
            if self.runs_next and tasks:
                tasks.pop(0)()
            return seen

    late = Racing(range(2), lambda number: None)
    prefetcher = Prefetcher[Numbers](Pool(), lambda: None)  # type: ignore[arg-type]
    prefetcher.submit(late)
    tasks.pop(0)()
    late.all_started = True
    assert prefetcher.poll() == (late, [0]) and prefetcher.has_late
    late.runs_next = True
    assert prefetcher.poll() == (late, [1])
    assert prefetcher.poll() is None and not prefetcher.has_late and not len(prefetcher)
