"""A process of a run, seen from the coordinator. Threads send its messages and receive its answers.

One thread, which never ends, starts all processes: Linux ends them with the thread that started them (signals.py).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, BinaryIO, Literal, TypeAlias, cast

from fastscribe.pipeline.workers.arena import SharedFile
from fastscribe.pipeline.workers.messages import Channel, packed

if sys.platform == "linux":
    import fcntl

# What each kind of process runs: a module with main().
PROGRAMS = {"device": "fastscribe.pipeline.workers.device", "helper": "fastscribe.pipeline.workers.helper"}
# sys.path is handed on: this process may have found the package in another way than a new interpreter would.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv.pop().split({!r}); "
    "from fastscribe._system.signals import end_with_parent; end_with_parent(); "
    "from fastscribe._system.signals import print_threads_on_request; print_threads_on_request(); "
    "from {} import main; main()"
)
_GONE_S = 10.0  # a process whose pipe has closed is about to end
_MAX_LINES = 1000
# Lines of print_threads_on_request(), which threads share. Those of a traceback have a comma before "in".
_STACK = re.compile(rb'(?:Thread|Current thread) 0x|  File ".*", line (?:\d+|\?+) in ')
_PIPE_BYTES = 1 << 20  # of a device's pipes; a user's pipes may have 64 MiB in all

_Popen: TypeAlias = "subprocess.Popen[bytes]"


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

    Raises:
        OSError: The system has no room for a process or its pipes.
        RuntimeError: It has none for their threads here.
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
        self._process = _popen(
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
        if program == "device":
            for pipe in (stdin, stdout):
                _enlarge(pipe)
        self._pipes = stdin, stdout
        self._channel = Channel(stdout, stdin)
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()  # None: the last
        sender = Thread(target=self._send_all, name=f"{name}-outbox", daemon=True)
        receiver = Thread(target=self._receive, args=(receive,), name=f"{name}-messages", daemon=True)
        try:
            sender.start()
            receiver.start()
        except RuntimeError:
            self.kill()
            if not sender.is_alive():
                stdin.close()
            stdout.close()
            raise
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

    def kill(self, timeout_s: float = _GONE_S) -> None:
        """End the process, which holds nothing that is not here too, and with it the threads. Wait until it is gone."""
        self.end()
        with suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it
            self._process.wait(timeout_s)
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


def kill_all(processes: Sequence[WorkerProcess]) -> None:
    """End processes side by side, and wait until they are gone."""
    for process in processes:
        process.end()
    deadline = time.monotonic() + _GONE_S
    for process in processes:
        process.kill(max(0.0, deadline - time.monotonic()))


class StderrRelay:
    """Passes on what the processes' libraries print, each line once but for stacks. All of them write to one pipe."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._lock = Lock()
        reader, self.descriptor = os.pipe()
        lines = os.fdopen(reader, "rb")
        try:
            Thread(target=self.pass_on, args=(lines,), name="workers-stderr", daemon=True).start()
        except RuntimeError:
            self.close()
            lines.close()
            raise

    def pass_on(self, lines: BinaryIO) -> None:
        """Print lines until no process writes any more. They go to the descriptor, as those of libraries in this process do."""
        with lines:
            for line in lines:
                is_stack = _STACK.match(line) is not None
                with self._lock:
                    is_new = not is_stack and line not in self._seen and len(self._seen) < _MAX_LINES
                    if is_new:
                        self._seen.add(line)
                if is_new or is_stack:
                    with suppress(OSError):
                        os.write(2, line)

    def close(self) -> None:
        """Close this process's end of the pipe."""
        os.close(self.descriptor)


def _popen(*arguments: Any, **rest: Any) -> _Popen:
    """Return what subprocess.Popen does in the thread that starts processes. Raises as it does, and RuntimeError."""
    future: Future[_Popen] = Future()
    start: Callable[[], _Popen] = partial[Any](subprocess.Popen, *arguments, **rest)
    _starts_of(os.getpid()).put((future, start))
    return future.result()


@cache
def _starts_of(_: int) -> SimpleQueue[tuple[Future[_Popen], Callable[[], _Popen]]]:
    """Return the queue of the thread that starts processes. A fork has the queue of its parent, but no such thread."""
    starts: SimpleQueue[tuple[Future[_Popen], Callable[[], _Popen]]] = SimpleQueue()

    def start_all() -> None:
        while True:
            future, start = starts.get()
            try:
                future.set_result(start())
            except BaseException as error:
                future.set_exception(error)
            del future, start  # they hold the process

    Thread(target=start_all, name="process-starter", daemon=True).start()
    return starts


def _enlarge(pipe: BinaryIO) -> None:
    """Let a pipe hold a whole message, where the system can: both sides go on then without a wait for each other."""
    if sys.platform == "linux":
        with suppress(OSError):  # a user's pipes may have reached the system's limit
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
