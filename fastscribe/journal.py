"""What is finished in an output folder: one line an input in `journal.jsonl`, written after the input's outputs.

The first line is the fingerprint: all that decides results. Each other line has the input's `key` (which input it is), its
`state` (size, time of change and manifest row: whether it is still the same), where its row lies in `transcripts.jsonl`,
its `index` among the inputs and whether it failed. A later line of the same key takes the earlier one's place.

Whatever moment a process is killed at, at most a last line or a last row is half there. Both files are cut back to the
last line that is whole and whose row is there, so an input is either finished or will be done again. Rows that
were replaced, and with `--ordered` rows out of order, are put right by writing both files anew (`tidy`): to temporary names
first, then, once a marker says that both are complete, to their own.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.output_names import name_key

VERSION = 1
_HEADER_KEY = "fastscribe_journal"
_HEADER_START = f'{{"{_HEADER_KEY}":'.encode()
_COPY_BYTES = 1 << 20
_BLOCK_ENTRIES = 4096
_MOST_TORN = 1000  # rows at the end of a file that a power failure may have left empty
_ENTRY = np.dtype(
    [
        ("key", "u8"),
        ("state", "u8"),
        ("begin", "i8"),
        ("end", "i8"),
        ("order", "i8"),
        ("failed", "?"),
        ("audio_s", "f8"),
        ("name", "u8"),  # output_names.name_key of it; 0 where there are no files
    ]
)
_MOST = 1 << 63
_CHANGED = "was changed since the last run; use another folder, or --overwrite"


class Entry(NamedTuple):
    id: str
    key: int
    state: int
    begin: int  # bytes of its row; both 0 where no rows are kept
    end: int
    order: int  # its place among the inputs
    failed: bool
    audio_s: float = 0.0
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
            "name": self.name,
        }
        return (json.dumps(fields) + "\n").encode()


@dataclass(frozen=True)
class Paths:
    """The files of one shard of an output folder."""

    directory: Path
    suffix: str  # shards.Shard.suffix

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
        """The marker that both `.part` files are complete."""
        return self.directory / f".swap{self.suffix}"


class Earlier:
    """The inputs that earlier runs finished. Read by several threads.

    `places` are those of the lines that count, by key.
    """

    def __init__(self, entries: np.ndarray) -> None:
        self.entries = entries
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


class Journal:
    """Appends entries. Made by `begin` or `resume`, below."""

    def __init__(self, paths: Paths, file: FileIO, earlier: Earlier) -> None:
        self.paths = paths
        self.earlier = earlier
        self._file = Appender(file)

    def append(self, entry: Entry) -> None:
        self._file.append(entry.line())

    def close(self) -> None:
        self._file.close()


class Appender:
    """A file that only this process appends to, a whole line at a time."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.end = file.seek(0, os.SEEK_END)
        self._identity = _identity(os.fstat(file.fileno()))

    def append(self, line: bytes) -> None:
        """A line that did not fit on the disk is taken back, so that the next one starts on a line of its own.

        Raises OSError, too, where the file is no longer there under its name, or not as long as it was left: writing on
        would lose everything.
        """
        status = os.stat(self._file.name)
        if self._identity != _identity(status) or status.st_size != self.end:
            raise OSError(None, "it was changed by someone else while the run was writing to it", self._file.name)
        try:
            written = self._file.write(line) or 0
            while written < len(line):
                written += self._file.write(line[written:]) or 0
        except BaseException:
            self.take_back(self.end)
            raise
        self.end += len(line)

    def take_back(self, end: int) -> None:
        self._file.truncate(end)
        self.end = end

    def close(self) -> None:
        """With all of it on the disk."""
        try:
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def begin(paths: Paths, fingerprint: Mapping[str, Any]) -> Journal:
    """An empty journal; there must be none."""
    header = json.dumps({_HEADER_KEY: VERSION, "fingerprint": fingerprint}, ensure_ascii=False) + "\n"
    part = _part(paths.journal)
    with part.open("w", encoding="utf-8") as file:
        file.write(header)
        _sync(file)
    os.replace(part, paths.journal)
    return Journal(paths, paths.journal.open("ab", buffering=0), Earlier(np.zeros(0, _ENTRY)))


def resume(paths: Paths, fingerprint: Mapping[str, Any]) -> Journal:
    """The journal that is there, repaired, after finish_tidying. Raises UsageError where it is another kind of run's."""
    _check_fingerprint(paths, fingerprint)
    entries = repair(paths)
    return Journal(paths, paths.journal.open("ab", buffering=0), Earlier(entries))


def peek(paths: Paths, fingerprint: Mapping[str, Any]) -> Earlier:
    """What is finished, as `resume` would find it, from files that are left as they are."""
    _check_fingerprint(paths, fingerprint)
    return Earlier(entries_of(paths.journal))


def _sync(file: IO[Any]) -> None:
    """Onto the disk, so that not even a power failure leaves a name without what it stands for."""
    file.flush()
    os.fsync(file.fileno())


def has_begun(paths: Paths) -> bool:
    """There is a journal. One whose first line a power failure left half written, or empty, holds nothing and is none."""
    if not paths.journal.exists():
        return False
    line = _first_line(paths.journal)
    start = line.rstrip(b"\0")
    return line.endswith(b"\n") or not (start.startswith(_HEADER_START) or _HEADER_START.startswith(start))


def read_header(path: Path) -> Mapping[str, Any]:
    """The fingerprint. Raises UsageError for a file that is no journal of this version."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        header = json.loads(line)
        version, fingerprint = header[_HEADER_KEY], header["fingerprint"]
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{path}: is not a journal of fastscribe's; use another folder, or --overwrite") from None
    if version != VERSION or not isinstance(fingerprint, dict):
        raise UsageError(
            f"{path}: was written by another version of fastscribe (format {version}, this one has {VERSION}); "
            "use another folder, or --overwrite"
        )
    return fingerprint


def _check_fingerprint(paths: Paths, fingerprint: Mapping[str, Any]) -> None:
    before, now = read_header(paths.journal), json.loads(json.dumps(fingerprint))
    if before == now:
        return
    names = [name for name in [*before, *(set(now) - set(before))] if _shown(before, name) != _shown(now, name)]
    differences = "; ".join(f"{name} was {_shown(before, name)}, is {_shown(now, name)}" for name in names)
    raise UsageError(
        f"{paths.directory}: holds results of a run with other settings ({differences}): use another folder, or "
        "--overwrite to start over"
    )


def _shown(fingerprint: Mapping[str, Any], name: str) -> str:
    return json.dumps(fingerprint[name], ensure_ascii=False) if name in fingerprint else "not there"


def entries_of(path: Path) -> np.ndarray:
    """All entries, gathered in blocks: a million tuples at once would take ten times the memory."""
    blocks, block = [np.zeros(0, _ENTRY)], []
    for entry, _ in read_entries(path):
        block.append((*entry[1:-1], name_key(entry.name) if entry.name else 0))
        if len(block) == _BLOCK_ENTRIES:
            blocks.append(np.array(block, _ENTRY))
            block = []
    return np.concatenate([*blocks, np.array(block, _ENTRY)])


def read_entries(path: Path) -> Iterator[tuple[Entry, int]]:
    """Entries with the byte after their line, up to the first line that is not whole."""
    with path.open("rb") as file:
        at = len(file.readline())
        for line in file:
            at += len(line)
            entry = _parse(line)
            if entry is None:
                return
            yield entry, at


def _parse(line: bytes) -> Entry | None:
    if not line.endswith(b"\n"):
        return None
    try:
        fields = json.loads(line)
        (begin, end), failed = fields["row"], fields["failed"] is True
        key, state = int(fields["key"], 16), int(fields["state"], 16)
        order, audio_s = int(fields["index"]), float(fields["audio_s"])
        id, name = str(fields["id"]), str(fields["name"])
        entry = Entry(id, key, state, int(begin), int(end), order, failed, audio_s, name)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    in_range = 0 <= entry.begin <= entry.end < _MOST and 0 <= order < _MOST
    return entry if in_range and max(key, state) < 1 << 64 and min(key, state) >= 0 else None


def repair(paths: Paths) -> np.ndarray:
    """Cuts journal and rows back to the last input that both have whole; returns the entries that stay."""
    rows_size = paths.rows.stat().st_size if paths.rows.exists() else 0
    entries = entries_of(paths.journal)
    starts = np.concatenate(([0], np.maximum.accumulate(entries["end"])))[:-1]
    fits = (entries["end"] <= rows_size) & ((entries["end"] == 0) | (entries["begin"] == starts))
    num_kept = _whole_rows(paths.rows, entries, len(entries) if fits.all() else int(np.argmin(fits)))
    rows_end = int(entries["end"][:num_kept].max(initial=0))
    if rows_size > rows_end:
        _cut(paths.rows, rows_end, is_unlisted=num_kept == len(entries))
    journal_end = _end_of_entry(paths.journal, num_kept)
    if paths.journal.stat().st_size > journal_end:
        os.truncate(paths.journal, journal_end)
    return entries[:num_kept]


def _whole_rows(path: Path, entries: np.ndarray, num_kept: int) -> int:
    """How many of the first entries have their row; a few at the end may have none, as power failures leave files."""
    if num_kept == 0 or entries["end"][num_kept - 1] == 0:
        return num_kept
    with path.open("rb") as file:
        for kept in range(num_kept, max(0, num_kept - _MOST_TORN), -1):
            begin, end = int(entries["begin"][kept - 1]), int(entries["end"][kept - 1])
            file.seek(begin)
            if _is_row(file.read(end - begin)):
                return kept
    if num_kept <= _MOST_TORN:
        return 0
    raise UsageError(f"{path}: {_CHANGED}")


def _is_row(row: bytes) -> bool:
    return row.startswith(b"{") and row.find(b"\n") == len(row) - 1


def _cut(path: Path, end: int, is_unlisted: bool) -> None:
    """Takes off what the journal knows nothing of. Unless a kill can have left it, it is kept beside, whoever it is from."""
    with path.open("rb") as file:
        file.seek(end)
        if not (is_unlisted and _is_killed_runs(file.readline(), file)):
            file.seek(end)
            with free_name(path, "cut-off").open("xb") as kept:
                shutil.copyfileobj(file, kept, _COPY_BYTES)
                _sync(kept)
    os.truncate(path, end)


def _is_killed_runs(line: bytes, rest: IO[bytes]) -> bool:
    """Half a row, zeros or one row of ours and nothing more."""
    if line.endswith(b"\n"):
        try:
            row = json.loads(line)
            is_ours = "audio_filepath" in row and ("segments" in row or "error" in row)
        except (ValueError, TypeError):
            return False
        return is_ours and not rest.read(1)
    return line.startswith(b"{") or not line.strip(b"\0")


def free_name(path: Path, what: str) -> Path:
    """The first of x.what.jsonl, x.what.2.jsonl .. that is not taken."""
    number, name = 1, path.with_suffix(f".{what}{path.suffix}")
    while name.exists():
        number += 1
        name = path.with_suffix(f".{what}.{number}{path.suffix}")
    return name


def _end_of_entry(path: Path, number: int) -> int:
    """The byte after the first `number` entries."""
    end = len(_first_line(path))
    for _, after in itertools.islice(read_entries(path), number):
        end = after
    return end


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline()


def live_places(entries: np.ndarray) -> np.ndarray:
    """Of the lines that no later line has replaced, in order."""
    return np.sort(Earlier(entries).places)


def tidy(paths: Paths, ordered: bool, order: np.ndarray) -> None:
    """Drops rows that were replaced and, if `ordered`, sorts them by their inputs' order; nothing is written where all is well.

    The journal must be closed. `order` is that of its first lines' inputs, which may no longer be what the lines say.
    """
    entries = entries_of(paths.journal)
    written_order = entries["order"].copy()
    entries["order"][: len(order)] = order
    places = live_places(entries)
    if ordered:
        places = places[np.argsort(entries["order"][places], kind="stable")]
    is_right = len(places) == len(entries) and bool((np.diff(places) > 0).all())
    if is_right and not (ordered and (entries["order"] != written_order).any()):
        return
    _write_parts(paths, entries, places)
    paths.swap.touch()
    finish_tidying(paths)


def _write_parts(paths: Paths, entries: np.ndarray, places: np.ndarray) -> None:
    lines = _line_starts(paths.journal)
    with (
        paths.rows.open("rb") if paths.rows.exists() else nullcontext() as rows,
        paths.journal.open("rb") as journal,
        _part(paths.journal).open("wb") as new_journal,
        _part(paths.rows).open("wb") as new_rows,
    ):
        new_journal.write(journal.readline())
        for place in places.tolist():
            journal.seek(lines[place])
            entry = _parse(journal.readline())
            assert entry is not None
            begin = new_rows.tell()
            if rows is not None and entry.end > entry.begin:
                rows.seek(entry.begin)
                row = rows.read(entry.end - entry.begin)
                if not _is_row(row):
                    raise UsageError(f"{paths.rows}: {_CHANGED}")
                new_rows.write(row)
            moved = entry._replace(begin=begin, end=new_rows.tell(), order=int(entries["order"][place]))
            new_journal.write(moved.line())
        _sync(new_rows)
        _sync(new_journal)
    if rows is None:
        _part(paths.rows).unlink()


def _line_starts(path: Path) -> list[int]:
    """Of the entries, one after another."""
    starts = [len(_first_line(path))]
    starts += [at for _, at in read_entries(path)]
    return starts


def finish_tidying(paths: Paths) -> None:
    """After a kill in the middle of it: completes it where both new files are there, forgets it where they are not."""
    complete = paths.swap.exists()
    for path in (paths.rows, paths.journal):
        part = _part(path)
        if part.exists():
            if complete:
                os.replace(part, path)
            else:
                part.unlink()
    paths.swap.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")
