"""Results in an object store. objects.py makes the requests, parts.py has the journal's objects, object_lock.py locks.

A store replaces an object in one step and lists what was written, but it neither appends nor renames. So results wait in
memory for some seconds, and a commit writes one object, a part, with their rows and journal lines. Their files follow, several
at once. A kill loses the results of the last pause at most. `transcripts.jsonl` is joined at the end. A store that can refuse
to replace an object is asked to, wherever no run has written one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from fastscribe._system.file_kinds import InTheWay
from fastscribe.results.journal import SYNCED, Journal, LastRun, check_same_settings, header_line, last_run, run_line
from fastscribe.results.object_lock import ObjectLock
from fastscribe.results.objects import Listing, ObjectFolder
from fastscribe.results.parts import (
    STATE,
    Parts,
    StoredRuns,
    check_listing,
    check_orphans,
    find_runs,
    folder_of,
    part_name,
    published_name,
    run_name,
    with_last_line,
)
from fastscribe.results.paths import Paths, in_the_way
from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.results.storage import ROWS, Each, Finish, Item, Pace

# The longer a run, the longer the pauses: a day makes some thousand commits.
MIN_PAUSE_S, MAX_PAUSE_S, PAUSE_SHARE = 2.0, 30.0, 0.01
_COMMIT_RESULTS, _COMMIT_BYTES = 1000, 1 << 23
_MAX_QUEUED = 1 << 30  # their bytes are the limit
MERGED = f"{STATE}/merged.json"  # says that a merge wrote the files of these names
MERGED_FILES = ("report.json", "transcripts.jsonl")


class ObjectStorage:
    """The storage of one shard below a URL. See storage.Storage for its methods.

    Args:
        url: The folder's URL.
        shard: The part of the inputs whose results are here.

    Raises:
        UsageError: The store needs a package that is not installed, or there is no such protocol or bucket.
    """

    def __init__(self, url: str, shard: Shard = UNSHARDED) -> None:
        self.folder = ObjectFolder(url)
        self.map: Each = self.folder.map
        self.where, self.shard, self.lacks_files = url, shard, False
        self.pace = Pace(_MAX_QUEUED, _COMMIT_RESULTS, _COMMIT_BYTES, MIN_PAUSE_S, MAX_PAUSE_S, PAUSE_SHARE)
        paths = Paths(Path(), shard.suffix)
        self._rows, self._report = paths.rows.name, paths.report.name
        self._found: dict[Shard, StoredRuns] | None = None  # the runs of all shards
        self._loaded: list[Parts] = []
        self._parts: Parts | None = None  # once it is open
        self._lock: ObjectLock | None = None
        self._name = ""  # of this run
        self._listing: Listing | None = None
        self._num_commits = 0
        self._has_written = self._is_published = False
        self._has_conditional_writes: bool | None = None  # not known yet
        self._asking = Lock()

    def lock(self, say: Callable[[str], object]) -> list[Shard]:
        self._name = self._own_runs().new_run()
        lock = ObjectLock(self.folder, f"{self._name}/alive.json")
        lock.acquire(self._locks, say)
        self._lock = lock
        self._check_own_names(besides=self._merged())
        self._found = None
        return [shard for shard, runs in self._runs().items() if runs.runs]

    def _locks(self) -> list[str]:
        found = find_runs(self.folder.list(folder_of(self.shard)))
        return [name for runs in found for name in runs.alive]

    def _runs(self) -> dict[Shard, StoredRuns]:
        """Return the runs of all shards. Parts without the settings of a run do not count."""
        if self._found is None:
            self._found = {runs.shard: runs for runs in find_runs(self.folder.list(STATE))}
        return self._found

    def _own_runs(self) -> StoredRuns:
        return self._runs().get(self.shard, StoredRuns(self.shard))

    def _check_own_names(self, besides: Sequence[str] = ()) -> None:
        """Raise UsageError if rows or report would replace something that no run wrote, except `besides`."""
        runs = self._own_runs()
        check_orphans(self.folder, runs)
        names = [] if runs.runs else [name for name in (self._rows, self._report) if name not in besides]
        for name in filter(self.folder.exists, names):
            raise in_the_way(self.folder.url_of(name))

    def _merged(self) -> tuple[str, ...]:
        """Return the files of a merge that this run, which has no shards, would replace."""
        return MERGED_FILES if self.shard.count == 1 and self.folder.exists(MERGED) else ()

    def load(self, shard: Shard, whatever_is_left: bool = False) -> Journal:
        runs = self._runs().get(shard, StoredRuns(shard))
        if not runs.runs:
            return Journal()
        self._loaded.append(Parts(self.folder, runs, whatever_is_left))
        return self._loaded[-1].journal

    def own_names(self, shard: Shard) -> Sequence[tuple[str, ...]]:
        runs = self._runs().get(shard, StoredRuns(shard))
        if not runs.runs:
            merged = self._merged() if shard == self.shard else ()
            return [merged, (MERGED,)] if merged else []
        names = Paths(Path(), shard.suffix)
        return [
            (names.report.name, names.rows.name, published_name(shard)),
            tuple(map(run_name, runs.runs)),  # a kill amid the parts would leave holes
            (*(name for name, _ in runs.parts), *runs.orphans),
        ]

    def open(self, header: Mapping[str, Any] | None, facts: Mapping[str, Any], say: Callable[[str], object]) -> Journal:
        self._found = self._listing = None
        self._check_own_names()
        runs = self._own_runs()
        earlier = self.load(self.shard)
        check_listing(self.folder, runs)
        if earlier.header is not None and header is not None:
            check_same_settings(self.where, earlier.header, header)
        self._is_published = bool(runs.runs) and all(map(self.folder.exists, (self._rows, self._report)))
        name, content = run_name(self._name), header_line(header or {}) + run_line({**earlier.facts, **facts})
        self.folder.put(name, content)
        self._first_object, self._say = (name, content), say
        self.folder.delete([self._report])
        if not runs.runs:
            self._loaded.append(Parts(self.folder, StoredRuns(self.shard, [self._name])))
        self._parts = self._loaded[-1]
        return self._parts.journal

    def commit(self, items: Sequence[Item]) -> Sequence[Item]:
        assert self._lock is not None and self._parts is not None
        self._lock.check()
        rows, lines, begin = [], [SYNCED] if self._has_written and not self.lacks_files else [], 0
        for item in items:
            if item.entry is not None:
                end = begin + len(item.row)  # of files that are made again, the part has the row again
                lines.append(item.entry._replace(begin=begin, end=end).line())
                rows.append(item.row)
                begin = end
        self._num_commits += 1
        name, written = part_name(self._name, self._num_commits), b"".join(lines)
        self.folder.put(name, with_last_line(b"".join(rows), written))
        self._parts.append(name, begin, written)
        self._has_written = False
        return items

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        if name == ROWS:
            assert end is not None
            parts = self._loaded[-1] if self._parts is None else self._parts
            return parts.read_rows(begin, end)
        return self.folder.read_if_there(name)

    def size(self, name: str) -> int | None:
        with self._asking:  # several threads ask
            if self._listing is None:  # a request for each file would take longer
                self._listing = Listing(self.folder.list())
        return self._listing.size(name)

    def write(self, name: str, content: bytes, replaces: bool) -> None:
        if not replaces and self._refuses_to_replace():
            self.folder.create(name, content)
        elif not replaces and self.folder.exists(name):
            raise InTheWay(self.folder.url_of(name))
        else:
            self.folder.put(name, content)
        self._has_written = True

    def _refuses_to_replace(self) -> bool:
        """Return True if the store can refuse to replace an object, which is tried once, with the run's first one."""
        with self._asking:
            if self._has_conditional_writes is None:
                self._has_conditional_writes = self.folder.refuses_to_replace(*self._first_object)
                if not self._has_conditional_writes:
                    self._say(
                        f"{self.where}: this store cannot refuse to replace an object: let no other program write there "
                        "during the run"
                    )
            return self._has_conditional_writes

    def remove(self, names: Sequence[str]) -> None:
        for rows in (name for name in names if name.endswith(".jsonl") and not name.startswith(STATE)):
            keep_rows_if_edited(self.folder, rows, MERGED if rows in self._merged() else published_name(self.shard))
        self.folder.delete(names)

    def sync(self, names: Sequence[str]) -> None:
        self._has_written, self._listing = True, None

    def close(self, finish: Finish | None) -> None:
        try:
            if finish is not None and self._parts is not None:
                self._finish(self._parts, finish)
        finally:
            if self._lock is not None:
                with suppress(OSError):  # another run waits until the lock is stale; the results are complete
                    self._lock.release()
            for parts in self._loaded:
                parts.close()
            self.folder.close()

    def _finish(self, parts: Parts, finish: Finish) -> None:
        """Join all rows, and replace those of an earlier run, unless nothing has changed; then write the report."""
        if self._has_written and not self.lacks_files:
            self.commit(())
        if finish.ordered or self._num_commits or not self._is_published:
            publish(self.folder, self._rows, published_name(self.shard), parts.join_rows(finish.ordered, finish.order))
        if finish.report is not None:
            self.folder.put(self._report, finish.report)


def last_stored_run(url: str, shard: Shard) -> LastRun | None:
    """Return what the last run of a shard stated; None if there is none. Raises UsageError, OSError."""
    with closing(ObjectFolder(url)) as folder:
        runs = next((runs.runs for runs in find_runs(folder.list(folder_of(shard))) if runs.runs), None)
        if runs is None:
            return None
        name = run_name(runs[-1])
        return last_run(folder.read(name).splitlines(keepends=True), folder.url_of(name))


# `transcripts.jsonl` at a URL: every run and merge replaces it, and what someone edited is kept beside. A note below
# `.fastscribe/` tells the sizes in bytes that the object had by our doing, because no journal lists it.


def publish(folder: ObjectFolder, rows: str, note: str, path: Path) -> None:
    """Write the rows, and replace earlier ones.

    Args:
        folder: The output URL's objects.
        rows: Name of the rows.
        note: Name of the note about them.
        path: The rows' file.

    Raises:
        OSError: The store cannot be read or written.
    """
    keep_rows_if_edited(folder, rows, note)
    sizes = [size for size in (folder.size(rows), path.stat().st_size) if size is not None]
    folder.put(note, (json.dumps({"bytes": sizes}) + "\n").encode())  # a kill may leave either
    folder.upload(rows, path)


def keep_rows_if_edited(folder: ObjectFolder, rows: str, note: str) -> None:
    """Copy rows that someone edited to `transcripts.previous.jsonl` or the next free name. Raises OSError.

    Without a note they are as a run left them.
    """
    try:
        sizes = list(json.loads(folder.read_if_there(note))["bytes"])
    except (ValueError, TypeError, KeyError):
        return
    stem, _, extension = rows.rpartition(".")
    content, number = b"" if folder.size(rows) in (None, *sizes) else folder.read_if_there(rows), 1
    while content:
        try:
            copy = f"{stem}.previous{f'.{number}' if number > 1 else ''}.{extension}"
            folder.create(copy, content)
            return
        except InTheWay:
            number += 1
