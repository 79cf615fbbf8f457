"""Processes that gpu_check and its parts start, ask, and end with all that they started. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

from scripts.gpu.goals import Document
from scripts.gpu.plan import ROOT

MARK = "GPU_CHECK_WORKER_"  # begins the name of the environment variable that a worker and all that it starts have
_POLL_S = 0.25


@dataclass
class Worker:
    """A process that answers each line of JSON with one."""

    process: subprocess.Popen[bytes]
    mark: str = ""  # the name of its variable

    @classmethod
    def start(cls, command: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> Worker:
        """Start it, with `log` as its stderr."""
        mark = MARK + uuid4().hex
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**env, mark: "1"},
            cwd=ROOT,
            preexec_fn=os.setpgrp,  # a group to end as one; no session of its own, in which it might outlive us
        )
        return cls(process, mark)

    def run(self, request: Document, seconds: float, poll: Callable[[], None] = lambda: None) -> Document:
        """Return its answer, calling `poll` meanwhile; `status` alone if it ends early, or its time is up."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            code = self.process.poll()  # before its last answer is looked for; its children may hold its output open
            if select.select([self.process.stdout], [], [], min(left, _POLL_S))[0]:
                if line := self.process.stdout.readline():
                    answer: Document = json.loads(line)
                    return answer
                if code is None:
                    time.sleep(_POLL_S)  # it has closed its output, and ends
                    continue
            if code is not None:
                return {"status": f"failed: exit code {code}"}
            poll()
        return {"status": f"stopped after {seconds:.0f} s"}

    def end(self) -> None:
        """End the process, if it still runs, and all that it started, which would keep the GPU busy.

        A run's devices' processes and helpers have sessions of their own, which no signal to a group reaches: the mark does.
        """
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.kill()
        end_marked(self.mark)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that waits for a dead GPU cannot be ended
            self.process.wait(timeout=4)
        if self.process.stdout is not None:
            self.process.stdout.close()


def answer(reply_to: Callable[[Document], Document]) -> None:
    """Answer each line of stdin with one of stdout, until stdin ends. Other output goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(reply_to(json.loads(line))), file=replies, flush=True)


def end_marked(mark: str) -> None:
    """End the processes whose environment has the variable, whatever their parent is now."""
    sought, ended = f"{mark}=1".encode(), set[int]()
    while mark and (found := {pid for pid in running() if sought in environment_of(pid)} - ended):
        for pid in found:  # they may start others meanwhile
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended |= found


def running() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def environment_of(pid: int) -> list[bytes]:
    """Return the environment with which a process of this user was started; empty for others and for one that has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
