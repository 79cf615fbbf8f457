"""Unique names below the output folder for ids. Pure.

The name is the id without its extension. Inputs that would share a name keep their extensions (`a.wav.srt`, `a.mp3.srt`);
since ids arrive one by one, the first of them is renamed once the second is known. Inputs with the same id are numbered in
order (`a.srt`, `a.2.srt`). Case is ignored, as some file systems do. An input takes the memory of an 8-byte hash and its id.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

_MAX_PART_BYTES = 200  # file systems allow 255; a number, an extension and the temporary name's affixes are added
_MAX_FOLDER_BYTES = 1000
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")
# Windows also reserves the names of devices, with any extension, and drops dots and spaces at the end of a name.
_UNSAFE_ON_WINDOWS = re.compile(
    r"""[\x00-\x1f\x7f\\:*?"<>|] | [. ]+$ | ^(?=(?:con|prn|aux|nul|com\d|lpt\d) \s* (?:\.|$))""",
    re.IGNORECASE | re.VERBOSE,
)
_CUT = re.compile(r"(.*)@(\d+)", re.DOTALL)


class Rename(NamedTuple):
    old: str
    new: str


class OutputNames:
    """Chooses names without a format's extension. No input gets one of the `reserved` names, or a shard's variant of one."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._owners: dict[int, str] = {}  # name -> id; "": never renamed
        self._reserved = [
            re.compile(re.escape(name) + r"(\.shard-\d+-of-\d+)?", re.ASCII | re.IGNORECASE) for name in reserved
        ]
        self._repeats: dict[int, list[str]] = {}  # name -> the numbered names of repeated ids
        self._numbers: dict[int, int] = {}  # name -> the last number in use

    def take(self, keys: Iterable[int]) -> None:
        """Keep names from inputs, by their name_key."""
        self._owners.update((key, "") for key in keys)

    def claim(self, id: str) -> tuple[str, list[Rename]]:
        """Return the name of the next input, and the renames of earlier names that come first."""
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

    def take_full(self, id: str) -> str:
        """Return a name that keeps the id's extension, so that it never changes: no rename makes room for a later one."""
        return self._take(names_of(id)[1])

    def _share(self, owner: str, full: str) -> tuple[str, list[Rename]]:
        """Rename the owner of a short name and its repeats, because another id differs in the extension only."""
        short, owner_full = names_of(owner)
        del self._owners[name_key(short)]
        earlier = [short, *self._repeats.pop(name_key(short), [])]
        renames = [Rename(name, self._take(owner_full)) for name in earlier]
        name = self._take(full)
        self._owners[name_key(short)] = ""
        return name, [rename for rename in renames if rename.old != rename.new]

    def _take(self, base: str) -> str:
        """Take `base` or, if it is taken, the next free name of base.2, base.3 .."""
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
    """Return an id's name without and with its extension: relative paths with "/" that stay below the folder."""
    cut = _CUT.fullmatch(id)
    path, suffix = (cut[1], "_" + cut[2]) if cut else (id, "")
    printable = path.encode("utf-8", "backslashreplace").decode("utf-8")
    unsafe = _UNSAFE_ON_WINDOWS if os.name == "nt" else _UNSAFE
    parts = [unsafe.sub("_", part) for part in printable.split("/") if part not in ("", ".", "..")] or ["unnamed"]
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
    """Return 64 bits that are equal for names that a file system may confuse."""
    return int.from_bytes(_digest(name.casefold()), "big")


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
