"""The program as a process: in a fork of the warm process, in a fresh one, or on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TextIO

import psutil

from tests.helpers.warm_process import WARM, Started, WarmProcess

fastscribe = WARM.run
Process = Started | subprocess.Popen[bytes]


def command(*arguments: object) -> list[str]:
    """The command that starts the program in a fresh process."""
    return [sys.executable, "-m", "fastscribe", *map(str, arguments)]


def still_running(processes: Iterable[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """Return those that do not end in time. A zombie has ended: the first process of some containers waits for none."""
    late_s, left = time.monotonic() + patience_s, list(processes)
    while (left := [one for one in left if not _has_ended(one)]) and time.monotonic() < late_s:
        time.sleep(0.02)
    return left


def _has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def refused(*arguments: object, **options: Any) -> str:
    """Return the line with which a command refuses what it is given: it has nothing else to say, and ends with 2."""
    done = fastscribe(*arguments, **options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


@contextmanager
def with_pipes(
    *arguments: object, env: dict[str, str] | None = None, warm: WarmProcess = WARM
) -> Iterator[tuple[Process, TextIO, TextIO, TextIO]]:
    """Begin a command; yields it and the other ends of its stdin, stdout and stderr. It is killed at the end.

    Another command can run meanwhile in a fork of another process than `warm`.
    """
    (stdin, given), (printed, stdout), (said, stderr) = os.pipe(), os.pipe(), os.pipe()
    process = warm.start(*arguments, stdin=stdin, stdout=stdout, stderr=stderr, env=env)
    for its_end in (stdin, stdout, stderr):
        os.close(its_end)
    with open(given, "w") as to_stdin, open(printed) as from_stdout, open(said) as from_stderr:
        try:
            yield process, to_stdin, from_stdout, from_stderr
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def on_terminal(
    *arguments: object,
    stream: Literal["stdout", "stderr"] = "stderr",
    columns: int = 300,
    is_fresh: bool = False,
    **variables: str,
) -> tuple[int, bytes]:
    """Run a command with one stream on a pseudo-terminal, which has colours unless the variables say otherwise.

    Args:
        arguments: Of the program.
        stream: The one on the terminal; the others are the null device.
        columns: Of the terminal.
        is_fresh: Start from nothing: imports take long enough for a progress bar to be drawn meanwhile.
        variables: Of the environment.

    Returns:
        The exit code and everything that the terminal gets.
    """
    import pty

    ours, theirs = pty.openpty()
    set_columns(theirs, columns)
    with open(os.devnull, "r+b") as nothing:
        streams = {"stdin": nothing.fileno(), "stdout": nothing.fileno(), "stderr": nothing.fileno(), stream: theirs}
        environment = terminal_environment(**variables)
        if is_fresh:
            process: Process = subprocess.Popen(command(*arguments), **streams, env=environment)
        else:
            process = WARM.start(*arguments, **streams, env=environment)
    os.close(theirs)
    seen = b""
    with process:
        while True:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # the other end has closed
                break
        os.close(ours)
        return process.wait(60), seen


def set_columns(terminal: int, columns: int) -> None:
    """Give a pseudo-terminal a size; its program gets SIGWINCH."""
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def terminal_environment(**variables: str) -> dict[str, str]:
    """The environment of a program on a terminal of its own."""
    ours = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    plain = {name: value for name, value in os.environ.items() if name not in ours}
    return plain | {"TERM": "xterm-256color"} | variables
