from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from queue import SimpleQueue

import pytest

from fastscribe.pipeline import prefetch, window_buffer
from fastscribe.pipeline.interfaces import IDLE
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.window_buffer import AHEAD_PER_THREAD, PreparationGroup, Preparers, WindowBuffer, WindowSize

THREADS = 2


def seconds(item: int) -> float:
    return 10.0


@pytest.fixture
def pool() -> Iterator[ReplacingThreadPool]:
    with closing(ReplacingThreadPool(THREADS, "sorted")) as pool:
        yield pool


def same(item: int) -> int:
    return item


def buffered(
    source, pool: ReplacingThreadPool, most: int, max_s: float = 1e9, prepare=same, wait_s: float = 1.0, **size: float
) -> WindowBuffer:
    return WindowBuffer(source, Preparers.threads(prepare), seconds, pool, WindowSize(most, max_s, wait_s, **size))


def gathered(source, pool: ReplacingThreadPool, most: int, max_s: float = 1e9) -> list[list[int]]:
    return [window for window in buffered(source, pool, most, max_s) if window is not IDLE]


def numbers(count: int, taken: list[int] | None = None) -> Generator[int, None, None]:
    """Yield numbers; those that were asked for come into `taken`."""
    for number in range(count):
        if taken is not None:
            taken.append(number)
        yield number


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
def test_window_sizes_depend_on_inputs_only(pool, count: int, most: int, sizes: list[int]) -> None:
    found = gathered(numbers(count), pool, most)
    assert [item for window in found for item in window] == list(range(count))
    assert [len(window) for window in found] == sizes


def test_window_closes_after_enough_audio(pool) -> None:
    assert [len(window) for window in gathered(numbers(100), pool, 1000, max_s=300.0)] == [30, 30, 30, 10]


def test_window_closes_after_enough_memory_and_no_more_is_read(pool) -> None:
    taken: list[int] = []
    windows = []
    memory = lambda item: 100 if item < 24 else 9999  # noqa: E731
    size = WindowSize(1000, 1e9, 1.0, num_bytes=1000)
    for window in WindowBuffer(numbers(25, taken), Preparers.threads(same), seconds, pool, size, memory):
        if window is not IDLE:
            windows.append(window)
            assert len(taken) <= sum(map(len, windows)) + 10
    assert [len(window) for window in windows] == [10, 10, 5]


def test_one_window_is_prefetched(pool) -> None:
    taken: list[int] = []
    found = iter(buffered(numbers(1000, taken), pool, 10))
    window = next(window for window in found if window is not IDLE)
    assert window == list(range(10))
    wait_until(lambda: len(taken) == 20)
    time.sleep(0.05)
    assert len(taken) == 20


def test_items_in_preparation_are_limited(pool) -> None:
    taken: list[int] = []
    release = threading.Event()
    opened = buffered(numbers(1000, taken), pool, 1000, prepare=lambda item: release.wait(60) and item)
    most = THREADS * AHEAD_PER_THREAD + THREADS  # hung items do not count
    wait_until(lambda: len(taken) >= most - THREADS)
    time.sleep(0.05)
    assert most - THREADS <= len(taken) <= most
    release.set()
    opened.close()


def test_items_that_hold_memory_are_prepared_as_a_window_holds_them(pool) -> None:
    """At first an item counts as 40 seconds long, later as the mean of those that were prepared: 10 seconds."""
    taken: list[int] = []
    release = threading.Event()
    prepare = lambda item: release.wait(60) and str(item)  # noqa: E731
    opened = buffered(numbers(12, taken), pool, 1000, 100.0, prepare, expected_s=40.0)
    wait_until(lambda: len(taken) >= 2)
    time.sleep(0.05)
    assert len(taken) == 2
    release.set()
    windows = [window for window in opened if window is not IDLE]
    assert windows == [[str(number) for number in range(10)], ["10", "11"]]


def wait_until(condition) -> None:
    event = threading.Event()
    for _ in range(500):
        if condition():
            return
        event.wait(0.01)


def test_idle_comes_before_the_wait_for_a_window_to_be_full(pool) -> None:
    more = threading.Event()

    def source() -> Generator[int, None, None]:
        yield 1
        more.wait()
        yield 2

    buffer = buffered(source(), pool, 2, wait_s=600.0)
    found = iter(buffer)
    wait_until(lambda: buffer.queued()[0] == 1)
    assert next(found) is IDLE
    more.set()
    assert [window for window in found if window is not IDLE] == [[1, 2]]


@pytest.mark.parametrize(("num_bytes", "wait_s"), [(9, 0.05), (0, 1.0)])
def test_data_of_a_server_wait_until_no_others_come_and_files_longer(pool, monkeypatch, num_bytes, wait_s) -> None:
    """No earlier than after IDLE, when the model has nothing else."""
    more, now = threading.Event(), [0.0]
    monkeypatch.setattr(window_buffer, "monotonic", lambda: now[0])

    def source() -> Generator[int, None, None]:
        yield 1
        more.wait()

    size = WindowSize(100, 1e9, 1.0)
    found = iter(buffer := WindowBuffer(source(), Preparers.threads(same), seconds, pool, size, lambda item: num_bytes))
    wait_until(lambda: buffer.queued()[0] == 1)
    for now[0] in (0.0, wait_s - 0.01):
        assert next(found) is IDLE
    now[0] = wait_s
    assert next(found) == [1]
    more.set()


def test_no_text_that_threads_finish_waits_long_for_a_window(pool, monkeypatch) -> None:
    """While no window is ready, the run takes what is finished meanwhile at each IDLE."""
    waits, more = list[float](), threading.Event()

    class Timed(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None:
                waits.append(timeout)
            return super().wait(timeout)

    monkeypatch.setattr(window_buffer, "Condition", Timed)

    def source() -> Generator[int, None, None]:
        more.wait()
        yield 1

    found = iter(buffered(source(), pool, 100))
    assert [next(found) for _ in range(4)] == [IDLE] * 4
    assert len(waits) >= 3 and max(waits) <= 0.05
    more.set()
    assert [window for window in found if window is not IDLE] == [[1]]


def test_source_error_is_raised_after_its_items(pool) -> None:
    def source() -> Generator[int, None, None]:
        yield 1
        raise ValueError("no such manifest")

    found = iter(buffered(source(), pool, 100))
    assert next(window for window in found if window is not IDLE) == [1]
    with pytest.raises(ValueError, match="no such manifest"):
        list(found)


def test_close_ends_the_thread_and_the_source(pool) -> None:
    closed = threading.Event()

    def source() -> Generator[int, None, None]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    opened = buffered(source(), pool, 5)
    next(window for window in opened if window is not IDLE)
    opened.close()
    assert closed.wait(10)
    opened._thread.join(10)
    assert not opened._thread.is_alive()


def test_a_closed_buffer_whose_source_waits_holds_no_group(pool) -> None:
    """Groups for other processes hold the memory that these share."""
    typed: SimpleQueue[int] = SimpleQueue()
    begun = threading.Event()

    class Hanging(PreparationGroup[int, int]):
        def start(self, *_: object) -> None:
            begun.set()

    def source() -> Generator[int, None, None]:
        while True:
            yield typed.get()

    def make(sources: Sequence[int]) -> Hanging:
        groups.append(Hanging(same, sources))
        return groups[-1]

    groups: list[Hanging] = []
    typed.put(1)
    opened = WindowBuffer(source(), Preparers(make), seconds, pool, WindowSize(5, 1e9, 1.0))
    assert begun.wait(10)
    [held] = map(weakref.ref, groups)
    maker = weakref.ref(make)
    groups.clear()
    opened.close()
    del make
    assert held() is None and maker() is None
    typed.put(2)
    opened._thread.join(10)
    assert not opened._thread.is_alive() and not groups


@pytest.mark.parametrize("error", [KeyError("no"), SystemExit(3), MemoryError()])
def test_prepare_error_is_raised_after_earlier_items(pool, error: BaseException) -> None:
    def prepare(item: int) -> int:
        if item == 20:
            raise error
        return item

    windows = iter(buffered(numbers(100), pool, 1000, prepare=prepare))
    assert next(window for window in windows if window is not IDLE) == list(range(20))
    with pytest.raises(type(error)):
        list(windows)


def test_skipped_items_do_not_fill_a_window(pool) -> None:
    buffer = buffered(numbers(5000), pool, 10, prepare=lambda item: item if item % 100 == 0 else None)
    found = [window for window in buffer if window is not IDLE]
    assert found == [list(range(first, first + 1000, 100)) for first in range(0, 5000, 1000)]
    assert buffer.num_skipped == 4950


# --- groups, in an iteration that never waits ------------------------------------------------------------------------


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def patient(monkeypatch) -> None:
    """Nothing happens only because time passes."""
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 600.0)
    monkeypatch.setattr(window_buffer, "_IDLE_S", 600.0)


def grouped(
    source, pool, woken: threading.Event, most: int = 1000, prepare=same, chunk: int = 32, wait_s: float = 600.0
):
    helpers = Preparers(partial(PreparationGroup[int, int], prepare), chunk, woken.set)
    return WindowBuffer(source, helpers, seconds, pool, WindowSize(most, 1e9, wait_s))


def polled(windows: Iterator, number: int) -> list[list[int]]:
    """Return windows until they have so many items. The buffer is asked again and again."""
    found: list[list[int]] = []
    for _ in range(2000):
        window = next(windows)
        if window is IDLE:
            time.sleep(0.005)
        else:
            found.append(window)
        if sum(map(len, found)) >= number:
            return found
    raise AssertionError(f"only {found} came")


def test_an_iteration_that_is_woken_never_waits(pool, patient, woken: threading.Event) -> None:
    """Neither for a first item nor for a window that is not full."""
    begins, more = threading.Event(), threading.Event()

    def source() -> Generator[int, None, None]:
        begins.wait(60)
        yield from range(8)
        more.wait(60)

    buffer = grouped(source(), pool, woken, chunk=4)
    windows = iter(buffer)
    assert [next(windows) for _ in range(5)] == [IDLE] * 5
    begins.set()
    wait_until(lambda: buffer.queued()[0] == 8)
    assert [next(windows) for _ in range(5)] == [IDLE] * 5
    more.set()
    assert polled(windows, 8) == [list(range(8))]
    assert list(windows) == []


def test_each_window_comes_after_a_wake(pool, patient, woken: threading.Event) -> None:
    """Groups are not divided, so a window may be larger by a group. Its size is no matter of timing."""
    windows = iter(grouped(numbers(250), pool, woken, most=100))
    sizes: list[int] = []
    while sum(sizes) < 250:
        assert woken.wait(60)
        woken.clear()
        while (window := next(windows)) is not IDLE:
            sizes.append(len(window))
            if sum(sizes) == 250:
                break
    assert sizes == [128, 122]
    assert list(windows) == []


def test_a_group_of_a_slow_source_is_as_large_as_it_gets(pool, woken: threading.Event) -> None:
    more = threading.Event()

    def source() -> Generator[int, None, None]:
        yield from range(3)
        more.wait(60)
        yield 3

    windows = iter(grouped(source(), pool, woken, wait_s=0.0))
    assert [item for window in polled(windows, 3) for item in window] == [0, 1, 2]
    more.set()
    assert polled(windows, 1) == [[3]]


def test_an_item_that_hangs_delays_no_other_of_its_group(pool, impatient, woken: threading.Event) -> None:
    release = threading.Event()
    prepare = lambda item: release.wait(60) and item if item == 3 else item  # noqa: E731
    windows = iter(grouped(numbers(8), pool, woken, prepare=prepare, chunk=8, wait_s=0.05))
    assert sorted(item for window in polled(windows, 7) for item in window) == [0, 1, 2, 4, 5, 6, 7]
    assert next(windows) is IDLE
    release.set()
    assert polled(windows, 1) == [[3]]
    assert list(windows) == []
