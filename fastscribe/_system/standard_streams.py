"""Prepare the standard streams: those that are closed when the process starts (`2>&-` in a shell), and their encoding."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from fastscribe._system.text_layout import escaped
from fastscribe.errors import FastscribeError


def open_closed_streams() -> None:
    """Open the null device for each closed file descriptor from 0 to 2, and give Python a stderr.

    Otherwise the next file that is opened would get a closed stream's number, and a library's prints would go into it.
    sys.stdin and sys.stdout stay None if they were, and commands that need them report it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lasts


def write_utf8() -> None:
    """Make stdout the same bytes on every system: UTF-8 and plain line ends, also where Windows has a code page for files.

    What no encoding can hold, half a surrogate pair in a file name, is escaped. stderr keeps the terminal's encoding.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def log_to_stderr(line: str) -> None:
    """Print one line for the user on stderr."""
    print(f"fastscribe: {escaped(FastscribeError.spoken(line))}", file=sys.stderr)
