"""A page's file, or a result's: there as a whole or not at all, and in the place of nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fastscribe.errors import OutputError, UsageError
from fastscribe.unfinished import part_of

_START = b"<!doctype html"


def check_page(path: Path) -> Path:
    """check_place() for a page."""
    return check_place("--report-html", path, _is_page, "page")


def check_place(option: str, path: Path, may_go: Callable[[Path], bool], kind: str) -> Path:
    """The file that `path` leads to, once it is clear that it can be written, so that nobody learns otherwise hours later.

    `may_go` says of a file that is there whether it is of this `kind`, or empty. Raises UsageError.
    """
    place = Path(os.path.realpath(path))
    try:
        if place.exists() and not stat.S_ISREG(place.stat().st_mode):
            raise UsageError(f"{option} {path}: there is something that is no file: name another place")
        if place.exists() and not may_go(place):
            raise UsageError(f"{option} {path}: there is a file that is no {kind}: name another place")
        part = part_of(place)
        part.open("ab").close()
        part.unlink()
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error.strerror or error}") from error
    return place


def write_page(path: Path, text: str) -> None:
    """Raises OutputError; then what was there before still is."""
    part = part_of(path)
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OutputError(str(path), error) from error


def _is_page(path: Path) -> bool:
    """Or empty; not a recording or a transcript that someone named by mistake."""
    with path.open("rb") as file:
        start = file.read(len(_START)).lower()
    return start in (b"", _START)
