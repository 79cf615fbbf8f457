"""prefetch_map is map in threads: each item once, in order unless one is slow, a limited number ahead, and it can be closed."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.pipeline import prefetch, thread_pool
from fastscribe.pipeline.prefetch import AHEAD_PER_THREAD, prefetch_map


@pytest.fixture
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 0.05)
    monkeypatch.setattr(thread_pool, "STUCK_S", 0.1)
    monkeypatch.setattr(thread_pool, "_CHECK_INTERVAL_S", 0.02)


def assert_threads_end(name: str = "ahead") -> None:
    give_up = time.monotonic() + 60
    while alive(name) and time.monotonic() < give_up:
        time.sleep(0.005)
    assert not alive(name)


def alive(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(name)]


@settings(max_examples=50, deadline=None)
@given(delays_ms=st.lists(st.integers(0, 3), max_size=40), threads=st.integers(1, 5))
def test_it_is_map(delays_ms: list[int], threads: int) -> None:
    def function(item: tuple[int, int]) -> int:
        time.sleep(item[1] / 1000)
        return item[0]

    assert list(prefetch_map(function, enumerate(delays_ms), threads)) == list(range(len(delays_ms)))


@settings(max_examples=15, deadline=None)
@given(slow=st.sets(st.integers(0, 29), max_size=6), threads=st.integers(1, 4))
def test_each_item_comes_once_whatever_is_slow(slow: set[int], threads: int) -> None:
    def function(item: int) -> int:
        time.sleep(0.03 if item in slow else 0)
        return item

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "MAX_WAIT_S", 0.01)
        patch.setattr(thread_pool, "STUCK_S", 0.015)
        patch.setattr(thread_pool, "_CHECK_INTERVAL_S", 0.005)
        found = list(prefetch_map(function, range(30), threads))
    assert sorted(found) == list(range(30))


@settings(max_examples=30, deadline=None)
@given(count=st.integers(0, 30), taken=st.integers(0, 30), threads=st.integers(1, 4))
def test_closing_early_ends_the_threads(count: int, taken: int, threads: int) -> None:
    stream = prefetch_map(str, iter(range(count)), threads, "closing")
    for _ in range(min(count, taken)):
        next(stream)
    stream.close()
    assert_threads_end("closing")


@pytest.mark.parametrize("threads", [1, 3])
def test_hung_items_do_not_stop_the_rest(impatient, threads: int) -> None:
    """Even more of them than there are threads, and more than are looked ahead."""
    release = threading.Event()
    hung = set(range(0, 40, 2))
    looked_at: list[int] = []

    def items():
        for item in range(500):
            looked_at.append(item)
            yield item

    def function(item: int) -> int:
        if item in hung:
            release.wait()
        return item

    stream = prefetch_map(function, items(), threads)
    rest = [next(stream) for _ in range(500 - len(hung))]
    assert set(rest) == set(range(500)) - hung
    release.set()
    assert set(stream) == hung
    assert_threads_end()


def test_one_slow_item_is_waited_for_a_little(monkeypatch) -> None:
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 5)
    assert next(prefetch_map(lambda item: time.sleep(0.1 * (item == 0)) or item, range(10), 2)) == 0


def test_it_looks_ahead_so_far_only() -> None:
    taken = []

    def items():
        for number in range(10_000):
            taken.append(number)
            yield number

    stream = prefetch_map(str, items(), threads=2)
    for _ in range(5):
        next(stream)
    give_up = time.monotonic() + 60
    while len(taken) < 5 + 2 * AHEAD_PER_THREAD and time.monotonic() < give_up:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(taken) == 5 + 2 * AHEAD_PER_THREAD
    stream.close()


def test_what_is_there_is_given_out_while_the_source_waits() -> None:
    more = threading.Event()

    def items():
        yield from range(3)
        assert more.wait(60)
        yield 3

    stream = prefetch_map(str, items(), threads=2)
    assert [next(stream) for _ in range(3)] == ["0", "1", "2"]
    more.set()
    assert list(stream) == ["3"]


@pytest.mark.parametrize("error", [KeyError("no more"), SystemExit(3), MemoryError()])
def test_what_the_source_raises_comes_after_what_it_gave(error: BaseException) -> None:
    def items():
        yield 1
        raise error

    stream = prefetch_map(str, items(), threads=2)
    assert next(stream) == "1"
    with pytest.raises(type(error)):
        next(stream)
    assert_threads_end()


@pytest.mark.parametrize("error", [KeyError("no"), SystemExit(3), MemoryError()])
def test_what_the_function_raises_comes_in_its_place(error: BaseException) -> None:
    def function(item: int) -> int:
        if item == 20:
            raise error
        return item

    stream = prefetch_map(function, range(100), threads=3)
    assert [next(stream) for _ in range(20)] == list(range(20))
    with pytest.raises(type(error)):
        next(stream)
    assert_threads_end()


def test_no_thread_starts_before_it_is_asked() -> None:
    stream = prefetch_map(str, range(5), threads=2)
    assert not alive("ahead")
    stream.close()
