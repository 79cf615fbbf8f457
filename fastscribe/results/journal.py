"""The journal of earlier runs: one line for each finished input, written once its row is durable and before its files are.

The first line is the fingerprint (fingerprint.py): all that decides results. An input's line has its `key`, which identifies
it; its `state`, which tells whether it has changed; the offsets and, in a folder, the CRC-32 of its row in `transcripts.jsonl`;
its `index` among the inputs; whether it failed; and of each file that its row gives the size, the CRC-32 and the layout. So a
file is a run's own if its CRC-32 is the journal's. A later line of the same key replaces the earlier one. It may have the same
row, if only files were made again. Two other kinds of lines are notes: `{"run"}` has what a run stated, and `{"synced"}` says
that the files of all lines above it are durable.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from fastscribe._system.file_kinds import safe_open
from fastscribe.config import CHANGES_OF_TEXT, FILE_FORMATS, OutputFormat
from fastscribe.errors import UsageError
from fastscribe.results.fingerprint import option_name
from fastscribe.types import BoolArray, Int64Array, RecordArray, UInt64Array

VERSION = 4
HEADER_KEY = "fastscribe_journal"
HEADER_START = f'{{"{HEADER_KEY}":'.encode()
_MAX_LAYOUTS = 255  # distinct ones in one journal
SYNCED = b'{"synced": true}\n'
_RUN_START = b'{"run": '
NO_STATE = 0  # of no input
FIELDS = (1 << 32) - 1  # the lower half of a state (journal_ledger.py)
NO_FILE = (1 << 32) - 1  # instead of a size; larger files are recorded with the largest size below
_BLOCK_ENTRIES = 4096
_MAX_FORMER = 4  # contents of a file that are remembered
_MAX_SAME = 16  # results of one id that are looked at
_NUM_INT64 = 1 << 63
_ABSENT = object()
_LEFT_OUT = {"--beam": 1, "--pnc": True}  # values that a fingerprint does not mention
_CHANGES_OF_TEXT = set(map(option_name, CHANGES_OF_TEXT))  # with which a fingerprint has the language
_NO_OPTIONS = ("--speaker-map", "--pnc")  # names in a fingerprint that a command does not take so
_PHRASES, _MODEL = "a list of phrases", "a model"  # of which a fingerprint has digests
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
        ("name", "u8"),  # name_key of the files' name; 0: no files
        ("sizes", "u4", (len(FILE_FORMATS),)),  # of the files in bytes, in the order of FILE_FORMATS; or NO_FILE
        ("layouts", "u1", (len(FILE_FORMATS),)),  # numbers of the files' layouts (`Layouts`)
        ("line", "i8"),  # offset of its line
        ("id", "u8"),  # digest_of the input's id
    ]
)


class FileMark(NamedTuple):
    """What the journal knows of a file."""

    size: int  # in bytes
    crc: int  # CRC-32
    layout: int = 0  # result_files.py says what it stands for; 0: the format has none


class Layouts:
    """The layouts of a journal's files, by small numbers: few differ, and millions of entries have one for each format."""

    def __init__(self) -> None:
        self._layouts: list[int | None] = [0]

    def number(self, layout: int) -> int:
        """Return a layout's number. Behind _MAX_LAYOUTS they share one, which stands for None: unlike any other."""
        if layout not in self._layouts and len(self._layouts) <= _MAX_LAYOUTS:
            self._layouts.append(layout if len(self._layouts) < _MAX_LAYOUTS else None)
        return self._layouts.index(layout) if layout in self._layouts else _MAX_LAYOUTS

    def __getitem__(self, number: int) -> int | None:
        return self._layouts[number]


class Entry(NamedTuple):
    id: str
    key: int
    state: int
    begin: int  # offsets of its row in bytes
    end: int
    order: int  # index of the input
    failed: bool
    audio_s: float = 0.0
    for_list: bool = False  # a bad row of a list of inputs, or a path where nothing is: it was never a recording
    name: str = ""  # of its files, without a format's extension
    input_bytes: int | None = None  # size of the input; None: not known
    files: Mapping[str, FileMark] = {}  # by format
    former: Mapping[str, tuple[int, ...]] = {}  # CRC-32 of what earlier runs may have left under the same names
    row_crc: int | None = None  # CRC-32 of its row; None: not known

    def line(self) -> bytes:
        fields: dict[str, Any] = {
            "id": self.id,
            "key": f"{self.key:016x}",
            "state": f"{self.state:016x}",
            "row": [self.begin, self.end],
            "index": self.order,
            "failed": self.failed,
            "audio_s": self.audio_s,
        }
        if self.for_list:
            fields["for_list"] = True
        if self.input_bytes is not None:
            fields["input_bytes"] = self.input_bytes
        if self.row_crc is not None:
            fields["row_crc"] = f"{self.row_crc:08x}"
        if self.name:
            fields["name"] = self.name
        if self.files:
            fields["files"] = {format: [one.size, f"{one.crc:08x}", one.layout] for format, one in self.files.items()}
        if self.former:
            fields["former"] = {format: [f"{crc:08x}" for crc in crcs] for format, crcs in self.former.items()}
        return (json.dumps(fields) + "\n").encode()

    def values(self, layouts: Layouts, line: int = 0) -> tuple[Any, ...]:
        """Return the entry as a row of an array of dtype ENTRY."""
        marks = [self.files.get(format) for format in FILE_FORMATS]
        sizes = [NO_FILE if mark is None else min(mark.size, NO_FILE - 1) for mark in marks]
        numbers = [0 if mark is None else layouts.number(mark.layout) for mark in marks]
        return (*self[1:9], name_key(self.name) if self.name else 0, sizes, numbers, line, digest_of(self.id))

    def left(self) -> dict[str, tuple[int, ...]]:
        """Return the CRC-32 of what runs may have left under the names of its files, by format."""
        left = {format: (mark.crc,) for format, mark in self.files.items()}
        formats = {**left, **self.former}
        return {format: (left.get(format, ()) + self.former.get(format, ()))[:_MAX_FORMER] for format in formats}


@dataclass
class PendingInput:
    """An input that waits for its result."""

    key: int
    known_as: int  # key of its earlier result: another one if the recording was elsewhere then (moved.py)
    name: str = ""  # of its files
    state: int = 0
    num_bytes: int | None = None  # its size, if it is known
    entry_index: int | None = None  # in the journal: the earlier result
    is_out_of_reach: bool = False  # its recording is, so that an earlier result that has not failed stays
    outdated: Sequence[int] = ()  # in the journal: results of the row when it had another `duration`
    listed_fields: Sequence[str] = ()  # that decided the text of its earlier result, by a list that is not given now

    @property
    def is_moved(self) -> bool:
        return self.known_as != self.key


class Journal:
    """Results of earlier runs of one shard. Safe to read from several threads.

    The last entry of each key is live; `entry_indices` has the live entries, sorted by key.

    Args:
        path: The journal, or a copy of it; None: there is none yet.
        entries: An array of dtype ENTRY.
        layouts: What the numbers of its layouts stand for.
        header: The fingerprint of the runs that wrote it; None: there is none yet.
        num_synced: Entries from the first on whose files are durable.
        facts: What its runs stated, by name; of each the last that was stated.
        end: Where its last whole line ends, in bytes.
    """

    def __init__(
        self,
        path: Path | None = None,
        entries: RecordArray | None = None,
        header: Mapping[str, Any] | None = None,
        num_synced: int = 0,
        facts: Mapping[str, Any] | None = None,
        end: int = 0,
        layouts: Layouts | None = None,
    ) -> None:
        self.path, self.header, self.num_synced, self.end = path, header, num_synced, end
        self.facts: Mapping[str, Any] = facts or {}
        self._layouts = Layouts() if layouts is None else layouts
        self.entries: RecordArray = np.zeros(0, ENTRY) if entries is None else entries
        # Files that have the entries, one after another.
        self.sources = [] if path is None else [(path, len(self.entries))]
        self.is_in_this_run = np.zeros(len(self.entries), bool)  # its input is among this run's
        self.is_replaced = np.zeros(len(self.entries), bool)  # this run has a new result
        self.is_renewed = np.zeros(len(self.entries), bool)  # this run has given its row new fields
        order = np.argsort(self.entries["key"], kind="stable")
        keys: UInt64Array = self.entries["key"][order]
        is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        self._keys, self.entry_indices = keys[is_last], order[is_last]
        self._names = np.unique(self.entries["name"])

    @property
    def is_live(self) -> BoolArray:
        """Which entries are the last of their key, and stand for a result."""
        is_live: BoolArray = np.zeros(len(self.entries), bool)
        is_live[self.entry_indices] = True
        is_live &= self.entries["state"] != NO_STATE
        return is_live

    @cached_property
    def formats(self) -> tuple[OutputFormat, ...]:
        """The formats of the files that results had when this was first asked."""
        has_file = (self.entries["sizes"] != NO_FILE)[self.is_live]
        return tuple(compress(FILE_FORMATS, has_file.any(axis=0)))

    def find(self, key: int) -> int | None:
        """Return the index of the live entry of an input; None if there is none."""
        at = _place(key, self._keys)
        return None if at is None else int(self.entry_indices[at])

    def has_result(self, key: int) -> bool:
        """Return True if an input has a result, and not only files of one that is gone."""
        entry_index = self.find(key)
        return entry_index is not None and int(self.entries["state"][entry_index]) != NO_STATE

    @cached_property
    def _by_id(self) -> tuple[UInt64Array, Int64Array]:
        """The ids of all results, sorted, and the indices of their entries."""
        indices = np.flatnonzero(self.is_live)
        order = np.argsort(self.entries["id"][indices], kind="stable")
        return self.entries["id"][indices][order], indices[order]

    def of_id(self, id: str) -> list[int]:
        """Return the indices of the results with an id: in a list, of a path from the same offset. Of many, some."""
        ids, indices = self._by_id
        digest = np.uint64(digest_of(id))
        near = slice(at := bisect_left(ids, digest), at + _MAX_SAME)
        same: list[int] = indices[near][ids[near] == digest].tolist()
        return same

    def has_name(self, key: int) -> bool:
        """Return True if the journal has files of the name with this name_key."""
        return _place(key, self._names) is not None

    def sizes(self, entry_index: int) -> dict[str, int]:
        """Return the sizes of an entry's files in bytes, by format."""
        sizes = zip(FILE_FORMATS, self.entries["sizes"][entry_index].tolist(), strict=True)
        return {format: size for format, size in sizes if size != NO_FILE}

    def layout(self, entry_index: int, format: str) -> int | None:
        """Return the layout of an entry's file; None if it is not known."""
        return self._layouts[int(self.entries["layouts"][entry_index][FILE_FORMATS.index(format)])]

    def layouts_of(self, format: str) -> set[int | None]:
        """Return the layouts of all files of a format that this run does not replace."""
        at = FILE_FORMATS.index(format)
        entries = self.entries[self.is_live & ~self.is_replaced]
        return set(
            map(self._layouts.__getitem__, np.unique(entries["layouts"][entries["sizes"][:, at] != NO_FILE, at]))
        )

    def replace_files(self, entry_index: int, entry: Entry) -> None:
        """Put another entry's files in place of those of an entry."""
        known, new = self.entries[entry_index], np.array([entry.values(self._layouts)], ENTRY)[0]
        for field in ("name", "sizes", "layouts"):
            known[field] = new[field]

    def entry(self, entry_index: int) -> Entry:
        """Return an entry as its line has it. Raises OSError."""
        number = entry_index
        path = next(path for path, count in self.sources if (number := number - count) < 0)
        with safe_open(path) as file:
            file.seek(int(self.entries["line"][entry_index]))
            entry = parse_entry(file.readline())
        assert entry is not None
        return entry


def joined(journals: Sequence[Journal]) -> Journal:
    """Return the entries of several journals as one, whose search takes as long as that of one. Layouts are not known."""
    journal = Journal(entries=np.concatenate([np.zeros(0, ENTRY), *(one.entries for one in journals)]))
    journal.sources = [source for one in journals for source in one.sources]
    return journal


def _place(value: int, values: UInt64Array) -> int | None:
    at = bisect_left(values, np.uint64(value))  # numpy's own search lets go of the interpreter's lock
    return at if at < len(values) and int(values[at]) == value else None


def read_journal(path: Path) -> Journal:
    """Return what a journal has up to the first line that is not whole. Raises UsageError, OSError.

    Entries are gathered in blocks, because a million tuples at once would take ten times the memory.
    """
    blocks: list[RecordArray] = [np.zeros(0, ENTRY)]
    block: list[tuple[Any, ...]] = []
    num_entries = num_synced = 0
    facts: Mapping[str, Any] = {}
    layouts = Layouts()
    with safe_open(path) as file:
        header = parse_header(first := file.readline(), path)
        at = len(first)
        for line in file:
            entry = parse_entry(line)
            if entry is not None:
                num_entries += 1
                block.append(entry.values(layouts, at))
            elif line == SYNCED:
                num_synced = num_entries
            elif (stated := _stated(line)) is not None:
                facts = {**facts, **stated}
            else:
                break
            at += len(line)
            if len(block) == _BLOCK_ENTRIES:
                blocks.append(np.array(block, ENTRY))
                block = []
    entries = np.concatenate([*blocks, np.array(block, ENTRY)])
    return Journal(path, entries, header, num_synced, facts, at, layouts)


def header_line(fingerprint: Mapping[str, Any]) -> bytes:
    """Return a journal's first line."""
    return (json.dumps({HEADER_KEY: VERSION, "fingerprint": fingerprint}, ensure_ascii=False) + "\n").encode()


def run_line(facts: Mapping[str, Any]) -> bytes:
    """Return the note about a run."""
    return (json.dumps({"run": facts}) + "\n").encode()


class LastRun(NamedTuple):
    """What a journal says of the runs that wrote it."""

    header: Mapping[str, Any]  # their fingerprint
    facts: Mapping[str, Any]  # what they stated, by name; of each the last that was stated


def last_run(lines: Iterable[bytes], where: Path | str) -> LastRun:
    """Return what the lines of a journal say of its runs, without reading its entries. Raises UsageError as read_header()."""
    found = iter(lines)
    header = parse_header(next(found, b""), where)
    facts: Mapping[str, Any] = {}
    for line in (one for one in found if one.startswith(_RUN_START)):
        facts = {**facts, **(_stated(line) or {})}
    return LastRun(header, facts)


def _stated(line: bytes) -> Mapping[str, Any] | None:
    try:
        facts = json.loads(line)["run"] if line.endswith(b"\n") else None
    except (ValueError, TypeError, KeyError):
        return None
    return facts if isinstance(facts, dict) else None


def read_header(path: Path) -> Mapping[str, Any]:
    """Return the fingerprint. Raise UsageError if the file is no journal of this version."""
    with safe_open(path) as file:
        return parse_header(file.readline(), path)


def parse_header(line: bytes, where: Path | str) -> Mapping[str, Any]:
    """Return the fingerprint in a journal's first line, as `read_header` does."""
    try:
        header = json.loads(line)
        version, fingerprint = header[HEADER_KEY], header["fingerprint"]
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{where}: is not a journal of fastscribe's: move it away, or use another folder") from None
    if version != VERSION or not isinstance(fingerprint, dict):
        raise UsageError(
            f"{where}: was written by another version of fastscribe (format {version}, this one has {VERSION}); "
            "use another folder"
        )
    return fingerprint


def parse_entry(line: bytes) -> Entry | None:
    """Return the entry of a whole line; None for anything else."""
    if not line.endswith(b"\n"):
        return None
    try:
        fields = json.loads(line)
        (begin, end), failed = fields["row"], fields["failed"] is True
        key, state = int(fields["key"], 16), int(fields["state"], 16)
        order, audio_s = int(fields["index"]), float(fields["audio_s"])
        input_bytes, row_crc = fields.get("input_bytes"), fields.get("row_crc")
        files = {
            format: FileMark(int(size), int(crc, 16), int(layout))
            for format, (size, crc, layout) in fields.get("files", {}).items()
            if format in FILE_FORMATS
        }
        former = {format: tuple(int(crc, 16) for crc in crcs) for format, crcs in fields.get("former", {}).items()}
        entry = Entry(
            str(fields["id"]),
            key,
            state,
            int(begin),
            int(end),
            order,
            failed,
            audio_s,
            fields.get("for_list") is True,
            str(fields.get("name", "")),
            None if input_bytes is None else int(input_bytes),
            files,
            former,
            None if row_crc is None else int(row_crc, 16),
        )
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
        return None
    in_range = 0 <= entry.begin <= entry.end < _NUM_INT64 and 0 <= order < _NUM_INT64
    are_marks = all(one.size >= 0 and 0 <= one.crc < 1 << 32 and 0 <= one.layout < 1 << 64 for one in files.values())
    return entry if in_range and are_marks and 0 <= key < 1 << 64 and 0 <= state < 1 << 64 else None


def read_entries(path: Path) -> Iterator[Entry]:
    """Yield entries up to the first line that is not whole. Raises OSError."""
    with safe_open(path) as file:
        file.readline()
        for line in file:
            if (entry := parse_entry(line)) is not None:
                yield entry
            elif line != SYNCED and _stated(line) is None:
                return


def is_row(row: bytes) -> bool:
    """Return True if this is one whole line of JSON Lines."""
    return row.startswith(b"{") and row.find(b"\n") == len(row) - 1


def name_key(name: str) -> int:
    """Return 64 bits that are equal for names that a file system may confuse."""
    folded = name.lower() if name.isascii() else normalize("NFC", normalize("NFC", name).casefold())
    return digest_of(folded)


def digest_of(text: str) -> int:
    """Return 64 bits that stand for a text; never 0."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def check_same_settings(where: Path | str, before: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> None:
    """Raise UsageError if the results there are of a run with other settings.

    Args:
        where: The output folder or URL.
        before: The fingerprint of the earlier run.
        fingerprint: This run's.
    """
    from fastscribe.decode.prompt import DEFAULT_LANGUAGE

    now = json.loads(json.dumps(fingerprint))
    names = [name for name in {**before, **now} if _value(before, name) != _value(now, name)]
    languages = [one["--language"] for one in (before, now) if "--language" in one]
    if _CHANGES_OF_TEXT & set(names) and languages == [DEFAULT_LANGUAGE]:
        names = [name for name in names if name != "--language"]  # it follows, as others do only if somebody gave them
    if not names:
        return
    start_over = "" if "export" in now else ", or --overwrite to start over"  # which export does not have
    if "--align" in names:
        command = "align" if "--align" in before else "transcribe"
        raise UsageError(f"{where}: holds results of {command}: use another folder{start_over}")
    differences = "; ".join(
        f"{name}: {'other phrases were given' if name == '--boost' else 'was another one'}"
        if {_shown(before, name), _shown(now, name)} <= {_PHRASES, _MODEL}
        else f"{name} was {_shown(before, name)}, is {_shown(now, name)}"
        for name in names
    )
    alone = " (new recordings alone may go there, and fastscribe export -o joins the results)" if start_over else ""
    why = ", which needs decoding again" if names == ["--tokens"] and now["--tokens"] else ""
    go_on = [_as_given(before, name) for name in names]
    same = "" if None in go_on else f"; to go on here, run it {', '.join(filter(None, go_on))}"
    raise UsageError(
        f"{where}: holds results of a run with other settings ({differences}{why}): use another folder{alone}{start_over}{same}"
    )


def _value(fingerprint: Mapping[str, Any], name: str) -> Any:
    return fingerprint.get(name, _LEFT_OUT.get(name, _ABSENT))


def _shown(fingerprint: Mapping[str, Any], name: str) -> str:
    value = _value(fingerprint, name)
    if isinstance(value, str) and value.startswith("sha256:"):
        return _PHRASES if name == "--boost" else _MODEL
    if value is _ABSENT:
        return "not given" if name.startswith("--") else "not there"
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _as_given(fingerprint: Mapping[str, Any], name: str) -> str | None:
    """Return how a command gets the value of an option in a fingerprint; None if this does not tell."""
    value = _value(fingerprint, name)
    is_option = name.startswith("--") and name not in _NO_OPTIONS
    if not is_option or isinstance(value, list) or _shown(fingerprint, name) == _MODEL:
        return None
    if value is _ABSENT or value is None or value is False:
        return f"without {name}"
    if value is True:
        return f"with {name}"
    return f"with {name} " + ("and the same phrases" if _shown(fingerprint, name) == _PHRASES else str(value))
