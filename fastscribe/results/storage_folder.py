"""Results in a folder. block.py commits, compact.py and repair.py rewrite and mend its rows and journal.

A folder renames in one step and appends, but has nothing on the disk before a sync: so files have temporary names until a
commit, and every step waits until the one before is durable.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from zlib import crc32

import numpy as np

from fastscribe._system.file_kinds import is_regular, status_of
from fastscribe._system.safe_files import (
    Barrier,
    discard_temp,
    is_truncated_or_blank,
    keep_edited_copy,
    open_append,
    remove,
    sync_folder,
    temp_path_for,
    write_atomic,
    write_temp,
)
from fastscribe._system.safe_open import safe_read
from fastscribe.errors import UsageError
from fastscribe.results.block import Appender, Block, commit, discard_temps, redo
from fastscribe.results.compact import compact, finish_compaction
from fastscribe.results.edits import Edits
from fastscribe.results.entries import ENTRY, NO_FILE, PreviousRun, load_entries, load_entries_and_names, read_entries
from fastscribe.results.folder_lock import FolderLock
from fastscribe.results.items import Item, Pace, StagedFile
from fastscribe.results.journal import Journal, begin, load_readonly, resume, resume_unedited
from fastscribe.results.paths import Paths
from fastscribe.results.shards import UNSHARDED, Shard

_MAX_REPORT_BYTES = 1 << 24
_REMOVE_TIMEOUT_S = 5.0  # until another shard of this run must have removed what both find


class FolderStorage:
    """The storage of one shard in a folder. See storage.Storage for its methods.

    Args:
        directory: The folder, which `lock` makes if need be.
        shard: The part of the inputs whose results are here.
    """

    can_rename = is_local = True
    pace = Pace(max_queued=2048, max_results=2048, max_bytes=1 << 26)

    def __init__(self, directory: Path, shard: Shard = UNSHARDED) -> None:
        self.where, self.shard = str(directory), shard
        self.paths = Paths(directory, shard.suffix)
        self.edits = Edits()
        self._directory = directory
        self._lock: FolderLock | None = None
        self._journal: Journal | None = None
        self._writing = ExitStack()  # of the files that are open
        self._watched: Path | None = None

    # --- the life of a run

    def lock(self, say: Callable[[str], object]) -> None:
        if not self._directory.is_dir():
            self._directory.mkdir(parents=True, exist_ok=True)
            sync_folder(self._directory.parent)
        self._lock = FolderLock(self.paths.lock)

    def shards(self) -> list[Shard]:
        return [paths.shard for paths in journals_in(self._directory)]

    def shown(self, shard: Shard) -> str:
        return Paths(self._directory, shard.suffix).journal.name

    def removable(self, shards: Sequence[Shard]) -> Container[str]:
        found = [paths for paths in self._paths_of(shards) if paths.has_begun]
        return _Listed(self._directory, [PreviousRun(load_entries(paths.journal)) for paths in found])

    def remove(self, shards: Sequence[Shard], say: Callable[[str], object]) -> None:
        merged = self._merged_files()
        edits = Edits()
        for paths in self._paths_of([shard for shard in shards if shard != self.shard]):
            _remove_others(paths, edits)
        _remove_results(self.paths, edits)
        for line in edits.lines():
            say(line)
        for path in merged:
            remove(path)

    def check_own_names(self, removed: Container[str] | None = None) -> None:
        self.paths.check(besides=() if removed is None else self._merged_files())

    def open_journal(self, header: Mapping[str, Any], has_files: bool, say: Callable[[str], object] | None) -> Journal:
        if say is None:
            has_begun = self.paths.has_begun
            previous = load_readonly(self.paths, header) if has_begun else PreviousRun(np.zeros(0, ENTRY))
            return Journal(self.paths, previous, header, is_new=not has_begun)
        if self.paths.has_begun:
            finish_compaction(self.paths)
            self._journal = resume(self.paths, header, say)
        else:
            self._journal = begin(self.paths, header)
        return self._journal

    def open_unedited(self) -> Journal:
        """Return the journal, whatever its settings, ready for commits. Raise UsageError if someone changed its rows."""
        self.paths.check()
        finish_compaction(self.paths)
        self._journal = resume_unedited(self.paths)
        self._begin_commits()
        return self._journal

    def begin(self, header: Mapping[str, Any], say: Callable[[str], object]) -> None:
        self._begin_commits()
        remove(self.paths.report)
        sync_folder(self._directory)

    def _begin_commits(self) -> None:
        self._rows, self._lines = (
            self._writing.enter_context(closing(Appender(open_append(path), path)))
            for path in (self.paths.rows, self.paths.journal)
        )
        self._barrier = self._writing.enter_context(closing(Barrier()))
        self._barrier.watch(self._directory)

    def commit(self, items: Sequence[Item]) -> None:
        block = Block.of(items, self._rows.end, self._lines.end)
        commit(block, self.paths, self._barrier, self._rows, self._lines)

    def end_commits(self) -> None:
        remove(self.paths.block)
        sync_folder(self._directory)

    def publish(self, ordered: bool) -> None:
        """Do nothing: commits append to the rows that readers see."""

    def write_report(self, content: bytes) -> None:
        write_atomic(self.paths.report, content)

    def close(self, is_finished: bool, ordered: bool) -> None:
        """Unlock the shard. Of a finished run, first rewrite rows and journal where they change.

        That removes replaced rows, and entries of inputs that never were recordings and are not among this run's inputs: a bad
        row of a manifest that has been corrected, a path that has been corrected.
        """
        try:
            self._writing.close()
            if is_finished and self._journal is not None:
                previous = self._journal.previous
                is_dropped = previous.entries["for_list"] & ~previous.is_in_this_run
                is_replaced = (previous.is_replaced | previous.is_made_again).any()
                if ordered or is_replaced or is_dropped.any() or len(previous) < len(previous.entries):
                    compact(self.paths, ordered, previous.entries["order"], is_dropped)
        finally:
            if self._lock is not None:
                self._lock.close()

    def end_writing(self) -> None:
        """Close rows and journal, and keep the lock."""
        self._writing.close()

    def _paths_of(self, shards: Iterable[Shard]) -> list[Paths]:
        return [Paths(self._directory, shard.suffix) for shard in shards]

    def _merged_files(self) -> list[Path]:
        return merged_files(self._directory) if self.shard.count == 1 else []

    # --- files of results

    def has_other_files(self) -> bool:
        paths = self.paths
        own = {path.name for path in (paths.lock, paths.journal, paths.rows, paths.report)}
        try:
            with os.scandir(self._directory) as entries:
                return any(entry.name not in own for entry in entries)
        except FileNotFoundError:
            return False

    def path_of(self, file: str) -> str:
        return os.path.join(self.where, file)

    def is_taken(self, file: str) -> bool:
        return status_of(self.path_of(file)) is not None

    def size(self, file: str) -> int | None:
        status = status_of(self.path_of(file))
        return min(status.st_size, NO_FILE - 1) if status is not None and stat.S_ISREG(status.st_mode) else None

    def read(self, file: str) -> bytes:
        try:
            return Path(self.path_of(file)).read_bytes()
        except FileNotFoundError:
            return b""

    def is_left_over(self, file: str) -> bool:
        """Return False: `redo` completes or undoes what a kill interrupted."""
        return False

    def is_damaged(self, file: str, whole: Callable[[], bytes]) -> bool:
        """Return True for zeros or a beginning of the content, as after a power cut on a disk that loses synced data."""
        return is_truncated_or_blank(Path(self.path_of(file)), whole())

    def set_aside(self, file: str) -> None:
        self.edits.set_aside[self.path_of(file)] = keep_edited_copy(Path(self.path_of(file))).name

    def stage(self, file: str, content: bytes, is_listed: bool) -> StagedFile:
        """Write a temporary file, and its folder if need be. Its name has the shard, so that a shard removes its own alone."""
        path = Path(self.path_of(file + self.shard.suffix))
        try:
            self._watch(path.parent)
            write_temp(path, content)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._watch(path.parent)
            write_temp(path, content)
        temp = os.path.relpath(temp_path_for(path), self._directory)
        return StagedFile(file, temp, len(content), crc32(content), is_listed)

    def _watch(self, folder: Path) -> None:
        if folder != self._watched:
            self._barrier.watch(folder)
            self._watched = folder

    def discard(self, files: Iterable[StagedFile]) -> None:
        discard_temps(self._directory, files)

    def discard_stale(self, file: str) -> None:
        discard_temp(Path(self.path_of(file + self.shard.suffix)))


class _Listed(Container[str]):
    """The names of regular files that journals list."""

    def __init__(self, directory: Path, runs: Sequence[PreviousRun]) -> None:
        self._directory, self._runs = directory, runs

    def __contains__(self, file: object) -> bool:
        name, _, format = str(file).rpartition(".")
        status = status_of(self._directory / str(file))
        is_regular = status is not None and stat.S_ISREG(status.st_mode)
        return is_regular and any(format in one.sizes(one.find_by_name(name)) for one in self._runs)


def journals_in(directory: Path) -> list[Paths]:
    """Return the paths of the runs whose journals are in a folder: one, or one for each shard."""
    found = (Paths.from_journal(path) for path in sorted(directory.glob("journal*.jsonl")))
    return [paths for paths in found if paths is not None]


def merged_files(folder: Path) -> list[Path]:
    """Return the rows and the report of an earlier merge. Its report records the size of the rows.

    A merge that stopped between the two renames has left the new rows under their temporary name.
    """
    rows, report = folder / "transcripts.jsonl", folder / "report.json"
    if not is_regular(report):
        return []
    try:
        stored = json.loads(safe_read(report, _MAX_REPORT_BYTES))
        num_bytes = stored["rows_bytes"] if "shards" in stored else None
    except (OSError, ValueError, TypeError, KeyError):
        return []
    are_ours = any(is_regular(path) and path.stat().st_size == num_bytes for path in (rows, temp_path_for(rows)))
    return [report, rows] if are_ours else [report]


# --- removal ---------------------------------------------------------------------------------------------------------


def _remove_others(paths: Paths, edits: Edits) -> None:
    """Remove the results of a run that divided the inputs differently. Raise UsageError if it is at work.

    Other shards of this run may be removing them too, so a held lock is retried for a while.
    """
    deadline = monotonic() + _REMOVE_TIMEOUT_S
    while paths.journal.exists():
        try:
            with closing(FolderLock(paths.lock)):
                _remove_results(paths, edits)
        except UsageError:
            if monotonic() > deadline:
                raise
            sleep(0.05)


def _remove_results(paths: Paths, edits: Edits) -> None:
    """Remove what the journal lists, and the journal last: after a kill or a power cut, it lists what is left."""
    if not paths.is_ours:
        return
    if paths.has_begun:
        finish_compaction(paths)
        redo(paths)
        storage = FolderStorage(paths.directory, paths.shard)
        storage.edits = edits
        with closing(Barrier()) as barrier:
            folders = set()
            for file in _listed_files(paths, storage):
                path = paths.directory / file
                barrier.watch(path.parent)
                remove(path)
                folders.add(path.parent)
            for path in (paths.rows, paths.report):
                remove(path)
            barrier.watch(paths.directory)
            barrier.wait((), [paths.directory, *folders])
    remove(paths.journal)
    sync_folder(paths.directory)


def _listed_files(paths: Paths, storage: FolderStorage) -> Iterator[str]:
    """Yield the files of live names that the journal lists and that are there. Edited ones are kept beside before."""
    entries, new_names = load_entries_and_names(paths.journal)
    previous = PreviousRun(entries)
    for entry_index, (entry, _) in enumerate(read_entries(paths.journal)):
        name = new_names.get(entry_index, entry.name)
        if previous.find_by_name(name) != entry_index:
            continue
        for format, size in entry.sizes.items():
            file = f"{name}.{format}"
            found = storage.size(file)
            if found is None:
                continue
            has_same_size = found == min(size, NO_FILE - 1)
            is_as_written = has_same_size and crc32(storage.read(file)) == entry.checksums.get(format)
            if not is_as_written and not storage.is_damaged(file, bytes):
                storage.set_aside(file)
            yield file
