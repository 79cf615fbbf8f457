"""The journal of an output URL: numbered objects below `.fastscribe/`, because no store can append to an object.

    .fastscribe/0-of-1/                   one shard of the runs into this URL
        published.json                    the sizes of its transcripts.jsonl (storage_object.py)
        000001-3f9c02aa/                  one run
            run.json                      the fingerprint, and what the run states; its parts count with it alone
            alive.json                    the lock (object_lock.py), while the run lives
            000001.part.jsonl             one commit: rows, their journal lines (journal.py), and a last line with the offsets

No object is written twice, and no two runs have the same name, so runs cannot damage what others have committed. A number that
is missing is an error: a store whose listing lags, or somebody who deleted a part, must not have recordings done again.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Lock

from fastscribe.errors import UsageError
from fastscribe.results.compact import CHANGED, NO_ORDER, compact
from fastscribe.results.journal import SYNCED, parse_entry, parse_header, read_journal
from fastscribe.results.objects import ObjectFolder
from fastscribe.results.paths import Paths
from fastscribe.results.shards import Shard
from fastscribe.types import Int64Array

STATE = ".fastscribe"
_RUN_OBJECT = re.compile(
    re.escape(STATE) + r"/(\d+)-of-(\d+)/(\d{6}-[0-9a-f]{8})/(?:(run|alive)\.json|(\d{6})\.part\.jsonl)", re.ASCII
)
_PART_KEY = "fastscribe_part"
_END_BYTES = 1 << 16  # read of a part at first: the lines of about 200 results
_ROWS_BATCH = 8  # parts whose rows wait in memory


@dataclass
class StoredRuns:
    """The objects of one shard's runs."""

    shard: Shard
    runs: list[str] = field(default_factory=list)  # folders of runs, in order
    alive: list[str] = field(default_factory=list)  # locks
    parts: list[tuple[str, int]] = field(default_factory=list)  # names and sizes in bytes, in order
    orphans: list[str] = field(default_factory=list)  # parts of runs without run.json: somebody began to remove them

    def new_run(self) -> str:
        """Return the folder of the next run."""
        last = max((int(run.rpartition("/")[2][:6]) for run in self.runs), default=0)
        return f"{folder_of(self.shard)}/{last + 1:06d}-{token_hex(4)}"


def folder_of(shard: Shard) -> str:
    return f"{STATE}/{shard.index}-of-{shard.count}"


def run_name(run: str) -> str:
    return f"{run}/run.json"


def published_name(shard: Shard) -> str:
    """Return the name of the note about the shard's joined rows (storage_object.py)."""
    return f"{folder_of(shard)}/published.json"


def part_name(run: str, number: int) -> str:
    return f"{run}/{number:06d}.part.jsonl"


def find_runs(objects: Iterable[tuple[str, int]]) -> list[StoredRuns]:
    """Return the runs of each shard that these objects, names and sizes, belong to. Objects of other names are ignored."""
    found: dict[Shard, StoredRuns] = {}
    for name, size in sorted(objects):
        match = _RUN_OBJECT.fullmatch(name)
        if match is None:
            continue
        shard = Shard(int(match[1]), int(match[2]))
        runs = found.setdefault(shard, StoredRuns(shard))
        if match[4] == "run":
            runs.runs.append(name.rpartition("/")[0])
        elif match[4] == "alive":
            runs.alive.append(name)
        else:
            runs.parts.append((name, size))
    for runs in found.values():
        whole = set(runs.runs)
        runs.orphans = [name for name, _ in runs.parts if _run_of(name) not in whole]
        runs.parts = [(name, size) for name, size in runs.parts if _run_of(name) in whole]
    return sorted(found.values(), key=lambda runs: (runs.shard.count, runs.shard.index))


def with_last_line(rows: bytes, lines: bytes) -> bytes:
    """Return the content of a part."""
    return rows + lines + f'{{"{_PART_KEY}": [{len(rows)}, {len(lines)}]}}\n'.encode()


class Parts:
    """The parts of a shard: their rows in the store, and their lines in a temporary journal of an output folder's form.

    Offsets of rows count from the first part on. Rows are downloaded at the end of a run, or when several of a part are
    asked for: each part once, to its place in a temporary file.

    Args:
        folder: The output URL's objects.
        runs: The shard's runs.
        whatever_is_left: Leave out parts that are missing or were changed.

    Attributes:
        journal: What earlier runs have done.

    Raises:
        UsageError: A part is missing or was changed, or the journal is of another version.
        OSError: The store cannot be read.
    """

    def __init__(
        self,
        folder: ObjectFolder,
        runs: StoredRuns,
        whatever_is_left: bool = False,
    ) -> None:
        self._folder = folder
        self._temp = TemporaryDirectory(prefix="fastscribe-")
        self.paths = Paths(Path(self._temp.name), runs.shard.suffix)
        self._names: list[str] = []
        self._bounds = [0]  # where each part's rows begin among all, and where the last ones end
        self._asked: set[int] = set()  # parts of which a row was asked for
        self._here: set[int] = set()  # parts whose rows are in the file
        self._downloading = Lock()
        try:
            self.paths.rows.touch()
            self._lines = self.paths.journal.open("ab", buffering=0)
            stated = folder.read(name := run_name(runs.runs[-1]))
            parse_header(stated.partition(b"\n")[0], folder.url_of(name))  # an error has the object's name
            self._lines.write(stated)
            if not whatever_is_left:
                _check_numbers(folder, [name for name, _ in runs.parts])
            ends = folder.map(lambda part: _read_end(folder, *part), runs.parts)
            for (name, _), end in zip(runs.parts, ends, strict=True):
                if end is not None:
                    self.append(name, *end)
                elif not whatever_is_left and name != max(
                    one for one, _ in runs.parts if _run_of(one) == _run_of(name)
                ):
                    raise UsageError(f"{folder.url_of(name)}: {CHANGED}")
            self.journal = read_journal(self.paths.journal)
        except BaseException:
            self.close()
            raise

    def append(self, name: str, num_rows_bytes: int, lines: bytes) -> None:
        """Note a part that is written.

        Args:
            name: The object.
            num_rows_bytes: Bytes of its rows.
            lines: Its journal lines; the offsets of rows count from the part's beginning.
        """
        begin = self._bounds[-1]
        if num_rows_bytes:
            self._names.append(name)
            self._bounds.append(begin + num_rows_bytes)
        for line in lines.splitlines(keepends=True):
            entry = parse_entry(line)
            if entry is None and line != SYNCED:
                raise UsageError(f"{self._folder.url_of(name)}: {CHANGED}")
            if entry is not None and entry.end > entry.begin:
                line = entry._replace(begin=begin + entry.begin, end=begin + entry.end).line()
            self._lines.write(line)

    def read_rows(self, begin: int, end: int) -> bytes:
        """Return rows of one part. Safe to call from several threads. Raises OSError, and UsageError as join_rows().

        The second time, all rows of the part are downloaded: who asks for two may ask for a thousand, each a request.
        """
        place = bisect_right(self._bounds, begin) - 1
        with self._downloading:
            is_first = place not in self._asked
            self._asked.add(place)
            if not is_first and place not in self._here:
                self._put(place, self._download(place))
        if is_first:
            return self._folder.read(self._names[place], begin - self._bounds[place], end - begin)
        with self.paths.rows.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def _download(self, place: int) -> bytes:
        name, size = self._names[place], self._bounds[place + 1] - self._bounds[place]
        content = self._folder.read(name, 0, size)
        if len(content) < size:
            raise UsageError(f"{self._folder.url_of(name)}: {CHANGED}")
        return content

    def _put(self, place: int, content: bytes) -> None:
        with self.paths.rows.open("r+b") as file:
            file.seek(self._bounds[place])
            file.write(content)
        self._here.add(place)

    def join_rows(self, ordered: bool, order: Int64Array = NO_ORDER) -> Path:
        """Download all rows; return a file of those that are valid now, in the order of their completion or of the inputs.

        Args:
            ordered: Sort them by input.
            order: As for compact().

        Raises:
            UsageError: The rows were changed.
            OSError: The store cannot be read, or the temporary folder cannot be written.
        """
        left = [place for place in range(len(self._names)) if place not in self._here]
        for place, content in zip(left, self._folder.map(self._download, left, _ROWS_BATCH), strict=True):
            self._put(place, content)
        self._lines.close()  # Windows replaces no open file
        compact(self.paths, ordered, order)
        return self.paths.rows

    def close(self) -> None:
        if hasattr(self, "_lines"):
            self._lines.close()
        self._temp.cleanup()


def _check_numbers(folder: ObjectFolder, names: Sequence[str]) -> None:
    """Raise UsageError if a part is missing between others, or before the first one of its run."""
    for before, name in pairwise(["/000000.", *names]):
        (run_before, number_before), (run, number) = (_number_of(one) for one in (before, name))
        expected = number_before + 1 if run == run_before else 1
        if number != expected:
            raise _missing(folder, part_name(run, expected))


def check_listing(folder: ObjectFolder, runs: StoredRuns) -> None:
    """Raise UsageError if the store has a part that its listing lacks, behind the last one of a run. Raises OSError."""
    numbers = dict.fromkeys(runs.runs, 0) | dict(_number_of(name) for name, _ in runs.parts)
    names = [part_name(run, number + 1) for run, number in numbers.items()]
    for name, exists in zip(names, folder.map(folder.exists, names), strict=True):
        if exists:
            raise _missing(folder, name)


def check_orphans(folder: ObjectFolder, runs: StoredRuns) -> None:
    """Raise UsageError if the store has the first object of a run of which its listing has parts alone. Raises OSError."""
    for run in dict.fromkeys(map(_run_of, runs.orphans)):
        if folder.exists(run_name(run)):
            raise _missing(folder, run_name(run))


def _missing(folder: ObjectFolder, part: str) -> UsageError:
    return UsageError(
        f"{folder.url_of(part)}: is missing, and what was done is in it: repeat the command if the store lists it late, or "
        "use another folder, or --overwrite to start over"
    )


def _number_of(part: str) -> tuple[str, int]:
    return _run_of(part), int(part.rpartition("/")[2][:6])


def _run_of(part: str) -> str:
    return part.rpartition("/")[0]


def _read_end(folder: ObjectFolder, name: str, size: int) -> tuple[int, bytes] | None:
    """Return the size of a part's rows in bytes, and its journal lines; None if it has no whole last line."""
    begin = max(0, size - _END_BYTES)
    content = folder.read(name, begin, size - begin)
    try:
        num_rows, num_lines = map(int, json.loads(content.rstrip(b"\n").rpartition(b"\n")[2])[_PART_KEY])
    except (ValueError, TypeError, KeyError):
        return None
    if begin > num_rows:
        content, begin = folder.read(name, num_rows, num_lines), num_rows
    return num_rows, content[num_rows - begin :][:num_lines]
