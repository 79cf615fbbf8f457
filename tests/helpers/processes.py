"""The program as a process: in a fork of the warm process, from nothing, or on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Literal

from tests.helpers.warm_process import WARM

fastscribe = WARM.run


def command(*arguments: object) -> list[str]:
    """What starts the program from nothing."""
    return [sys.executable, "-m", "fastscribe", *map(str, arguments)]


def on_terminal(
    arguments: list[str], stream: Literal["stdout", "stderr"] = "stderr", **variables: str
) -> tuple[int, bytes]:
    """Run with one stream on a pseudo-terminal of 300 columns, which has colours unless the variables say otherwise.

    Returns:
        The exit code and everything that the terminal gets.
    """
    import pty

    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    terminal = {"TERM": "xterm-256color", "COLUMNS": "300"}
    process = subprocess.Popen(arguments, env=plain | terminal | variables, **{stream: theirs})
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other end has closed
            break
    os.close(ours)
    return process.wait(60), seen
