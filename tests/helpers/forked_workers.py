"""The processes of `--devices` in forks of the warm process, which saves each its imports: most of a device's start.

Signals, exit codes and pipes are those of a process from nothing. sitecustomize modules on PYTHONPATH run as there.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import subprocess
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from fastscribe.pipeline.workers import process
from tests.helpers.warm_process import WARM, exit_code

_ABOVE = 500  # descriptors that are used for nothing else


@dataclass(frozen=True)
class _Start:
    """What a process needs; its descriptors follow, with their numbers there."""

    module: str
    path: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: list[int]


@contextmanager
def forked_workers() -> Iterator[None]:
    """Let WorkerProcess start its processes so. Only Linux's forks are safe; elsewhere they start from nothing."""
    if sys.platform != "linux":
        yield
        return
    with pytest.MonkeyPatch.context() as patch, WARM.serve(__name__) as service:
        lock = Lock()

        def popen(arguments: list[str], **rest: Any) -> _Forked:
            with lock:
                return _Forked(service, arguments, **rest)

        patch.setattr(process, "subprocess", types.SimpleNamespace(**vars(subprocess) | {"Popen": popen}))
        yield


class _Forked:
    """What WorkerProcess uses of subprocess.Popen."""

    def __init__(
        self,
        service: Connection,
        arguments: list[str],
        stderr: int,
        env: dict[str, str],
        pass_fds: tuple[int, ...],
        **_,
    ) -> None:
        [module] = (name for name in process.PROGRAMS.values() if name in arguments[2])
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        self._status, status = Pipe(duplex=False)
        given = (stdin, stdout, stderr, *pass_fds, status.fileno())
        service.send(_Start(module, arguments[3].split(os.pathsep), env, os.getcwd(), [0, 1, 2, *pass_fds]))
        for descriptor in given:
            send_handle(service, descriptor, 0)
        for descriptor in (stdin, stdout):
            os.close(descriptor)
        status.close()
        self.stdin, self.stdout = os.fdopen(to_stdin, "wb"), os.fdopen(from_stdout, "rb")
        self.pid: int = self._status.recv()
        self._lock = Lock()
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self._code is None:
                if not self._status.poll(timeout):
                    raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
                self._code = self._status.recv()
        return self._code

    def kill(self) -> None:
        if self._code is None and not self._status.poll(0):  # else it has ended, and its number may be another's
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


# In a fork of the warm process


def serve(service: Connection) -> None:
    """Start processes until the connection closes."""
    for module in (*process.PROGRAMS.values(), "fastscribe.pipeline.engine", "fastscribe.pipeline.workers.stages"):
        importlib.import_module(module)
    while True:
        try:
            start: _Start = service.recv()
        except EOFError:
            break
        *descriptors, status = (recv_handle(service) for _ in range(len(start.descriptors) + 1))
        if os.fork() == 0:
            service.close()
            _watch(start, descriptors, Connection(status))
        for descriptor in (*descriptors, status):
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _watch(start: _Start, descriptors: list[int], status: Connection) -> None:
    """Start the process, say its number, and wait for it to say its exit code."""
    child = os.fork()
    if child == 0:
        status.close()
        _run(start, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    with suppress(BrokenPipeError):
        status.send(child)
        status.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def _run(start: _Start, descriptors: list[int]) -> None:
    import fcntl

    code = 1
    try:
        os.setsid()
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ABOVE) for descriptor in descriptors]
        for descriptor in descriptors:
            os.close(descriptor)
        for descriptor, number in zip(moved, start.descriptors, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(start.environment)
        os.chdir(start.folder)
        sys.path[:] = start.path
        for folder in start.environment.get("PYTHONPATH", "").split(os.pathsep):
            if (path := Path(folder, "sitecustomize.py")).exists():
                runpy.run_path(str(path))
        importlib.import_module(start.module).main()
        code = 0
    except SystemExit as left:
        code = exit_code(left)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
