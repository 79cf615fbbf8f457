"""A page's file, or a result's: there as a whole or not at all, and in the place of nothing else."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from fastscribe._system.safe_files import InTheWay, discard_temp, open_temp, starts_with, write_atomic
from fastscribe.errors import OutputError, UsageError

GENERATOR = '<meta name="generator" content="fastscribe">'
_OURS = re.compile(rb"<!doctype html.*" + GENERATOR.encode(), re.DOTALL)


def check_page(path: Path) -> Path:
    """check_place() for a page."""
    return check_place("--report-html", path, is_page, "page of fastscribe's")


def check_place(option: str, path: Path, may_go: Callable[[Path], bool], kind: str) -> Path:
    """The file that `path` leads to, once it is clear that it can be written, so that nobody learns otherwise hours later.

    `may_go` says of a file that is there whether it is of this `kind` and ours, or empty. Raises UsageError.
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


def write_page(path: Path, text: str, may_go: Callable[[Path], bool] | None = None) -> None:
    """Replace a file that may go, a page by default; on return it is on the disk.

    Raises:
        OutputError: Then what was there before still is.
    """
    try:
        if path.exists() and not (may_go or is_page)(path):
            raise InTheWay(path)
        write_atomic(path, text.encode())
    except OSError as error:
        raise OutputError(str(path), error) from error


def is_page(path: Path) -> bool:
    """Whether a file is a page of ours, or empty; not a recording, a transcript or someone's own page."""
    return starts_with(path, _OURS)
