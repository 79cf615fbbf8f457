"""Recordings in tar archives, and names for many files at once.

An archive is indexed once: where each member begins, and its size. So a recording is read alone, in any order, which batches of
similar lengths and exact resumption need; nothing is unpacked. Compressed archives have no such places.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Mapping
from typing import NamedTuple

from fastscribe.audio.failures import system_problem
from fastscribe.errors import UsageError

_RANGE = re.compile(
    r"(?:\{|_OP_)(\d+)\.\.(\d+)(?:\}|_CL_)"
)  # NeMo writes _OP_ and _CL_ where a shell would expand braces
_NUMBER = re.compile(r"(\d+)(?=\D*$)")


class Member(NamedTuple):
    """The bytes of a recording in an archive."""

    path: str
    start: int
    size: int


def expand(pattern: str) -> list[str]:
    """Return the paths that {000..127} or NeMo's _OP_000..127_CL_ stands for; a path without one stands for itself."""
    found = _RANGE.search(pattern)
    if found is None:
        return [pattern]
    first, last = found[1], found[2]
    names = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return [path for name in names for path in expand(pattern[: found.start()] + name + pattern[found.end() :])]


def number_of(path: str) -> int | None:
    """Return the last number in a file's name, which counts the shards."""
    found = _NUMBER.search(os.path.basename(path).partition(".tar")[0].partition(".json")[0])
    return None if found is None else int(found[1])


def members(path: str) -> dict[str, Member]:
    """Index the files of a tar archive by name. Raises UsageError if it cannot be read."""
    try:
        with tarfile.open(path, "r:") as archive:
            found = {}
            for member in archive:
                if member.isfile():
                    found[member.name.removeprefix("./")] = Member(path, member.offset_data, member.size)
                archive.members = []  # type: ignore[attr-defined]  # it would grow
            return found
    except tarfile.TarError as error:
        raise UsageError(f"{path}: no tar archive without compression, which alone can be read in any order") from error
    except OSError as error:
        raise UsageError(f"{path}: {system_problem(error)}") from error


class Archives:
    """The archives that a NeMo manifest's rows point into, by shard. They are indexed when a row first asks."""

    def __init__(self, pattern: str) -> None:
        paths = expand(pattern)
        self._paths = {0 if number is None else number: path for path in paths for number in (number_of(path),)}
        self._is_single = len(paths) == 1
        self._members: dict[int, Mapping[str, Member]] = {}

    def find(self, name: str, shard: int | None) -> Member:
        """Return the member that a row names. Raises KeyError with the problem, UsageError."""
        if shard is None or self._is_single:
            if not self._is_single:
                raise KeyError("no shard_id, which says in which tar it is")
            shard = next(iter(self._paths))
        if shard not in self._paths:
            raise KeyError(f"shard_id {shard}: no such tar")
        if shard not in self._members:
            self._members[shard] = members(self._paths[shard])
        known = self._members[shard]
        member = known.get(name.removeprefix("./")) or known.get(_without_part(name))
        if member is None:
            raise KeyError(f"no such recording in {self._paths[shard]}: {name!r}")
        return member


def _without_part(name: str) -> str:
    """Drop -sub1, which NeMo adds to the name in rows of further segments of a recording."""
    return re.sub(r"-sub\d+(?=(\.\w+)?$)", "", name.removeprefix("./"))
