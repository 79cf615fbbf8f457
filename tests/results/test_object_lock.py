"""The lock of an output URL: one run at a time, and a killed run's lock is taken over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastscribe.errors import UsageError
from fastscribe.results import object_lock
from fastscribe.results.object_lock import ObjectLock
from fastscribe.results.objects import ObjectFolder

URL = "memory://locked"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectFolder]:
    monkeypatch.setattr(object_lock, "STALE_S", 0.05)
    monkeypatch.setattr(object_lock, "POLL_S", 0.01)
    found = ObjectFolder(URL)
    found.delete([name for name, _ in found.list()])
    yield found
    found.close()


def acquired(
    folder: ObjectFolder, name: str, say: Callable[[str], object] = lambda message: pytest.fail(message)
) -> ObjectLock:
    lock = ObjectLock(folder, name)
    lock.acquire(lambda: [found for found, _ in folder.list()], say)
    return lock


def left_by(folder: ObjectFolder, **holder: Any) -> None:
    content = {"fastscribe_run": {"process": 7, "host": "other", "machine": "other", **holder}, "renewed": 1}
    folder.put("dead", json.dumps(content).encode())


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_second_run_is_refused_at_once(folder: ObjectFolder) -> None:
    first = acquired(folder, "first")
    with pytest.raises(UsageError, match=f"{URL}: another run is writing here .process {os.getpid()} on "):
        acquired(folder, "second")
    assert [name for name, _ in folder.list()] == ["first"]
    first.check()
    first.release()
    acquired(folder, "second").release()
    assert not list(folder.list())


def test_a_lock_that_nobody_renews_is_taken_over(folder: ObjectFolder) -> None:
    left_by(folder)
    said: list[str] = []
    lock = acquired(folder, "next", said.append)
    assert len(said) == 1 and "process 7 on other" in said[0]
    assert [name for name, _ in folder.list()] == ["next"]
    lock.release()


def test_a_run_on_another_machine_that_renews_its_lock(folder: ObjectFolder) -> None:
    left_by(folder)
    with pytest.raises(UsageError, match="process 8 on other"):
        acquired(folder, "next", lambda message: left_by(folder, process=8))
    acquired(folder, "next", lambda message: folder.delete(["dead"])).release()  # it ends while the next one waits


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_killed_run_of_this_machine_is_not_waited_for(folder: ObjectFolder) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for process, ticks in ((ended.pid, 1), (os.getpid(), 1)):  # the number may belong to another process by now
        left_by(folder, process=process, machine=object_lock._machine(), ticks=ticks)
        acquired(folder, "next").release()


def test_a_run_that_stood_still_notices_that_another_took_over(folder: ObjectFolder) -> None:
    lock = acquired(folder, "slow")
    folder.delete(["slow"])
    lock._renewed_s -= 1
    with pytest.raises(OSError, match="another one took over"):
        lock.check()
    lock.release()
    assert not list(folder.list())
