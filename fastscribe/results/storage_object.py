"""Results in an object store. objects.py makes the requests, object_journal.py names the objects, object_lock.py locks.

A store replaces an object in one step and lists what was written, but it neither appends nor renames. So results wait in
memory for some seconds, and a commit

1. writes an object with their rows, and with the names of their files;
2. writes their files, several at once;
3. writes an object with their journal lines.

So the journal lists results only that the store has. A kill loses the results of the last pause at most: what it leaves
between 1 and 3, the next run deletes. `transcripts.jsonl` is joined at the end. A store that can refuse to replace an object
is asked to, wherever no run has written one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from fastscribe.results.edits import Edits
from fastscribe.results.entries import FILE_FORMATS, NO_FILE, Entry
from fastscribe.results.items import Item, Pace, StagedFile
from fastscribe.results.object_journal import (
    STATE,
    ObjectJournal,
    StoredRuns,
    WrittenFiles,
    alive_name,
    begun_by_all,
    entries_of,
    files_line,
    find_runs,
    folder_of,
    journal_name,
    published_name,
    rows_name,
    run_name,
)
from fastscribe.results.object_lock import ObjectLock, check_dead
from fastscribe.results.objects import Listing, ObjectFolder
from fastscribe.results.paths import Paths, header_line, in_the_way
from fastscribe.results.published import keep_edited, keep_rows_if_edited, publish
from fastscribe.results.shards import UNSHARDED, Shard

# The longer a run, the longer the pauses: a day makes some thousand commits.
MIN_PAUSE_S, MAX_PAUSE_S, PAUSE_SHARE = 2.0, 30.0, 0.01
_COMMIT_RESULTS, _COMMIT_BYTES = 1000, 1 << 23
_MAX_QUEUED = 1 << 30  # their bytes are the limit
MERGED = f"{STATE}/merged.json"  # says that a merge wrote the files of these names
MERGED_FILES = ("transcripts.jsonl", "report.json")


class ObjectStorage:
    """The storage of one shard below a URL. See storage.Storage for its methods.

    Args:
        url: The folder's URL.
        shard: The part of the inputs whose results are here.

    Raises:
        UsageError: The store needs a package that is not installed, or there is no such protocol or bucket.
    """

    can_rename = is_local = False

    def __init__(self, url: str, shard: Shard = UNSHARDED) -> None:
        self.folder = ObjectFolder(url)
        self.where, self.shard = url, shard
        self.pace = Pace(_MAX_QUEUED, _COMMIT_RESULTS, _COMMIT_BYTES, MIN_PAUSE_S, MAX_PAUSE_S, PAUSE_SHARE)
        self.edits = Edits()
        paths = Paths(Path(), shard.suffix)
        self._rows, self._report = paths.rows.name, paths.report.name
        self._found: list[StoredRuns] | None = None  # the runs of all shards
        self._name = ""  # of this run
        self._lock: ObjectLock | None = None
        self._journal: ObjectJournal | None = None
        self._listing, self._num_foreign = Listing(()), 0
        self._begun: dict[str, int] = {}  # files, and their sizes, of commits that a kill interrupted
        self._left: list[str] = []  # files that a kill has left
        self._to_set_aside: set[str] = set()
        self._has_files = self._has_conditional_writes = self._is_published = False
        self._num_commits = 0

    # --- the life of a run

    def lock(self, say: Callable[[str], object]) -> None:
        self._name = self._own_runs().new_run()
        lock = ObjectLock(self.folder, alive_name(self._name))
        lock.acquire(self._locks, say)
        self._lock, self._found = lock, None

    def _locks(self) -> list[str]:
        found = find_runs(name for name, _ in self.folder.list(folder_of(self.shard)))
        return [name for runs in found for name in runs.alive]

    def _runs(self) -> list[StoredRuns]:
        """Return the runs of all shards. Commits without the settings of a run do not count."""
        if self._found is None:
            found = find_runs(name for name, _ in self.folder.list(STATE))
            self._found = [runs for runs in found if runs.runs]
        return self._found

    def _own_runs(self) -> StoredRuns:
        return next((runs for runs in self._runs() if runs.shard == self.shard), StoredRuns(self.shard))

    def shards(self) -> list[Shard]:
        return [runs.shard for runs in self._runs()]

    def shown(self, shard: Shard) -> str:
        return f"results of shard {shard}"

    def removable(self, shards: Sequence[Shard]) -> Container[str]:
        ours = set(self._merged_files())
        for runs in self._runs_of(shards):
            paths = Paths(Path(), runs.shard.suffix)
            ours |= {paths.report.name, paths.rows.name, *begun_by_all(self.folder, runs), *self._listed_sizes(runs)}
        results = (found for found in self.folder.list() if not found[0].startswith(f"{STATE}/"))
        self._listing = Listing(found for found in results if found[0] not in ours)
        self._num_foreign = len(self._listing)
        return ours

    def _runs_of(self, shards: Sequence[Shard]) -> list[StoredRuns]:
        return [runs for runs in self._runs() if runs.shard in shards]

    def _merged_files(self) -> list[str]:
        return [*reversed(MERGED_FILES)] if self.shard.count == 1 and self.folder.exists(MERGED) else []

    def _listed_sizes(self, runs: StoredRuns) -> dict[str, int]:
        """Return the sizes in bytes of the files that a shard's journal lists, by name."""
        entries = entries_of(self.folder, runs)
        return {f"{entry.name}.{format}": size for entry in entries for format, size in entry.sizes.items()}

    def remove(self, shards: Sequence[Shard], say: Callable[[str], object]) -> None:
        former = self._runs_of(shards)
        locks = [name for runs in former for name in runs.alive if runs.shard != self.shard]
        check_dead(self.folder, locks, say)
        for runs in former:
            self._remove(runs)
        self.folder.delete(locks)
        if self.shard.count == 1:
            keep_rows_if_edited(self.folder, "transcripts.jsonl", MERGED)
            self.folder.delete(self._merged_files())
            self.folder.delete([MERGED])
        for line in self.edits.lines():
            say(line)
        self.edits = Edits()
        self._found = [runs for runs in self._runs() if runs not in former]

    def _remove(self, runs: StoredRuns) -> None:
        """Delete results first and the journal last: after a kill, it lists what is left. Edited files are kept beside."""
        folder, sizes = self.folder, self._listed_sizes(runs)
        begun = begun_by_all(folder, runs)
        listing = Listing(folder.list() if sizes or begun else ())
        present = [name for name in {**begun, **sizes} if listing.size(name) is not None]
        edited = [name for name in present if listing.size(name) not in (sizes.get(name), begun.get(name))]
        self._each(self._keep_edited, (one for one in edited if one in sizes))
        folder.delete(name for name in present if name in sizes or name not in edited)
        paths = Paths(Path(), runs.shard.suffix)
        keep_rows_if_edited(folder, paths.rows.name, published_name(runs.shard))
        folder.delete([paths.report.name, paths.rows.name, published_name(runs.shard)])
        folder.delete(map(journal_name, runs.commits))
        folder.delete(map(rows_name, [*runs.commits, *runs.unfinished]))
        folder.delete(map(run_name, reversed(runs.runs)))

    def check_own_names(self, removed: Container[str] | None = None) -> None:
        names = (self._rows, self._report)
        if removed is not None:
            taken = [name for name in names if name not in removed and self._listing.size(name) is not None]
        else:
            taken = [] if self._own_runs().runs else [name for name in names if self.folder.exists(name)]
        if taken:
            raise in_the_way([self.folder.url_of(name) for name in taken])

    def open_journal(
        self, header: Mapping[str, Any], has_files: bool, say: Callable[[str], object] | None
    ) -> ObjectJournal:
        runs = self._own_runs()
        self._journal = journal = ObjectJournal(self.folder, runs)
        journal.check(header)
        written = WrittenFiles(journal.previous.entries)
        self._begun = begun_by_all(self.folder, runs)
        self._written, self._num_foreign, self._has_files = written, 0, has_files
        self._listing = Listing(self._list() if has_files or written else ())
        return journal

    def _list(self) -> Iterator[tuple[str, int]]:
        """Yield names and sizes of all objects, and note which of them a kill has left and how many are no run's."""
        assert self._journal is not None
        previous = self._journal.previous
        for file, size in self.folder.list():
            name, _, format = file.rpartition(".")
            is_result = format in FILE_FORMATS and not file.startswith(f"{STATE}/")
            if is_result and format not in previous.sizes(previous.find_by_name(name)):
                if self._was_written(file, size):
                    self._left.append(file)
                else:
                    self._num_foreign += 1
            yield file, size

    def _was_written(self, file: str, size: int) -> bool:
        return self._written.has(file, size) or self._begun.get(file) == size

    def begin(self, header: Mapping[str, Any], say: Callable[[str], object]) -> None:
        """Delete what a kill has left, and write the run's first object."""
        self.folder.delete(self._left)
        self._is_published = bool(self._own_runs().runs) and all(map(self.folder.exists, (self._rows, self._report)))
        name, content = run_name(self._name), header_line(header)
        self.folder.put(name, content)
        self._has_conditional_writes = not self._has_files or self.folder.refuses_to_replace(name, content)
        if not self._has_conditional_writes:
            say(
                f"{self.where}: this store cannot refuse to replace an object: let no other program write there during the run"
            )
        self.folder.delete([self._report])

    def commit(self, items: Sequence[Item]) -> None:
        assert self._lock is not None and self._journal is not None
        self._lock.check()
        self._num_commits += 1
        commit = f"{self._name}/{self._num_commits:06d}"
        files = {file.name: file for item in items for file in item.files}  # a later result of the same name is valid
        rows, entries = b"".join(item.row for item in items), _with_offsets(items)
        sizes = files_line({name: file.size for name, file in files.items()}) if files else b""
        self.folder.put(rows_name(commit), rows + sizes)
        self._each(self._write_file, files.values())
        self.folder.put(journal_name(commit), b"".join(entry.line() for entry in entries))
        self._journal.append(commit, entries)
        self._each(self._remove_file, (name for item in items for name in item.obsolete if name not in files))

    def _each(self, call: Callable[[Any], None], given: Iterable[Any]) -> None:
        for _ in self.folder.map(call, given):
            pass

    def _write_file(self, file: StagedFile) -> None:
        self._keep_if_edited(file.name)
        if file.is_replacing or not self._has_conditional_writes:
            self.folder.put(file.name, file.content)
        else:
            self.folder.create(file.name, file.content)

    def _remove_file(self, name: str) -> None:
        self._keep_if_edited(name)
        self.folder.delete([name])

    def _keep_if_edited(self, name: str) -> None:
        if name in self._to_set_aside:
            self._keep_edited(name)

    def _keep_edited(self, name: str) -> None:
        if copy := keep_edited(self.folder, name):
            self.edits.set_aside[self.folder.url_of(name)] = copy

    def end_commits(self) -> None:
        """Do nothing: the objects of a commit are the journal."""

    def publish(self, ordered: bool) -> None:
        """Join all rows, and replace those of an earlier run, unless nothing has changed."""
        assert self._journal is not None
        if ordered or self._num_commits or not self._is_published:
            publish(self.folder, self._rows, published_name(self.shard), self._journal.join_rows(ordered))

    def write_report(self, content: bytes) -> None:
        self.folder.put(self._report, content)

    def close(self, is_finished: bool, ordered: bool) -> None:
        try:
            if self._lock is not None:
                self._lock.release()
        except OSError:  # another run waits until the lock is stale; the results are complete
            pass
        finally:
            if self._journal is not None:
                self._journal.close()
            self.folder.close()

    # --- files of results, as the listing at the start of the run has them

    def has_other_files(self) -> bool:
        return self._num_foreign > 0

    def path_of(self, file: str) -> str:
        return self.folder.url_of(file)

    def is_taken(self, file: str) -> bool:
        return self._listing.size(file) is not None

    def size(self, file: str) -> int | None:
        size = self._listing.size(file)
        return None if size is None else min(size, NO_FILE - 1)

    def read(self, file: str) -> bytes:
        return self.folder.read_if_there(file)

    def is_left_over(self, file: str) -> bool:
        size = self._listing.size(file)
        return size is not None and self._was_written(file, size)

    def is_damaged(self, file: str, whole: Callable[[], bytes]) -> bool:
        """Return True if an interrupted commit wrote the object. A store has no half objects."""
        size = self._listing.size(file)
        return size is not None and self._begun.get(file) == size

    def set_aside(self, file: str) -> None:
        """Have the next commit copy the object before it replaces it: others may write it until then."""
        self._to_set_aside.add(file)

    def stage(self, file: str, content: bytes, is_listed: bool) -> StagedFile:
        is_replacing = self._listing.size(file) is not None  # result_files.py has checked that a run wrote it
        return StagedFile(file, "", len(content), crc32(content), is_replacing, content)

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Do nothing: staged files are in memory."""

    def discard_stale(self, file: str) -> None:
        """Do nothing: staged files are in memory."""


def _with_offsets(items: Sequence[Item]) -> list[Entry]:
    """Return the entries with the offsets of their rows in the commit's object, which has every row, new or not."""
    entries, begin = [], 0
    for item in items:
        assert item.entry is not None  # nothing is renamed
        entries.append(item.entry._replace(begin=begin, end=begin + len(item.row)))
        begin += len(item.row)
    return entries
