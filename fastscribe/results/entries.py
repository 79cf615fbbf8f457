"""The lines of a journal. Other modules act on them.

The first line is the fingerprint (fingerprint.py): all that decides results. Each other line describes a finished input: its
`key`, which identifies it; its `state`, which tells whether it has changed; the offsets of its row in `transcripts.jsonl`;
its `index` among the inputs; whether it failed; the name, the sizes and the checksums of its files, and the styles of its
subtitles. A later line of the same key replaces the earlier one. It may have the same row, if only files were made again. A
line `{"renamed", "to"}` records a rename of finished files.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastscribe._system.safe_open import safe_open
from fastscribe.config import OUTPUT_FORMATS
from fastscribe.results.names import Rename, name_key
from fastscribe.types import BoolArray, Int64Array, RecordArray, UInt64Array

SUBTITLES = ("srt", "vtt", "ass")
FILE_FORMATS = tuple(format for format in OUTPUT_FORMATS if format != "jsonl")
NO_STATE = 0  # of no input
NO_FILE = (1 << 32) - 1  # instead of a size; larger files are recorded with the largest size below
_BLOCK_ENTRIES = 4096
_NUM_INT64 = 1 << 63
ENTRY = np.dtype(
    [
        ("key", "u8"),
        ("state", "u8"),
        ("begin", "i8"),
        ("end", "i8"),
        ("order", "i8"),
        ("failed", "?"),
        ("audio_s", "f8"),
        ("for_list", "?"),
        ("name", "u8"),  # names.name_key of the files' name; 0: no files
        ("sizes", "u4", (len(FILE_FORMATS),)),  # of the files in bytes, in the order of FILE_FORMATS; or NO_FILE
        ("styles", "u8", (len(SUBTITLES),)),  # fingerprint.style_key of each; 0: there is none
        ("line_end", "i8"),  # offset of the end of its line, and of the renames that follow
    ]
)


class Entry(NamedTuple):
    id: str
    key: int
    state: int
    begin: int  # offsets of its row in bytes
    end: int
    order: int  # index of the input
    failed: bool
    audio_s: float = 0.0
    for_list: bool = False  # a bad row of a list of inputs, or a missing file: it was never a recording
    name: str = ""  # of its files when they were written, without a format's extension
    sizes: Mapping[str, int] = {}  # of its files in bytes, by format
    styles: Mapping[str, int] = {}  # fingerprint.style_key of its subtitles, by format
    checksums: Mapping[str, int] = {}  # CRC-32 of its files, by format

    def line(self) -> bytes:
        fields = {
            "id": self.id,
            "key": f"{self.key:016x}",
            "state": f"{self.state:016x}",
            "row": [self.begin, self.end],
            "index": self.order,
            "failed": self.failed,
            "audio_s": round(self.audio_s, 3),
            "for_list": self.for_list,
            "name": self.name,
            "bytes": dict(self.sizes),
        }
        if self.sizes:
            fields["crc32"] = {format: f"{crc:08x}" for format, crc in self.checksums.items()}
        if self.styles:
            fields["styles"] = {format: f"{style:016x}" for format, style in self.styles.items()}
        return (json.dumps(fields) + "\n").encode()

    def values(self, line_end: int = 0) -> tuple[Any, ...]:
        """Return the entry as a row of an array of dtype ENTRY."""
        sizes = [min(self.sizes[format], NO_FILE - 1) if format in self.sizes else NO_FILE for format in FILE_FORMATS]
        styles = [self.styles.get(format, 0) for format in SUBTITLES]
        return (*self[1:9], name_key(self.name) if self.name else 0, sizes, styles, line_end)


def rename_line(rename: Rename) -> bytes:
    return (json.dumps({"renamed": rename.old, "to": rename.new}) + "\n").encode()


class PreviousRun:
    """Journal entries of earlier runs. Safe to read from several threads.

    The last entry of each key is live; `entry_indices` has the live entries, sorted by key. The last live entry with a name
    owns the files of that name. This run may replace those files until it sets `are_files_replaced`.
    """

    def __init__(self, entries: RecordArray) -> None:
        self.entries = entries
        self.is_in_this_run = np.zeros(len(entries), bool)  # its input is among this run's
        self.is_replaced = np.zeros(len(entries), bool)  # this run has a new result
        self.is_made_again = np.zeros(len(entries), bool)  # this run made some of its files again, from its row
        self._keys, self.entry_indices = _last_indices(entries["key"])
        self.are_files_replaced = np.zeros(len(entries), bool)
        live = np.sort(self.entry_indices)
        self._names, at = _last_indices(entries["name"][live])
        self._name_indices = live[at]

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def is_live(self) -> BoolArray:
        """Which entries are the last of their key, and stand for a result."""
        is_live: BoolArray = np.zeros(len(self.entries), bool)
        is_live[self.entry_indices] = True
        is_live &= self.entries["state"] != NO_STATE
        return is_live

    def find(self, key: int) -> int | None:
        """Return the index of the live entry of an input; None if there is none."""
        return _index_of(key, self._keys, self.entry_indices)

    def find_by_name(self, name: str) -> int | None:
        """Return the index of the entry that owns the files of a name; None if there is none."""
        if not len(self._names):  # which spares a new folder's results the hash
            return None
        entry_index = _index_of(name_key(name), self._names, self._name_indices)
        return None if entry_index is None or self.are_files_replaced[entry_index] else entry_index

    def sizes(self, entry_index: int | None) -> dict[str, int]:
        """Return the sizes of an entry's files in bytes, by format."""
        if entry_index is None:
            return {}
        sizes = zip(FILE_FORMATS, self.entries["sizes"][entry_index].tolist(), strict=True)
        return {format: size for format, size in sizes if size != NO_FILE}

    def other_layouts(self, entry_index: int, style: int) -> set[str]:
        """Return the formats of an entry's subtitles whose layout is not that of fingerprint.style_key `style`."""
        styles = zip(SUBTITLES, self.entries["styles"][entry_index].tolist(), strict=True)
        return {format for format, key in styles if key not in (0, style)} & self.sizes(entry_index).keys()


def _last_indices(values: UInt64Array) -> tuple[UInt64Array, Int64Array]:
    """Return the sorted distinct values, and the last index of each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
    return ordered[is_last], order[is_last]


def _index_of(value: int, values: UInt64Array, entry_indices: Int64Array) -> int | None:
    at = bisect_left(values, np.uint64(value))  # numpy's own search lets go of the interpreter's lock
    return int(entry_indices[at]) if at < len(values) and int(values[at]) == value else None


def load_entries(path: Path) -> RecordArray:
    """Return all entries, with the present names of their files."""
    return load_entries_and_names(path)[0]


def load_entries_and_names(path: Path) -> tuple[RecordArray, dict[int, str]]:
    """Return all entries, and the new names of renamed files by entry index.

    Entries are gathered in blocks, because a million tuples at once would take ten times the memory.
    """
    blocks: list[RecordArray] = [np.zeros(0, ENTRY)]
    num_entries = 0
    block: list[tuple[Any, ...]] = []
    renames: list[tuple[int, Rename]] = []
    for line, line_end in read_lines(path):
        if isinstance(line, Rename):
            renames.append((num_entries, line))
            if block:
                block[-1] = (*block[-1][:-1], line_end)
            else:
                blocks[-1]["line_end"][-1:] = line_end
            continue
        num_entries += 1
        block.append(line.values(line_end))
        if len(block) == _BLOCK_ENTRIES:
            blocks.append(np.array(block, ENTRY))
            block = []
    entries = np.concatenate([*blocks, np.array(block, ENTRY)])
    return entries, _apply(renames, entries["name"])


def _apply(renames: Sequence[tuple[int, Rename]], names: UInt64Array) -> dict[int, str]:
    """Apply renames, each with the number of entries before it, to the entries' names. Return the new names by index."""
    olds = np.array([name_key(rename.old) for _, rename in renames], np.uint64)
    entry_indices = iter(np.flatnonzero(np.isin(names, olds)).tolist())
    entry_index = next(entry_indices, len(names))
    last: dict[int, int] = {}
    found: dict[int, str] = {}
    for num_before, rename in renames:
        while entry_index < num_before:
            last[int(names[entry_index])] = entry_index
            entry_index = next(entry_indices, len(names))
        renamed = last.pop(name_key(rename.old), None)
        if renamed is not None:
            found[renamed] = rename.new
            names[renamed] = last_key = name_key(rename.new)
            last[last_key] = renamed
    return found


def read_entries(path: Path) -> Iterator[tuple[Entry, int]]:
    """Yield entries, as first written, and the offset of the end of each, up to the first line that is not whole."""
    return ((line, line_end) for line, line_end in read_lines(path) if isinstance(line, Entry))


def read_lines(path: Path) -> Iterator[tuple[Entry | Rename, int]]:
    """Yield entries and renames, and the offset of the end of each, up to the first line that is not whole."""
    with safe_open(path) as file:
        at = len(file.readline())
        for line in file:
            at += len(line)
            parsed = parse_entry(line) or parse_rename(line)
            if parsed is None:
                return
            yield parsed, at


def parse_rename(line: bytes) -> Rename | None:
    try:
        fields = json.loads(line)
        return Rename(str(fields["renamed"]), str(fields["to"])) if line.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError):
        return None


def parse_entry(line: bytes) -> Entry | None:
    if not line.endswith(b"\n"):
        return None
    try:
        fields = json.loads(line)
        (begin, end), failed = fields["row"], fields["failed"] is True
        key, state = int(fields["key"], 16), int(fields["state"], 16)
        order, audio_s = int(fields["index"]), float(fields["audio_s"])
        id, name, for_list = str(fields["id"]), str(fields["name"]), fields["for_list"] is True
        sizes = {format: int(size) for format, size in fields["bytes"].items() if format in FILE_FORMATS}
        styles = {format: int(style, 16) for format, style in fields.get("styles", {}).items()}
        checksums = {format: int(crc, 16) for format, crc in fields.get("crc32", {}).items()}
        entry = Entry(
            id, key, state, int(begin), int(end), order, failed, audio_s, for_list, name, sizes, styles, checksums
        )
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
        return None
    in_range = (
        0 <= entry.begin <= entry.end < _NUM_INT64 and 0 <= order < _NUM_INT64 and min(sizes.values(), default=0) >= 0
    )
    numbers = (key, state, *styles.values())
    return entry if in_range and max(numbers) < 1 << 64 and min(numbers) >= 0 else None


def latest_entry_indices(entries: RecordArray) -> Int64Array:
    """Return the indices of the live entries, in order."""
    return np.sort(PreviousRun(entries).entry_indices)


def is_row(row: bytes) -> bool:
    """Return True if this is one whole line of JSON Lines."""
    return row.startswith(b"{") and row.find(b"\n") == len(row) - 1
