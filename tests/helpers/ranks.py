"""The ranks of a data-parallel run as forks of one process, which saves each its imports. For forks of the warm process."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import Pipe
from subprocess import Popen, TimeoutExpired
from typing import Any

IMPORTED = ("fastscribe.training.command", "fastscribe.training.trainer", "torch._dynamo")  # what every run imports
_KILL_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG: the run of a test that hangs ends with it


class Rank:
    """A fork that runs the module and the arguments which it gets, with the part of a Popen's interface that torchrun uses."""

    def __init__(self) -> None:
        given, self._to_it = Pipe(duplex=False)
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._to_it.close()
            os.setsid()
            ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
            arguments, environment, stderr = given.recv()
            if stderr:
                os.dup2(os.open(stderr, os.O_CREAT | os.O_WRONLY), 2)
            os.environ.update(environment)
            module, *sys.argv[1:] = arguments
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            sys.exit(0)
        given.close()

    def begin(self, arguments: Sequence[str], environment: dict[str, str], stderr: str = "") -> None:
        """Run a module with arguments. `stderr` is a new file for what it says, instead of this process's."""
        self._to_it.send((arguments, environment, stderr))
        self._to_it.close()

    def poll(self) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self, timeout: float = 60) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutExpired("a rank", timeout)
            time.sleep(0.05)
        return code


class Fresh:
    """A rank from nothing, where forks are not safe."""

    def begin(self, arguments: Sequence[str], environment: dict[str, str], stderr: str = "") -> None:
        with open(stderr or os.devnull, "w") as said:
            command = [sys.executable, "-m", *arguments]
            process = Popen(command, env=os.environ | environment, stderr=said if stderr else None)
        self.pid, self.poll, self.wait = process.pid, process.poll, process.wait


def ready() -> Sequence[Rank | Fresh]:
    """Two ranks that wait for their command lines. Before the caller has threads, which forks would lack."""
    if sys.platform != "linux":
        return [Fresh(), Fresh()]
    for name in IMPORTED:
        import_module(name)
    return [Rank() for _ in range(2)]


def torchrun() -> None:
    """Run torchrun's command line of this process, whose two ranks are `-m fastscribe`."""
    ranks = iter(ready())
    handler = import_module("torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler")

    def popen(args: Sequence[str], env: dict[str, str], **_: Any) -> Rank | Fresh:
        assert args[:4] == (sys.executable, "-u", "-m", "fastscribe"), args
        rank = next(ranks)
        rank.begin(args[3:], env)
        return rank

    vars(handler)["Popen"] = popen
    import_module("torch.distributed.run").main()
