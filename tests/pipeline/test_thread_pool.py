"""Hung threads are replaced, busy ones are not, and none outlives close()."""

from __future__ import annotations

import threading
import time

import pytest

from fastscribe.pipeline import thread_pool
from fastscribe.pipeline.thread_pool import ReplacingThreadPool


def wait_until(condition) -> bool:
    give_up = time.monotonic() + 60
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.005)
    return condition()


def alive(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_tasks_start_in_order() -> None:
    done: list[int] = []
    one = ReplacingThreadPool(1, "in-order")
    for number in range(100):
        one.submit(lambda number=number: done.append(number))
    assert wait_until(lambda: len(done) == 100) and done == list(range(100))
    one.close()
    assert wait_until(lambda: not alive("in-order"))


def test_more_tasks_hang_than_there_are_threads(impatient) -> None:
    release, done = threading.Event(), threading.Event()
    two = ReplacingThreadPool(2, "hanging")
    for _ in range(7):
        two.submit(release.wait)
    two.submit(done.set)
    assert done.wait(60)
    assert 7 + 1 <= len(alive("hanging")) <= 2 + 7 + 1  # with the one that looks after them
    release.set()
    assert wait_until(lambda: len(alive("hanging")) == 3)  # the replaced threads have ended
    two.close()
    assert wait_until(lambda: not alive("hanging"))


def test_spare_threads_are_limited(impatient, monkeypatch) -> None:
    monkeypatch.setattr(thread_pool, "_MAX_SPARE", 3)
    release, begun = threading.Event(), []

    def hang() -> None:
        begun.append(1)
        release.wait()

    two = ReplacingThreadPool(2, "limited")
    for _ in range(9):
        two.submit(hang)
    assert wait_until(lambda: len(begun) == 5)
    time.sleep(0.3)
    assert len(begun) == 5
    release.set()
    assert wait_until(lambda: len(begun) == 9)
    two.close()


def test_busy_thread_is_not_replaced(impatient, monkeypatch) -> None:
    """A thread that uses the processor is left alone, because more threads would only slow it down."""
    monkeypatch.setattr(thread_pool, "STUCK_S", 0.5)  # on a busy machine it may wait for the processor for a while
    busy, ended = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            sum(range(1000))
        ended.set()

    one = ReplacingThreadPool(1, "busy")
    one.submit(work)
    assert busy.wait(60)
    others = set()
    while not ended.is_set():
        others |= {thread.ident for thread in alive("busy")}
        time.sleep(0.01)
    assert len(others) == 2  # it and the one that looks after it
    one.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_dead_thread_is_replaced(impatient) -> None:
    """Tasks must not raise; if one does, the others run all the same."""
    done = threading.Event()

    def end() -> None:
        raise SystemExit

    one = ReplacingThreadPool(1, "gone")
    one.submit(end)
    one.submit(done.set)
    assert done.wait(60)
    one.close()


def test_close_drops_pending_tasks() -> None:
    begun, release, done = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        release.wait(60)

    one = ReplacingThreadPool(1, "dropped")
    one.submit(first)
    one.submit(lambda: done.append(1))
    assert begun.wait(60)
    one.close()
    release.set()
    assert wait_until(lambda: not alive("dropped")) and not done
