"""Names for many files at once, and which tar archives belong to which manifests of NeMo's tarred data sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fastscribe.audio.archives import TarIndex, number_of
from fastscribe.audio.media import FilePart
from fastscribe.errors import UsageError

# NeMo writes _OP_ and _CL_ where a shell would expand braces.
_RANGE = re.compile(r"(?:\{|_OP_)(\d+)\.\.(\d+)(?:\}|_CL_)")


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
        between, first, last = pattern[end : one.start()], int(one[1]), int(one[2])
        if last < first:
            raise UsageError(f"{pattern}: the range {one[0]} descends: write the lower number first")
        numbers = range(first, last + 1)
        paths = [Numbered(f"{path}{between}{n:0{len(one[1])}}", n) for path, _ in paths for n in numbers]
        end = one.end()
    return [Numbered(path + pattern[end:], number) for path, number in paths]


class Archives:
    """The archives that the rows of NeMo's manifests point into. They are indexed when a row first asks.

    If there are as many manifests as archives, each manifest has its own, in order. Otherwise a row's shard_id, or else the
    manifest's number, is the number of the archive. Raises UsageError if several archives have the same number then.
    """

    def __init__(self, pattern: str, manifests: Sequence[Numbered]) -> None:
        self._tars, self._manifests = expand(pattern), manifests
        self._is_paired = len(self._tars) == len(manifests)
        self._by_number: dict[int | None, str] = {}
        self._index = TarIndex()
        for path, number in self._tars:
            if number in self._by_number and not self._is_paired:
                both = f"{self._by_number[number]} and {path} both have the number {number}"
                raise UsageError(f"{pattern}: {both}: give as many manifests as tars, each with its own")
            self._by_number[number] = path

    def find(self, manifest: int, name: str, shard: int | None) -> FilePart:
        """Return the member that a row of a manifest names. Raises KeyError with the problem, UsageError."""
        path = self._path(manifest, shard)
        if (problem := self._index.problem(path)) is not None:
            raise UsageError(f"{path}: {problem}")
        return self._index.find(path, name)

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
