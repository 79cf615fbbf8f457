"""A process of a run, seen from the coordinator. Threads send its messages and receive its answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, BinaryIO, Literal, cast

from fastscribe.pipeline.workers.arena import SharedFile
from fastscribe.pipeline.workers.messages import Channel, packed

# What each kind of process runs: a module with main().
PROGRAMS = {"device": "fastscribe.pipeline.workers.device", "helper": "fastscribe.pipeline.workers.helper"}
# sys.path is handed on: this process may have found the package in another way than a new interpreter would.
_PROGRAM = "import sys; sys.path[:] = sys.argv.pop().split({!r}); from {} import main; main()"
_GONE_S = 10.0  # a process whose pipe has closed is about to end
_MAX_LINES = 1000
_PIPE_BYTES = 1 << 20


class WorkerProcess:
    """A device's process or a helper.

    Args:
        name: Its name, for threads.
        program: What it runs.
        start: Its first message.
        receive: Called by a thread with this process and each message, and None after the last.
        relay: Prints what libraries write to its stderr.
        variables: Environment variables that it needs.
        shared: Memory that it shares.
    """

    def __init__(
        self,
        name: str,
        program: Literal["device", "helper"],
        start: object,
        receive: Callable[[WorkerProcess, Any], None],
        relay: StderrRelay,
        variables: Mapping[str, str],
        shared: SharedFile,
    ) -> None:
        posix: dict[str, Any] = {} if os.name == "nt" else {"pass_fds": (shared.descriptor,)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(os.pathsep, PROGRAMS[program]), os.pathsep.join(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=relay.descriptor,
            env=os.environ | dict(variables),
            # Ctrl-C on a terminal would reach it before it can ignore that.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            **posix,
        )
        stdin, stdout = (cast(BinaryIO, pipe) for pipe in (self._process.stdin, self._process.stdout))
        for pipe in (stdin, stdout):
            _enlarge(pipe)
        self._pipes = stdin, stdout
        self._channel = Channel(stdout, stdin)
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()  # None: the last
        Thread(target=self._send_all, name=f"{name}-outbox", daemon=True).start()
        Thread(target=self._receive, args=(receive,), name=f"{name}-messages", daemon=True).start()
        self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Queue a message: the pipe of a process that hangs may be full. One that has died gets none.

        Raises what pickle raises if the message cannot be sent.
        """
        self._outbox.put(packed(message))

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

    def end(self) -> None:
        """End the process, and wait for nothing. Its messages end as those of one that dies."""
        self._process.kill()

    def kill(self) -> None:
        """End the process, which holds nothing that is not here too, and with it the threads."""
        self.end()
        with suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it
            self._process.wait(_GONE_S)
        self._outbox.put(None)

    def _send_all(self) -> None:
        with suppress(OSError, ValueError):  # it has died, and its receiver hears of it
            while (content := self._outbox.get()) is not None:
                self._channel.write(content)
        with suppress(OSError):
            self._pipes[0].close()

    def _receive(self, receive: Callable[[WorkerProcess, Any], None]) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                receive(self, message)
        finally:  # whatever a message was, the process counts as dead
            receive(self, None)
            self._pipes[1].close()


class StderrRelay:
    """Passes on what the processes' libraries print, each line once. All of them write to one pipe."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._lock = Lock()
        reader, self.descriptor = os.pipe()
        Thread(target=self.pass_on, args=(os.fdopen(reader, "rb"),), name="workers-stderr", daemon=True).start()

    def pass_on(self, lines: BinaryIO) -> None:
        """Print lines until no process writes any more. They go to the descriptor, as those of libraries in this process do."""
        with lines:
            for line in lines:
                with self._lock:
                    is_new = line not in self._seen and len(self._seen) < _MAX_LINES
                    if is_new:
                        self._seen.add(line)
                if is_new:
                    with suppress(OSError):
                        os.write(2, line)

    def close(self) -> None:
        """Close this process's end of the pipe."""
        os.close(self.descriptor)


def _enlarge(pipe: BinaryIO) -> None:
    """Let a pipe hold a whole message, where the system can: both sides go on then without a wait for each other."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # a user's pipes may have reached the system's limit
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
