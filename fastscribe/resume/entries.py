"""The lines of a journal and the files beside it: what is there, not what is done with it.

The first line is the fingerprint (fingerprint.py): all that decides results. Each other line has the input's `key` (which input
it is), its `state` (size, time of change and manifest row: whether it is still the same), where its row lies in
`transcripts.jsonl`, its `index` among the inputs and whether it failed. A later line of the same key takes the earlier
one's place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.output.names import name_key

VERSION = 1
HEADER_KEY = "fastscribe_journal"
HEADER_START = f'{{"{HEADER_KEY}":'.encode()
_JOURNAL_NAME = re.compile(r"journal(\.shard-\d+-of-\d+)?\.jsonl", re.ASCII)
_BLOCK_ENTRIES = 4096
_MOST = 1 << 63
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
        ("name", "u8"),  # names.name_key of it; 0 where there are no files
        ("line_end", "i8"),  # the byte after its line
    ]
)


class Entry(NamedTuple):
    id: str
    key: int
    state: int
    begin: int  # bytes of its row; both 0 where no rows are kept
    end: int
    order: int  # its place among the inputs
    failed: bool
    audio_s: float = 0.0
    for_list: bool = (
        False  # it failed as part of a list of inputs (a bad row, a missing file), and was never a recording
    )
    name: str = ""  # of its files when it was written, without a format's extension; "" where there are none

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
        }
        return (json.dumps(fields) + "\n").encode()


@dataclass(frozen=True)
class Paths:
    """The files of one shard of an output folder."""

    directory: Path
    suffix: str  # shards.Shard.suffix

    @classmethod
    def of_journal(cls, path: Path) -> Paths | None:
        """Those that a journal belongs to; None for a file that no run made."""
        match = _JOURNAL_NAME.fullmatch(path.name)
        paths = cls(path.parent, match[1] or "") if match else None
        return paths if paths is not None and paths.is_ours else None

    @property
    def is_ours(self) -> bool:
        """The journal is one."""
        if not self.journal.is_file():
            return False
        line = first_line(self.journal)
        return line.startswith(HEADER_START) or HEADER_START.startswith(line.rstrip(b"\0"))

    @property
    def num_shards(self) -> int:
        return int(self.suffix.rpartition("-")[2]) if self.suffix else 1

    @property
    def rows(self) -> Path:
        return self.directory / f"transcripts{self.suffix}.jsonl"

    @property
    def journal(self) -> Path:
        return self.directory / f"journal{self.suffix}.jsonl"

    @property
    def report(self) -> Path:
        return self.directory / f"report{self.suffix}.json"

    @property
    def lock(self) -> Path:
        return self.directory / f".lock{self.suffix}"

    @property
    def swap(self) -> Path:
        """The marker that both unfinished files are complete."""
        return self.directory / f".swap{self.suffix}"


class Earlier:
    """The inputs that earlier runs finished. Read by several threads.

    `places` are those of the lines that count, by key.
    """

    def __init__(self, entries: np.ndarray) -> None:
        self.entries = entries
        self.is_met = np.zeros(len(entries), bool)  # that it is of one of this run's inputs
        self.is_replaced = np.zeros(len(entries), bool)  # that this run has done it again
        self._keys, self.places = _last_places(entries["key"])  # the last line of each key counts
        self._names, self._name_places = _last_places(entries["name"])

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: int) -> int | None:
        """The place in `entries` of the line that counts for this input."""
        return _place_of(key, self._keys, self.places)

    def owner(self, name: str) -> int | None:
        """The key of the input whose files were the last to be written under this name."""
        place = _place_of(name_key(name), self._names, self._name_places)
        return None if place is None else int(self.entries["key"][place])


def _last_places(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each value once, in order, and the last place where it is."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(ordered)]
    return ordered[is_last], order[is_last]


def _place_of(value: int, values: np.ndarray, places: np.ndarray) -> int | None:
    at = int(np.searchsorted(values, np.uint64(value)))
    return int(places[at]) if at < len(values) and int(values[at]) == value else None


def read_header(path: Path) -> Mapping[str, Any]:
    """The fingerprint. Raises UsageError for a file that is no journal of this version."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        header = json.loads(line)
        version, fingerprint = header[HEADER_KEY], header["fingerprint"]
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{path}: is not a journal of fastscribe's; use another folder, or --overwrite") from None
    if version != VERSION or not isinstance(fingerprint, dict):
        raise UsageError(
            f"{path}: was written by another version of fastscribe (format {version}, this one has {VERSION}); "
            "use another folder, or --overwrite"
        )
    return fingerprint


def entries_of(path: Path) -> np.ndarray:
    """All entries, gathered in blocks: a million tuples at once would take ten times the memory."""
    blocks, block = [np.zeros(0, ENTRY)], []
    for entry, line_end in read_entries(path):
        block.append((*entry[1:-1], name_key(entry.name) if entry.name else 0, line_end))
        if len(block) == _BLOCK_ENTRIES:
            blocks.append(np.array(block, ENTRY))
            block = []
    return np.concatenate([*blocks, np.array(block, ENTRY)])


def read_entries(path: Path) -> Iterator[tuple[Entry, int]]:
    """Entries with the byte after their line, up to the first line that is not whole."""
    with path.open("rb") as file:
        at = len(file.readline())
        for line in file:
            at += len(line)
            entry = parse_entry(line)
            if entry is None:
                return
            yield entry, at


def parse_entry(line: bytes) -> Entry | None:
    if not line.endswith(b"\n"):
        return None
    try:
        fields = json.loads(line)
        (begin, end), failed = fields["row"], fields["failed"] is True
        key, state = int(fields["key"], 16), int(fields["state"], 16)
        order, audio_s = int(fields["index"]), float(fields["audio_s"])
        id, name, for_list = str(fields["id"]), str(fields["name"]), fields["for_list"] is True
        entry = Entry(id, key, state, int(begin), int(end), order, failed, audio_s, for_list, name)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    in_range = 0 <= entry.begin <= entry.end < _MOST and 0 <= order < _MOST
    return entry if in_range and max(key, state) < 1 << 64 and min(key, state) >= 0 else None


def live_places(entries: np.ndarray) -> np.ndarray:
    """Of the lines that no later line has replaced, in order."""
    return np.sort(Earlier(entries).places)


def is_row(row: bytes) -> bool:
    """One whole line of JSON Lines."""
    return row.startswith(b"{") and row.find(b"\n") == len(row) - 1


def free_name(path: Path, what: str) -> Path:
    """The first of x.what.jsonl, x.what.2.jsonl .. that is not taken."""
    number, name = 1, path.with_suffix(f".{what}{path.suffix}")
    while name.exists():
        number += 1
        name = path.with_suffix(f".{what}.{number}{path.suffix}")
    return name


def first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline()
