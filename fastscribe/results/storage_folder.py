"""Results in a folder. compact.py and repair.py rewrite and mend its rows and journal.

A folder appends, and renames in one step, but has nothing on the disk before a sync. A commit appends the rows and waits until
they are durable, with the files of the commit before; then it appends the journal lines and waits again. So there are two waits
for all recordings that a commit takes, and the journal says behind which lines files may be missing after a power cut.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np

from fastscribe._system.file_kinds import is_regular, safe_open, status_of
from fastscribe._system.safe_files import (
    Barrier,
    discard_temp,
    open_append,
    remove,
    sync,
    sync_folder,
    with_path,
    write_atomic,
    write_whole,
)
from fastscribe.results.compact import compact, finish_compaction
from fastscribe.results.folder_lock import FolderLock
from fastscribe.results.journal import (
    NO_STATE,
    SYNCED,
    Journal,
    check_same_settings,
    header_line,
    read_journal,
    run_line,
)
from fastscribe.results.paths import Paths, journals_in, merged_files
from fastscribe.results.repair import check_unedited, found_again, num_with_rows, realign, repair
from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.results.storage import ROWS, Each, Finish, Item, Pace

_MAX_RESULTS, _MAX_BYTES = 2048, 1 << 26


class FolderStorage:
    """The storage of one shard in a folder. See storage.Storage for its methods.

    Args:
        directory: The folder, which `lock` makes if need be.
        shard: The part of the inputs whose results are here.
    """

    pace = Pace(_MAX_RESULTS, _MAX_RESULTS, _MAX_BYTES)

    def __init__(self, directory: Path, shard: Shard = UNSHARDED) -> None:
        self.where, self.shard, self.lacks_files = str(directory), shard, False
        self.map: Each = map
        self.paths = Paths(directory, shard.suffix)
        self._directory = directory
        self._lock: FolderLock | None = None
        self._writing = ExitStack()  # of the files that are open
        self._has_changed = False  # since the last wait, as of the next two
        self._written: list[str] = []  # files of results
        self._folders: dict[str, None] = {}  # whose entries have changed

    def lock(self, say: Callable[[str], object]) -> list[Shard]:
        if not self._directory.is_dir():
            self._directory.mkdir(parents=True, exist_ok=True)
            sync_folder(self._directory.parent)
        self._lock = FolderLock(self.paths.lock)
        self.paths.check(besides=self._merged())
        if self.paths.has_begun:
            finish_compaction(self.paths)
        return [paths.shard for paths in journals_in(self._directory)]

    def load(self, shard: Shard, whatever_is_left: bool = False) -> Journal:
        paths = Paths(self._directory, shard.suffix)
        if not paths.has_begun:
            return Journal()
        journal = read_journal(paths.journal)
        # Nothing repairs it: say what a repair would leave.
        if self._lock is None and not whatever_is_left and status_of(paths.swap) is None:
            entries, found = journal.entries, found_again(paths, journal)
            is_lost = (
                np.arange(len(entries)) >= num_with_rows(paths, entries) if found is None else found.is_lost(entries)
            )
            entries["state"][is_lost] = NO_STATE
        return journal

    def own_names(self, shard: Shard) -> Sequence[tuple[str, ...]]:
        paths = Paths(self._directory, shard.suffix)
        if not paths.has_begun:
            return [tuple(path.name for path in self._merged())]
        return [(paths.rows.name, paths.report.name), (paths.journal.name,)]

    def open(self, header: Mapping[str, Any] | None, facts: Mapping[str, Any], say: Callable[[str], object]) -> Journal:
        paths = self.paths
        paths.check()
        if not paths.has_begun:
            write_atomic(paths.journal, header_line(header or {}))
        journal = read_journal(paths.journal)
        if header is None:
            check_unedited(paths, journal)
        else:
            check_same_settings(self.where, journal.header or {}, header)
            remove(paths.report)  # before anything changes: it says that the results are complete
            journal = realign(paths, journal, say)
        journal = repair(paths, journal, say)
        self._discard_temps(journal)
        self._rows, self._lines = (
            self._writing.enter_context(closing(Appender(open_append(path), path)))
            for path in (paths.rows, paths.journal)
        )
        self._barrier = self._writing.enter_context(closing(Barrier()))
        self._barrier.watch(self._directory)
        stated = {**journal.facts, **facts}
        if stated != journal.facts:
            self._lines.append(run_line(stated))
        self._lines.sync()  # of a run that was killed, or files could be there after a power cut without their lines
        sync_folder(self._directory)
        return journal

    def _discard_temps(self, journal: Journal) -> None:
        """Remove the temporary files of the last commits of a run that did not end well. Not all of them are written again."""
        for entry_index in np.flatnonzero(journal.entries["name"][journal.num_synced :]).tolist():
            entry = journal.entry(journal.num_synced + entry_index)
            for format in entry.files:
                with suppress(OSError):  # of a folder that cannot be searched
                    discard_temp(self._directory / f"{entry.name}.{format}")

    def commit(self, items: Sequence[Item]) -> Sequence[Item]:
        placed = list(_placed(items, self._rows.end))
        self._rows.append(b"".join(item.row for item in items if item.has_new_row))
        synced = self._wait()
        self._lines.append(synced + b"".join(item.entry.line() for item in placed if item.entry is not None))
        self._lines.sync()
        return placed

    def _wait(self) -> bytes:
        """Make rows, and files that are written, durable. Return the line that says so of the files, if there are any."""
        synced = SYNCED if self._has_changed and not self.lacks_files else b""
        self._barrier.wait([str(self._rows.path), *self._written], [self.where, *self._folders])
        self._written, self._folders, self._has_changed = [], {}, False
        return synced

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        with safe_open(self.paths.rows if name == ROWS else self._directory / name) as file:
            file.seek(begin)
            return file.read() if end is None else file.read(end - begin)

    def size(self, name: str) -> int | None:
        status = status_of(os.path.join(self.where, name))
        if status is None:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else -1

    def write(self, name: str, content: bytes, replaces: bool) -> None:
        path = os.path.join(self.where, name)
        folder = os.path.dirname(path)
        if folder not in self._folders:
            try:
                self._make_folder(folder)
            except OSError as error:
                raise with_path(error, path) from error
        write_whole(path, content, replaces)
        self._written.append(path)
        self._has_changed = True

    def _make_folder(self, folder: str) -> None:
        """Make a folder if need be, and have the next commit wait for its entries and for those of new folders above it."""
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            above = [one for one in Path(folder).parents if one == self._directory or self._directory in one.parents]
            self._folders |= dict.fromkeys(map(str, above))
        self._barrier.watch(folder)
        self._folders[folder] = None

    def remove(self, names: Sequence[str]) -> None:
        paths = [self._directory / name for name in names]
        for path in paths:
            remove(path)
        for folder in {path.parent for path in paths}:
            if folder.is_dir():
                sync_folder(folder)
        self._has_changed = True

    def sync(self, names: Sequence[str]) -> None:
        for path in (self._directory / name for name in names):
            with suppress(OSError):  # of a folder that cannot be searched
                if path.parent.is_dir() and str(path.parent) not in self._folders:
                    self._barrier.watch(path.parent)
                    self._folders[str(path.parent)] = None
                if is_regular(path):
                    self._written.append(str(path))
        self._has_changed = True

    def close(self, finish: Finish | None) -> None:
        try:
            if finish is not None:
                self._lines.append(self._wait())
                self._lines.sync()
                self._writing.close()
                compact(self.paths, finish.ordered, finish.order)
                if finish.report is not None:
                    write_atomic(self.paths.report, finish.report)
        finally:
            self._writing.close()
            if self._lock is not None:
                self._lock.close()

    def _merged(self) -> list[Path]:
        return merged_files(self._directory) if self.shard.count == 1 and not self.paths.has_begun else []


class Appender:
    """A file that only this process appends to, in whole lines."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self.path = file, path
        self.end = file.seek(0, os.SEEK_END)

    def append(self, lines: bytes) -> None:
        """Append lines. If the disk is full, truncate the file to whole lines.

        Raises:
            OSError: The lines cannot be written, or another process changed the file (see `check`).
        """
        self.check()
        written = 0
        try:
            while written < len(lines):
                written += self._file.write(lines[written:]) or 0
        except OSError as error:
            self._file.truncate(self.end)
            raise with_path(error, self.path) from error
        except BaseException:
            self._file.truncate(self.end)
            raise
        self.end += len(lines)

    def check(self) -> None:
        """Raise OSError if another file has the name now, or if the size changed: appended lines would be lost."""
        status = status_of(self.path)
        is_same = status is not None and os.path.samestat(status, os.fstat(self._file.fileno()))
        if status is None or not is_same or status.st_size != self.end:
            raise OSError(None, "it was changed by someone else while the run was writing to it", str(self.path))

    def sync(self) -> None:
        try:
            sync(self._file)
        except OSError as error:
            raise with_path(error, self.path) from error

    def close(self) -> None:
        self._file.close()


def _placed(items: Sequence[Item], begin: int) -> Iterator[Item]:
    """Yield items whose entries have the offsets of their rows. New rows follow each other from offset `begin`."""
    for item in items:
        if item.entry is None or not item.has_new_row:
            yield item
            continue
        end = begin + len(item.row)
        yield item._replace(entry=item.entry._replace(begin=begin, end=end, row_crc=crc32(item.row)))
        begin = end
