"""A page's file: there as a whole or not at all."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from fastscribe.errors import OutputError, UsageError

_START = b"<!doctype html"


def check_page(path: Path) -> Path:
    """The file that `path` leads to, once it is clear that it can be written, so that nobody learns otherwise hours later.

    Raises UsageError.
    """
    place = Path(os.path.realpath(path))
    try:
        if place.exists() and not stat.S_ISREG(place.stat().st_mode):
            raise UsageError(f"--report-html {path}: there is something that is no file: name another place")
        if place.exists() and not _may_go(place):
            raise UsageError(f"--report-html {path}: there is a file that is no page: name another place")
        part = _part(place)
        part.open("ab").close()
        part.unlink()
    except OSError as error:
        raise UsageError(f"--report-html {path}: cannot be written: {error.strerror or error}") from error
    return place


def write_page(path: Path, text: str) -> None:
    """Raises OutputError; then what was there before still is."""
    part = _part(path)
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OutputError(str(path), error) from error


def _may_go(path: Path) -> bool:
    """A recording or a transcript that someone named by mistake may not."""
    with path.open("rb") as file:
        start = file.read(len(_START)).lower()
    return start in (b"", _START)


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")
