"""Which file an input's outputs go to: ids in, names below the output folder out, no two alike. Pure.

The name is the id without its extension. Where inputs would share one, all of them keep their extension (`a.wav.srt`,
`a.mp3.srt`), and as ids arrive one by one the first of them has to be renamed once the second is known. Inputs with the
same id are numbered in the order of their arrival (`a.srt`, `a.2.srt`). Upper and lower case count as alike, since some
file systems cannot tell them apart. An input costs the memory of an 8-byte hash and its id, not that of its paths.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

_MAX_PART_BYTES = (
    200  # file systems allow 255; a number, the format's extension and the temporary name's words come on top
)
_MAX_FOLDER_BYTES = 1000
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]" if os.name == "posix" else r'[\x00-\x1f\x7f\\:*?"<>|]')
_CUT = re.compile(r"(.*)@(\d+)", re.DOTALL)


class Rename(NamedTuple):
    old: str
    new: str


class OutputNames:
    """Hands out names without a format's extension. `reserved` are names that no input may have, nor a shard's of them."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._owners: dict[int, str] = {}  # name -> id; "": taken for good
        self._reserved = [
            re.compile(re.escape(name) + r"(\.shard-\d+-of-\d+)?", re.ASCII | re.IGNORECASE) for name in reserved
        ]
        self._repeats: dict[int, list[str]] = {}  # name -> the numbered names beside it, for ids that came again
        self._numbers: dict[int, int] = {}  # name -> the last number given out beside it

    def claim(self, id: str) -> tuple[str, list[Rename]]:
        """The name for the next input, and which earlier names change first to make room for it."""
        short, full = names_of(id)
        owner = self._owners.get(name_key(short))
        if owner is None and not self._is_reserved(short):
            self._owners[name_key(short)] = id
            return short, []
        if not owner:
            return self._take(full), []
        if name_key(names_of(owner)[1]) != name_key(full):
            return self._share(owner, full)
        name = self._take(short)
        self._repeats.setdefault(name_key(short), []).append(name)
        return name, []

    def _share(self, owner: str, full: str) -> tuple[str, list[Rename]]:
        """Ids that differ in their extension alone meet: the earlier one and its repeats give up the short name."""
        short, owner_full = names_of(owner)
        del self._owners[name_key(short)]
        earlier = [short, *self._repeats.pop(name_key(short), [])]
        renames = [Rename(name, self._take(owner_full)) for name in earlier]
        name = self._take(full)
        self._owners[name_key(short)] = ""
        return name, [rename for rename in renames if rename.old != rename.new]

    def _take(self, base: str) -> str:
        """`base` or, where that is taken, the next free of base.2, base.3 .."""
        name, number = base, self._numbers.get(name_key(base), 1)
        while name_key(name) in self._owners or self._is_reserved(name):
            number += 1
            name = f"{base}.{number}"
        if number > 1:
            self._numbers[name_key(base)] = number
        self._owners[name_key(name)] = ""
        return name

    def _is_reserved(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self._reserved)


def names_of(id: str) -> tuple[str, str]:
    """(without extension, with it) for an id: relative paths with "/" that cannot leave the folder they are put in."""
    cut = _CUT.fullmatch(id)
    path, suffix = (cut[1], "_" + cut[2]) if cut else (id, "")
    printable = path.encode("utf-8", "backslashreplace").decode("utf-8")
    parts = [_UNSAFE.sub("_", part) for part in printable.split("/")]
    parts = [part for part in parts if part not in ("", ".", "..")] or ["unnamed"]
    folder = "/".join(_shorten(part) for part in parts[:-1])
    if len(folder.encode()) > _MAX_FOLDER_BYTES:
        folder = _digest(folder).hex()
    stem = os.path.splitext(parts[-1])[0]
    short, full = (_shorten(name + suffix) for name in (stem, parts[-1]))
    return (f"{folder}/{short}", f"{folder}/{full}") if folder else (short, full)


def _shorten(part: str) -> str:
    encoded = part.encode()
    if len(encoded) <= _MAX_PART_BYTES:
        return part
    tail = "-" + _digest(part).hex()
    return encoded[: _MAX_PART_BYTES - len(tail)].decode("utf-8", "ignore") + tail


def name_key(name: str) -> int:
    """64 bits that are alike for names that a file system may take for one."""
    return int.from_bytes(_digest(name.casefold()), "big")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
