"""The journal of an output URL: numbered objects below `.fastscribe/`, because no store can append to an object.

    .fastscribe/0-of-1/                   one shard of the runs into this URL
        published.json                    the sizes of its transcripts.jsonl (published.py)
        000001-3f9c02aa/                  one run
            run.json                      the fingerprint; written first, deleted last
            alive.json                    the lock (object_lock.py), while the run lives
            000001.rows.jsonl             the rows of one commit, and the names of the files that it writes
            000001.journal.jsonl          its journal lines (entries.py): this object says that the commit is complete

No object is written twice, and no two runs have the same name, so runs cannot damage what others have committed.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fastscribe._system.safe_files import open_append, write_atomic
from fastscribe.errors import UsageError
from fastscribe.results.block import Appender
from fastscribe.results.compact import CHANGED, compact
from fastscribe.results.entries import FILE_FORMATS, NO_FILE, NO_STATE, Entry, PreviousRun, load_entries, parse_entry
from fastscribe.results.journal import Journal, check_same_settings
from fastscribe.results.names import name_key
from fastscribe.results.objects import ObjectFolder
from fastscribe.results.paths import Paths, header_line, parse_header
from fastscribe.results.shards import Shard
from fastscribe.types import RecordArray

STATE = ".fastscribe"
_RUN_OBJECT = re.compile(
    re.escape(STATE) + r"/(\d+)-of-(\d+)/(\d{6}-[0-9a-f]{8})/(?:(run|alive)\.json|(\d{6})\.(rows|journal)\.jsonl)",
    re.ASCII,
)
_FILES_KEY = "fastscribe_files"
_ROWS_BATCH = 8  # objects with rows that wait in memory


@dataclass
class StoredRuns:
    """Names of the objects of one shard's runs."""

    shard: Shard
    runs: list[str] = field(default_factory=list)  # folders of runs, in order
    alive: list[str] = field(default_factory=list)  # locks
    commits: list[str] = field(default_factory=list)  # complete ones, in order: the names without .rows.jsonl
    unfinished: list[str] = field(default_factory=list)  # likewise, of commits that a kill interrupted
    without_rows: set[str] = field(default_factory=set)  # likewise, of commits whose rows someone deleted

    @property
    def folder(self) -> str:
        return folder_of(self.shard)

    def new_run(self) -> str:
        """Return the folder of the next run."""
        last = max((int(run.rpartition("/")[2][:6]) for run in self.runs), default=0)
        return f"{self.folder}/{last + 1:06d}-{token_hex(4)}"


def folder_of(shard: Shard) -> str:
    return f"{STATE}/{shard.index}-of-{shard.count}"


def find_runs(names: Iterable[str]) -> list[StoredRuns]:
    """Return the runs of each shard that these objects belong to. Objects of other names are ignored."""
    found: dict[Shard, StoredRuns] = {}
    with_rows: dict[Shard, list[str]] = {}
    for name in sorted(names):
        match = _RUN_OBJECT.fullmatch(name)
        if match is None:
            continue
        shard, run = Shard(int(match[1]), int(match[2])), name.rpartition("/")[0]
        runs = found.setdefault(shard, StoredRuns(shard))
        if match[4] == "run":
            runs.runs.append(run)
        elif match[4] == "alive":
            runs.alive.append(name)
        elif match[6] == "rows":
            with_rows.setdefault(shard, []).append(f"{run}/{match[5]}")
        else:
            runs.commits.append(f"{run}/{match[5]}")
    for shard, runs in found.items():
        complete = set(runs.commits)
        runs.unfinished = [commit for commit in with_rows.get(shard, ()) if commit not in complete]
        runs.without_rows = complete.difference(with_rows.get(shard, ()))
    return sorted(found.values(), key=lambda runs: (runs.shard.count, runs.shard.index))


def rows_name(commit: str) -> str:
    return f"{commit}.rows.jsonl"


def journal_name(commit: str) -> str:
    return f"{commit}.journal.jsonl"


def run_name(run: str) -> str:
    return f"{run}/run.json"


def published_name(shard: Shard) -> str:
    """Return the name of the note about the shard's joined rows (published.py)."""
    return f"{folder_of(shard)}/published.json"


def alive_name(run: str) -> str:
    return f"{run}/alive.json"


def files_line(sizes: Mapping[str, int]) -> bytes:
    """Return the line after the rows: the files of a commit and their sizes, of which a kill may leave some."""
    return (json.dumps({_FILES_KEY: dict(sizes)}) + "\n").encode()


def begun_files(rows: bytes) -> dict[str, int]:
    """Return what `files_line` recorded at the end of these rows."""
    last = rows.rstrip(b"\n").rpartition(b"\n")[2]
    try:
        return {str(name): int(size) for name, size in json.loads(last)[_FILES_KEY].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def begun_by_all(folder: ObjectFolder, runs: StoredRuns) -> dict[str, int]:
    """Return the files, and their sizes, that commits which a kill interrupted were about to write."""
    begun: dict[str, int] = {}
    for rows in folder.map(folder.read_if_there, map(rows_name, runs.unfinished)):
        begun |= begun_files(rows)
    return begun


class ObjectJournal(Journal):
    """The results of a shard's earlier runs, and of this one, in a temporary folder that has an output folder's format.

    Rows are downloaded at the end of a run only.

    Args:
        folder: The output URL's objects.
        runs: The shard's runs.

    Raises:
        UsageError: The journal is of another version, or was changed.
        OSError: The store cannot be read.
    """

    def __init__(self, folder: ObjectFolder, runs: StoredRuns) -> None:
        self._folder = folder
        self._temp = TemporaryDirectory(prefix="fastscribe-")
        try:
            paths = Paths(Path(self._temp.name), runs.shard.suffix)
            self._earlier = _read_fingerprint(folder, runs)
            self._commits: list[tuple[str, int]] = []  # each commit, and the size of its rows in bytes
            self._begins: list[int] = []  # where each commit's rows begin among all
            self._rows_end = 0
            write_atomic(paths.journal, header_line(self._earlier or {}))
            self._lines = Appender(open_append(paths.journal), paths.journal)
            names = map(journal_name, runs.commits)
            for commit, content in zip(runs.commits, folder.map(folder.read, names), strict=True):
                entries = _parse(content, folder.url_of(journal_name(commit)))
                self.append(commit, map(without_row, entries) if commit in runs.without_rows else entries)
            super().__init__(paths, PreviousRun(load_entries(paths.journal)), self._earlier or {})
        except BaseException:
            self.close()
            raise

    def check(self, fingerprint: Mapping[str, Any]) -> None:
        """Raise UsageError if the results are of a run with other settings."""
        if self._earlier is not None:
            check_same_settings(self._folder.url, self._earlier, fingerprint)

    def append(self, commit: str, entries: Iterable[Entry]) -> None:
        """Note a commit that is complete.

        Args:
            commit: Its name.
            entries: With the offsets of their rows in the commit's object; in the journal they count from the start of all.
        """
        found, begin = list(entries), self._rows_end
        size = max((entry.end for entry in found), default=0)
        self._commits.append((commit, size))
        self._begins.append(begin)
        self._rows_end += size
        lines = [entry._replace(begin=begin + entry.begin, end=begin + entry.end).line() for entry in found]
        self._lines.append(b"".join(lines))

    def row(self, entry: Entry) -> bytes:
        """Download an earlier result's row; b"" if it has none. Raises OSError."""
        place = bisect_right(self._begins, entry.begin) - 1
        if entry.end == entry.begin:
            return b""
        start = entry.begin - self._begins[place]
        try:
            return self._folder.read(rows_name(self._commits[place][0]), start, entry.end - entry.begin)
        except FileNotFoundError:  # someone deleted the object during this run
            return b""

    def join_rows(self, ordered: bool) -> Path:
        """Download all rows; return a file of those that are valid now, in the order of their completion or of the inputs.

        Raises:
            UsageError: The rows were changed.
            OSError: The store cannot be read, or the temporary folder cannot be written.
        """
        self._lines.close()
        commits = [(commit, size) for commit, size in self._commits if size]
        names = [rows_name(commit) for commit, _ in commits]
        with self.paths.rows.open("wb") as file:
            contents = self._folder.map(self._folder.read, names, _ROWS_BATCH)
            for (commit, size), content in zip(commits, contents, strict=True):
                if len(content) < size:
                    raise UsageError(f"{self._folder.url_of(rows_name(commit))}: {CHANGED}")
                file.write(content[:size])
        entries, previous = load_entries(self.paths.journal), self.previous.entries
        order = np.concatenate([previous["order"], entries["order"][len(previous) :]])
        compact(self.paths, ordered, order, entries["state"] == NO_STATE)
        return self.paths.rows

    def close(self) -> None:
        if hasattr(self, "_lines"):
            self._lines.close()
        self._temp.cleanup()


def _read_fingerprint(folder: ObjectFolder, runs: StoredRuns) -> dict[str, Any] | None:
    """Return the fingerprint of the last run; None if there was no run."""
    if not runs.runs:
        return None
    name = run_name(runs.runs[-1])
    return dict(parse_header(folder.read(name), folder.url_of(name)))


def _parse(content: bytes, where: str) -> list[Entry]:
    entries = [parse_entry(line) for line in content.splitlines(keepends=True)]
    whole = [entry for entry in entries if entry is not None]
    if len(whole) < len(entries):
        raise UsageError(f"{where}: {CHANGED}")
    return whole


def without_row(entry: Entry) -> Entry:
    """Return an entry that keeps the ownership of its files only: no input has its state."""
    return entry._replace(begin=0, end=0, state=NO_STATE)


def entries_of(folder: ObjectFolder, runs: StoredRuns) -> Iterable[Entry]:
    """Yield all entries of a shard's runs, in order."""
    names = [journal_name(commit) for commit in runs.commits]
    for name, content in zip(names, folder.map(folder.read_if_there, names), strict=True):
        yield from _parse(content, folder.url_of(name))


class WrittenFiles:
    """The files that the runs of a shard have ever written. A kill may leave some of them although they were replaced.

    Args:
        entries: Of all runs.
    """

    def __init__(self, entries: RecordArray) -> None:
        self._by_name = np.argsort(entries["name"], kind="stable")
        self._names, self._sizes = entries["name"][self._by_name], entries["sizes"]

    def __bool__(self) -> bool:
        return bool((self._sizes != NO_FILE).any())

    def has(self, file: str, size: int) -> bool:
        """Return True if a run wrote a file of this name with this size in bytes."""
        name, _, format = file.rpartition(".")
        if format not in FILE_FORMATS:
            return False
        key = np.uint64(name_key(name))
        begin, end = (np.searchsorted(self._names, key, side) for side in ("left", "right"))
        sizes = self._sizes[self._by_name[begin:end], FILE_FORMATS.index(format)]
        return bool((sizes == min(size, NO_FILE - 1)).any())
