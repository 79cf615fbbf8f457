from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from fastscribe.pipeline import sort_buffer
from fastscribe.pipeline.sort_buffer import SortBuffer


def seconds(item: int) -> float:
    return 10.0


def gathered(source, most: int, max_s: float = 1e9) -> list[list[int]]:
    return [window for window in SortBuffer(source, seconds, most, max_s) if window]


def numbers(count: int) -> Generator[int, None, None]:
    yield from range(count)


@pytest.mark.parametrize(
    ("count", "most", "sizes"),
    [
        (0, 100, []),
        (1, 100, [1]),
        (250, 100, [100, 100, 50]),
        (6000, 20_000, [1000, 1500, 2250, 1250]),
        (12_000, 2000, [1000, 1500, 2000, 2000, 2000, 2000, 1500]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_sizes_depend_on_the_inputs_alone(count: int, most: int, sizes: list[int]) -> None:
    found = gathered(numbers(count), most)
    assert [item for window in found for item in window] == list(range(count))
    assert [len(window) for window in found] == sizes


def test_hours_of_audio_close_a_window() -> None:
    assert [len(window) for window in gathered(numbers(100), 1000, max_s=300.0)] == [30, 30, 30, 10]


def test_the_next_window_is_gathered_meanwhile_and_no_more() -> None:
    taken: list[int] = []

    def source() -> Generator[int, None, None]:
        for number in range(1000):
            taken.append(number)
            yield number

    found = iter(SortBuffer(source(), seconds, 10, 1e9))
    window = next(window for window in found if window)
    assert window == list(range(10))
    wait_until(lambda: len(taken) == 21)  # ten lie ready, one is in hand
    assert len(taken) == 21


def wait_until(condition) -> None:
    event = threading.Event()
    for _ in range(500):
        if condition():
            return
        event.wait(0.01)


def test_a_slow_source_lets_go_of_what_it_has(monkeypatch) -> None:
    monkeypatch.setattr(sort_buffer, "_MAX_WAIT_S", 0.05)
    more = threading.Event()

    def source() -> Generator[int, None, None]:
        yield 1
        yield 2
        more.wait()
        yield 3

    found = iter(SortBuffer(source(), seconds, 100, 1e9))
    first = next(found)
    assert (first or next(found)) == [1, 2]
    assert next(found) == []  # "let go of results"; only then does the next step wait
    more.set()
    assert next(found) == [3]
    assert list(found) == []


def test_who_holds_back_results_is_asked_again_and_again(monkeypatch) -> None:
    monkeypatch.setattr(sort_buffer, "_IDLE_S", 0.01)
    more = threading.Event()

    def source() -> Generator[int, None, None]:
        more.wait()
        yield 1

    found = iter(SortBuffer(source(), seconds, 100, 1e9))
    assert [next(found) for _ in range(5)] == [[]] * 5
    more.set()
    assert [window for window in found if window] == [[1]]


def test_what_the_source_raises_is_raised_here_after_its_items() -> None:
    def source() -> Generator[int, None, None]:
        yield 1
        raise ValueError("no such manifest")

    found = iter(SortBuffer(source(), seconds, 100, 1e9))
    assert next(window for window in found if window) == [1]
    with pytest.raises(ValueError, match="no such manifest"):
        list(found)


def test_closing_ends_the_thread_and_the_source() -> None:
    closed = threading.Event()

    def source() -> Generator[int, None, None]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    opened = SortBuffer(source(), seconds, 5, 1e9)
    next(window for window in opened if window)
    opened.close()
    assert closed.wait(10)
    opened._thread.join(10)
    assert not opened._thread.is_alive()
