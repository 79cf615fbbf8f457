"""Write a page or a result: atomically, and never over a file of another kind."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from fastscribe._system.file_kinds import InTheWay, starts_with
from fastscribe._system.safe_files import discard_temp, open_temp, write_atomic
from fastscribe.errors import OutputError, UsageError

GENERATOR = '<meta name="generator" content="fastscribe">'
_OURS = re.compile(rb"<!doctype html.*" + GENERATOR.encode(), re.DOTALL)


def is_page(path: Path) -> bool:
    """Return True if a file is a page of ours, or empty."""
    return starts_with(path, _OURS)


def check_page(path: Path) -> Path:
    """Check the path of a page, as check_place() does."""
    return check_place("--report-html", path, is_page, "page of fastscribe's")


def check_place(option: str, path: Path, may_go: Callable[[Path], bool], kind: str) -> Path:
    """Check before a long run that a file can be written.

    Args:
        option: the option that names the path, for the message.
        may_go: returns True if an existing file may be replaced: it is of this `kind` and ours, or empty.

    Returns:
        The path with symbolic links resolved.

    Raises:
        UsageError: the path cannot be written, or another file has it.
    """
    place = Path(os.path.realpath(path))
    try:
        if place.exists() and not stat.S_ISREG(place.stat().st_mode):
            raise UsageError(f"{option} {path}: there is something that is no file: name another place")
        if place.exists() and not may_go(place):
            raise UsageError(f"{option} {path}: there is a file that is no {kind}: name another place")
        open_temp(place).close()
        discard_temp(place)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error.strerror or error}") from error
    return place


def write_page(path: Path, text: str, may_go: Callable[[Path], bool] = is_page) -> None:
    """Replace a file atomically and durably if `may_go` allows it; by default a page may be replaced.

    Raises:
        OutputError: the file keeps its old content.
    """
    try:
        if path.exists() and not may_go(path):
            raise InTheWay(path)
        write_atomic(path, text.encode())
    except OSError as error:
        raise OutputError(str(path), error) from error
