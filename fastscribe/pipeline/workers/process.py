"""A device's process, seen from the coordinator. Threads send its messages, receive its answers and what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, BinaryIO, cast

from fastscribe.pipeline.workers.devices import Device
from fastscribe.pipeline.workers.messages import Channel, Start

# sys.path is handed on: this process may have found the package in another way than a new interpreter would.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv.pop().split({!r}); from fastscribe.pipeline.workers.worker import main; main()"
)
_GONE_S = 10.0  # a process whose pipe has closed is about to end
_MAX_LINES = 1000


class WorkerProcess:
    """The process of a device.

    Args:
        device: The device.
        start: What it loads.
        receive: Called by a thread with this process and each message, and None after the last.
        relay: Prints what libraries write to its stderr.
    """

    def __init__(
        self, device: Device, start: Start, receive: Callable[[WorkerProcess, Any], None], relay: StderrRelay
    ) -> None:
        self.device = device
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(os.pathsep), os.pathsep.join(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | dict(device.variables),
            # Ctrl-C on a terminal would reach it before it can ignore that.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        stdin, stdout, stderr = (
            cast(BinaryIO, pipe) for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self._pipes = stdin, stdout, stderr
        self._channel = Channel(stdout, stdin)
        self._outbox: SimpleQueue[object] = SimpleQueue()  # None: the last
        Thread(target=self._send_all, name=f"{device.name}-outbox", daemon=True).start()
        Thread(target=self._receive, args=(receive,), name=f"{device.name}-messages", daemon=True).start()
        Thread(target=relay.pass_on, args=(stderr,), name=f"{device.name}-stderr", daemon=True).start()
        self.send(replace(start, device=device.kind, processors=device.processors, memory_share=device.memory_share))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Queue a message: the pipe of a process that hangs may be full. One that has died gets none."""
        self._outbox.put(message)

    def reason(self) -> str:
        """Return why the process, whose messages have ended, has died."""
        try:
            code = self._process.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
        return f"was killed by {name}" + (" (a system that runs out of memory does that)" if name == "SIGKILL" else "")

    def kill(self) -> None:
        """End the process, which holds nothing that is not here too, and with it the threads."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it
            self._process.wait(_GONE_S)
        self._outbox.put(None)

    def _send_all(self) -> None:
        with suppress(OSError, ValueError):  # it has died, and its receiver hears of it
            while (message := self._outbox.get()) is not None:
                self._channel.send(message)
        with suppress(OSError):
            self._pipes[0].close()

    def _receive(self, receive: Callable[[WorkerProcess, Any], None]) -> None:
        while (message := self._channel.receive()) is not None:
            receive(self, message)
        receive(self, None)
        self._pipes[1].close()


class StderrRelay:
    """Passes on what the processes' libraries print, each line once."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._lock = Lock()

    def pass_on(self, lines: BinaryIO) -> None:
        """Print a process's lines until it ends. They go to the descriptor, as those of libraries in this process do."""
        with lines:
            for line in lines:
                with self._lock:
                    is_new = line not in self._seen and len(self._seen) < _MAX_LINES
                    if is_new:
                        self._seen.add(line)
                if is_new:
                    with suppress(OSError):
                        os.write(2, line)
