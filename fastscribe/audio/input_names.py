"""What a name of an input means: which file, and whether another name has led there already.

People and programs bring local paths in several spellings, and the one that names a file is meant. Players write
file:///a%20b.flac, people ~/talk.flac, Windows sub\\talk.flac, and macOS stores ü as two characters. A name that is there as it
stands is taken as it stands.

A file that is given by its name and in a folder is one recording. Two names are the same input if they are the same absolute
path. A symbolic link is an input of its own, because it has its own name in the results. Rows of manifests are never taken for
repeats: each has fields of its own, and its own row in the results. Neither are recordings in memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from unicodedata import normalize
from urllib.parse import unquote

from fastscribe._system.urls import is_url
from fastscribe.audio.failures import printable, relative_id
from fastscribe.audio.media import is_held
from fastscribe.types import Failure, File, Source

_FILE_URL = re.compile(r"file:(?://(?:localhost)?(?=/))?(.+)", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile(r"\{\d+\.\.\d+\}|_OP_\d+\.\.\d+_CL_")  # of WebDataset and NeMo
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
        path = os.path.expanduser(path)
    slashed = path.replace("\\", "/")
    for spelling in dict.fromkeys((path, slashed)):
        yield from (spelling, normalize("NFC", spelling), normalize("NFD", spelling))


def hint(path: str) -> str:
    """Return what may be wrong with a path that names nothing; "": nothing that its text shows."""
    if os.path.islink(path):
        return f": is a link to {printable(os.readlink(path))}, which is not there"
    if "=" in path and os.path.exists(path.partition("=")[2]):  # Hydra's form
        return f"; an input is given without a name: {path.partition('=')[2]}"
    if _RANGE.search(path):
        return f"; ranges are not expanded, but a pattern is: {shlex.quote(_RANGE.sub('*', path))}"
    if "\\" in path and os.sep == "/":
        return f"; folders end with / on this system, and nothing has the name {path.replace(chr(92), '/')} either"
    return ""


class Repeats:
    """Finds repeated inputs; `num` counts them. A million inputs take 16 to 32 MB."""

    def __init__(self) -> None:
        from fastscribe._system.key_counter import KeyCounter  # here, because NumPy would slow down --help

        self.num = 0
        self._seen = KeyCounter()

    def is_repeated(self, found: Source | Failure) -> bool:
        """Return True if the recording came before. Rows of manifests never did."""
        if isinstance(found, Source):
            return found.row is None and not is_held(found.file) and self._came_before(_name(found.file))
        return found.row is None and found.id == relative_id(found.path) and self._came_before(_absolute(found.path))

    def is_repeated_manifest(self, path: str) -> bool:
        """Return True if the manifest was given before."""
        return self._came_before(f"rows\0{_absolute(path)}")

    def _came_before(self, name: str) -> bool:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        is_repeated = self._seen.count(int.from_bytes(digest, "big")) > 0
        self.num += is_repeated
        return is_repeated


def _name(file: File) -> str:
    return _absolute(file) if isinstance(file, str) else file.identity


def _absolute(path: str) -> str:
    """Return the absolute path without "." and ".."; what ".." leads to depends on links before it."""
    if os.pardir in path.split(os.sep):
        return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return os.path.abspath(path)


def repeats_line(num: int) -> str:
    """Return a line that says how many inputs came again.

    >>> repeats_line(2)
    '2 files were given more than once; each is transcribed once'
    """
    return f"{num} file{'s were' if num > 1 else ' was'} given more than once; each is transcribed once"
