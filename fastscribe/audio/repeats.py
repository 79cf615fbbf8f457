"""Inputs that are reached twice: a file that is given by its name and in a folder is one recording.

Two names are the same input if they are the same absolute path. A symbolic link is an input of its own, because it has its own
name in the results. Rows of manifests are never taken for repeats: each has fields of its own, and its own row in the results.
Neither are recordings in memory.
"""

from __future__ import annotations

import hashlib
import os

from fastscribe.audio.failures import relative_id
from fastscribe.audio.media import is_held
from fastscribe.types import Failure, File, Source


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
