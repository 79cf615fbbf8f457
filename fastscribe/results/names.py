"""Names of the files of results, without a format's extension. One is given when an input is listed, and never changes.

It is what a journal says of the input's key. Else it is the id without its extension, if no journal, no earlier input and no
file of somebody else's has it. Else letters follow, which stand for the key: `talk-k3wq7a`. So all shards give the same names,
in whatever order they run. Case and Unicode's forms are ignored, as some file systems ignore them.
"""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b32encode
from collections.abc import Callable, Iterator, Sequence

from fastscribe._system.key_counter import KeyCounter
from fastscribe.results.journal import Journal, joined, name_key

_MAX_PART_BYTES = 200  # file systems allow 255; letters, an extension and the temporary name's affixes are added
_MAX_FOLDER_BYTES = 1000
_LETTERS = (6, 8, 10, 12, 32)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")
# Windows also reserves the names of devices, with any extension, and drops dots and spaces at the end of a name.
_UNSAFE_ON_WINDOWS = re.compile(
    r"""[\x00-\x1f\x7f\\:*?"<>|] | [. ]+$ | ^(?=(?:con|prn|aux|nul|com\d|lpt\d) \s* (?:\.|$))""",
    re.IGNORECASE | re.VERBOSE,
)
_CUT = re.compile(r"(.*)@(\d+)", re.DOTALL)
# A run writes report.json, and a shard its report.shard-I-of-N.json; fastscribe speakers writes speakers.json. No name is one
# of these, whatever the formats: names never change, and a later run may write JSON.
_RESERVED = re.compile(r"(report|speakers)(\.shard-\d+-of-\d+)?", re.ASCII | re.IGNORECASE)


class Names:
    """Gives names to inputs. Not thread-safe.

    Args:
        journals: Of all shards: the own one first.
        formats: Of the files.
        is_there: Returns True if anything has a file's name.
    """

    def __init__(self, journals: Sequence[Journal], formats: Sequence[str], is_there: Callable[[str], bool]) -> None:
        self.foreign: dict[str, str] = {}  # somebody else's files, and the names that recordings got beside them
        self._journals = [*journals[:1], joined(journals[1:])] if len(journals) > 2 else journals
        self._formats, self._is_there = formats, is_there
        self._given = KeyCounter()  # the names of this run

    def name_of(self, id: str, key: int, is_ours: bool = True) -> str:
        """Return the name of the next input; "" for another shard's that has one already.

        Args:
            id: The input's.
            key: Its key in the journal.
            is_ours: False: another shard writes its files, so none of them is somebody else's.
        """
        for journal in self._journals:
            entry_index = journal.find(key)
            if entry_index is not None and (name := int(journal.entries["name"][entry_index])):
                if not is_ours:
                    return ""
                if not journal.has_name(name):  # it was given since the journal was read
                    self._given.count(name)
                found = (one for one in candidates(id, key) if name_key(one) == name)
                return next(found, "") or journal.entry(entry_index).name
        return self._new_name(id, key, is_ours)

    def _new_name(self, id: str, key: int, is_ours: bool) -> str:
        taken = ""  # the first file of somebody else's
        for name in candidates(id, key):
            if self._is_taken(name):
                continue
            file = self._foreign_file(name) if is_ours else ""
            if not file:
                break
            taken = taken or file
        if taken:
            self.foreign[taken] = name
        return name

    def _is_taken(self, name: str) -> bool:
        """Return True if another recording has the name, or a file of the run's own. The name is taken then in any case."""
        key = name_key(name)
        is_reserved = _RESERVED.fullmatch(name) is not None
        return self._given.count(key) > 0 or is_reserved or any(journal.has_name(key) for journal in self._journals)

    def _foreign_file(self, name: str) -> str:
        files = (f"{name}.{format}" for format in self._formats)
        try:
            return next((file for file in files if self._is_there(file)), "")
        except OSError:  # the folder cannot be searched: writing says so
            return ""


def candidates(id: str, key: int) -> Iterator[str]:
    """Yield the names that an input may have, the best one first."""
    base = base_name(id)
    yield base
    digest = hashlib.blake2b(key.to_bytes(8, "big"), digest_size=20).digest()
    letters = b32encode(digest).decode().lower()
    yield from (f"{base}-{letters[:number]}" for number in _LETTERS)


def base_name(id: str) -> str:
    """Return an id's name without its extension: a relative path with "/" that stays below the folder."""
    cut = _CUT.fullmatch(id)
    path, suffix = (cut[1], "_" + cut[2]) if cut else (id, "")
    printable = path.encode("utf-8", "backslashreplace").decode("utf-8")
    unsafe = _UNSAFE_ON_WINDOWS if os.name == "nt" else _UNSAFE
    parts = [unsafe.sub("_", part) for part in printable.split("/") if part not in ("", ".", "..")] or ["unnamed"]
    folder = "/".join(_shorten(part) for part in parts[:-1])
    if len(folder.encode()) > _MAX_FOLDER_BYTES:
        folder = _digest(folder)
    name = _shorten(os.path.splitext(parts[-1])[0] + suffix)
    return f"{folder}/{name}" if folder else name


def _shorten(part: str) -> str:
    encoded = part.encode()
    if len(encoded) <= _MAX_PART_BYTES:
        return part
    tail = "-" + _digest(part)
    return encoded[: _MAX_PART_BYTES - len(tail)].decode("utf-8", "ignore") + tail


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
