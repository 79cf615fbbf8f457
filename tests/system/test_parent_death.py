"""No process outlives the one that started it, and none ends before it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from fastscribe._system import signals
from tests.helpers.processes import still_running

PATIENCE_S = 60.0

pytestmark = pytest.mark.posix


@contextmanager
def coordinator() -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A process, and the one that a thread of it, which has ended, has started. That hangs, if it still lives."""
    command = [sys.executable, "-m", "tests.helpers.hung_process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = psutil.Process(int(parent.stdout.readline()))
            assert parent.stdout.readline() == "hangs\n"
            try:
                yield parent, child
            finally:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        finally:
            parent.kill()


@pytest.mark.linux
def test_a_process_that_hangs_in_a_call_ends_with_its_coordinator_and_not_with_the_thread_that_started_it() -> None:
    with coordinator() as (parent, child):
        time.sleep(0.2)
        assert still_running([child], 0) and parent.poll() is None
        parent.kill()
        assert not still_running([child], PATIENCE_S)


# A child that says when it has asked, whatever its parent has done by then.
CHILD = """
import os, sys, time
time.sleep(float(sys.argv[1]))
from fastscribe._system import signals
from tests.helpers.processes import still_running
signals._PARENT_S = 0.05
if sys.argv[2] == "refused":
    signals._is_ended_by_kernel = lambda: False
signals.end_with_parent()
print("asked", flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", *sys.argv[2:]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def started(parent_s: float, child_s: float, prctl: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    command = [sys.executable, "-c", PARENT, str(parent_s), CHILD, str(child_s), prctl]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, psutil.Process(int(parent.stdout.readline()))


@pytest.mark.parametrize("prctl", ["allowed", "refused"])
def test_a_process_ends_with_its_parent_where_the_kernel_does_nothing(prctl: str) -> None:
    """Someone else holds the other end of its pipe, so that it does not close: a program that forks."""
    parent, child = started(600, 0, prctl)
    assert parent.stdout is not None
    with parent:
        assert parent.stdout.readline() == "asked\n"
        other = os.open(f"/proc/{parent.pid}/fd/{pipe_of(parent.pid)}", os.O_WRONLY) if sys.platform == "linux" else -1
        parent.kill()
        assert not still_running([child], PATIENCE_S)
        if other >= 0:
            os.close(other)


def pipe_of(pid: int) -> int:
    """Return the number of the only pipe that a process writes to, beside its standard streams."""
    [found] = [
        int(name)
        for name in os.listdir(f"/proc/{pid}/fd")
        if int(name) > 2 and os.readlink(f"/proc/{pid}/fd/{name}").startswith("pipe:")
    ]
    return found


def test_a_process_whose_parent_has_ended_before_it_could_ask_ends_at_once() -> None:
    parent, child = started(0, 0.5, "allowed")
    assert parent.stdout is not None
    with parent:
        assert not still_running([child], PATIENCE_S) and parent.stdout.read() == ""


def test_a_c_library_without_the_call_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert signals._is_ended_by_kernel() is False
