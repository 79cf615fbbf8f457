"""Spellings of a local path that people and programs bring: the one that names a file is meant.

Players write file:///a%20b.flac, people ~/talk.flac, Windows sub\\talk.flac, and macOS stores ü as two characters. A name that
is there as it stands is taken as it stands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from unicodedata import normalize
from urllib.parse import unquote

from fastscribe._system.urls import is_url

_FILE_URL = re.compile(r"file:(?://(?:localhost)?(?=/))?(.+)", re.IGNORECASE | re.DOTALL)
_DRIVE = re.compile(r"/[A-Za-z]:[/\\]")  # of file:///C:/a.wav


def is_file_url(path: str) -> bool:
    """Return True for a URL of this machine's files."""
    return path[:6].lower() == "file:/"


def meant(path: str, is_there: Callable[[str], bool] = os.path.lexists) -> str:
    """Return the spelling of a path that is there. If none is, the path as it stands, of a file URL without its escapes.

    Args:
        path: As it was given. A URL is returned as it is, but for one of this machine's files.
        is_there: Tells whether a path names something.
    """
    # The others need no look at the disk: they have no other spelling.
    may_differ = is_file_url(path) or path.startswith("~") or "\\" in path or not path.isascii()
    if is_url(path) or not may_differ:
        return path
    found = list(_spellings(path))
    return next((one for one in found if is_there(one)), found[1] if is_file_url(path) else path)


def meant_beside(where: str, path: str) -> str:
    """Return the spelling of a row's path that is there, or the path itself. A relative one counts from the list's folder.

    Args:
        where: Path or URL of the list.
        path: The row's.
    """
    if is_url(where):
        return path
    return meant(path, lambda spelling: os.path.lexists(os.path.join(os.path.dirname(where), spelling)))


def _spellings(path: str) -> Iterator[str]:
    match = _FILE_URL.fullmatch(path) if is_file_url(path) else None
    if match is not None:
        local = match[1][1:] if _DRIVE.match(match[1]) else match[1]
        yield from (local, unquote(local))
        path = unquote(local)
    else:
        yield path
    if path.startswith("~"):
        yield os.path.expanduser(path)
    slashed = path.replace("\\", "/")
    for spelling in dict.fromkeys((path, slashed)):
        yield from (spelling, normalize("NFC", spelling), normalize("NFD", spelling))


def hint(path: str) -> str:
    """Return what may be wrong with a path that names nothing; "": nothing that its text shows."""
    if "\\" in path and os.sep == "/":
        return f"; folders end with / on this system, and nothing has the name {path.replace(chr(92), '/')} either"
    return ""
