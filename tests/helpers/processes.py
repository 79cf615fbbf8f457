"""The program as a process: in a fork of the warm process, in a fresh one, or on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Literal

from tests.helpers.warm_process import WARM

fastscribe = WARM.run


def command(*arguments: object) -> list[str]:
    """The command that starts the program in a fresh process."""
    return [sys.executable, "-m", "fastscribe", *map(str, arguments)]


def on_terminal(
    arguments: list[str], stream: Literal["stdout", "stderr"] = "stderr", columns: int = 300, **variables: str
) -> tuple[int, bytes]:
    """Run with one stream on a pseudo-terminal, which has colours unless the variables say otherwise.

    Returns:
        The exit code and everything that the terminal gets.
    """
    import pty

    ours, theirs = pty.openpty()
    set_columns(theirs, columns)
    process = subprocess.Popen(arguments, env=terminal_environment(**variables), **{stream: theirs})
    os.close(theirs)
    seen = b""
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
