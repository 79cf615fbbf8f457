"""Recordings in tar archives, and names for many files at once.

An archive is indexed once: where each member begins, and its size. So a recording is read alone, in any order, which batches of
similar lengths and exact resumption need; nothing is unpacked. Compressed archives have no such places.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastscribe.audio.failures import system_problem
from fastscribe.errors import UsageError

_RANGE = re.compile(
    r"(?:\{|_OP_)(\d+)\.\.(\d+)(?:\}|_CL_)"
)  # NeMo writes _OP_ and _CL_ where a shell would expand braces
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # as gzip, bzip2, xz, zstd begin
_NUMBER = re.compile(r"(\d+)(?=\D*$)")


class Member(NamedTuple):
    """The bytes of a recording in an archive."""

    path: str
    start: int
    size: int


class Numbered(NamedTuple):
    """One of the paths that a pattern stands for, and its number in the pattern's last range; None: there is no range."""

    path: str
    number: int | None


def expand(pattern: str) -> list[Numbered]:
    """Return the paths that {000..127} or NeMo's _OP_000..127_CL_ stands for; a path without one stands for itself.

    Raises UsageError if a range descends.
    """
    ranges = list(_RANGE.finditer(pattern))
    paths, end = [Numbered("", None)], 0
    for one in ranges:
        between, numbers = pattern[end : one.start()], _numbers(pattern, one)
        paths = [Numbered(f"{path}{between}{n:0{len(one[1])}}", n) for path, _ in paths for n in numbers]
        end = one.end()
    return [Numbered(path + pattern[end:], number) for path, number in paths]


def _numbers(pattern: str, found: re.Match[str]) -> range:
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise UsageError(f"{pattern}: the range {found[0]} descends: write the lower number first")
    return range(first, last + 1)


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
                if member.issparse():
                    raise UsageError(
                        f"{path}: its member {member.name!r} is sparse: write the tar without sparse files"
                    )
                if member.isfile():
                    found[member.name.removeprefix("./")] = Member(path, member.offset_data, member.size)
                archive.members = []  # type: ignore[attr-defined]  # it would grow
            return found
    except tarfile.TarError as error:
        raise UsageError(f"{path}: {_tar_problem(path, error)}") from error
    except OSError as error:
        raise UsageError(f"{path}: {system_problem(error)}") from error


def _tar_problem(path: str, error: tarfile.TarError) -> str:
    with open(path, "rb") as file:
        is_compressed = file.read(6).startswith(_COMPRESSED)
    if is_compressed:
        return "compressed: only a tar without compression can be read in any order"
    is_cut_off = str(error) in ("unexpected end of data", "truncated header")
    return "cut off: it ends in the middle of a member" if is_cut_off else f"no tar archive: {error}"


class Archives:
    """The archives that the rows of NeMo's manifests point into. They are indexed when a row first asks.

    If there are as many manifests as archives, each manifest has its own, in order. Otherwise a row's shard_id, or else the
    manifest's number, is the number of the archive. Raises UsageError if several archives have the same number then.
    """

    def __init__(self, pattern: str, manifests: Sequence[Numbered]) -> None:
        self._tars, self._manifests = expand(pattern), manifests
        self._is_paired = len(self._tars) == len(manifests)
        self._by_number: dict[int | None, str] = {}
        self._members: dict[str, Mapping[str, Member]] = {}
        for path, number in self._tars:
            if number in self._by_number and not self._is_paired:
                both = f"{self._by_number[number]} and {path} both have the number {number}"
                raise UsageError(f"{pattern}: {both}: give as many manifests as tars, each with its own")
            self._by_number[number] = path

    def find(self, manifest: int, name: str, shard: int | None) -> Member:
        """Return the member that a row of a manifest names. Raises KeyError with the problem, UsageError."""
        path = self._path(manifest, shard)
        if path not in self._members:
            self._members[path] = members(path)
        known = self._members[path]
        member = known.get(name.removeprefix("./")) or known.get(_without_part(name))
        if member is None:
            raise KeyError(f"no such recording in {path}: {name!r}")
        if not member.size:
            raise KeyError(f"{name!r} in {path} is empty (0 bytes)")
        return member

    def _path(self, manifest: int, shard: int | None) -> str:
        """Return the archive that a row's shard_id stands for."""
        if len(self._tars) == 1:
            return self._tars[0].path
        if self._is_paired:
            path, number = self._tars[manifest]
            if shard is None or shard in (number, number_of(path)):
                return path
            raise KeyError(f"shard_id {shard}: the tar of this manifest is {path}")
        number = self._manifests[manifest].number if shard is None else shard
        if number is None:
            raise KeyError("no shard_id, which says in which tar it is")
        if number not in self._by_number:
            raise KeyError(f"shard_id {number}: no such tar")
        return self._by_number[number]


def _without_part(name: str) -> str:
    """Drop -sub1, which NeMo adds to the name in rows of further segments of a recording."""
    return re.sub(r"-sub\d+(?=(\.\w+)?$)", "", name.removeprefix("./"))
