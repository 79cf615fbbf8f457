"""Group commit of finished recordings to an output URL. A kill loses the results of the last pause at most.

Results wait in memory for some seconds. One thread takes all that wait and

1. writes an object with their rows, and with the names of their files;
2. writes their files, several at once;
3. writes an object with their journal lines.

So the journal lists results only that the store has. After a kill between 1 and 3 the next run deletes what was begun
(StoredResults.undo).
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from time import monotonic
from typing import NamedTuple

from fastscribe._system.safe_files import InTheWay
from fastscribe.errors import OutputError
from fastscribe.results.edits import Edits
from fastscribe.results.entries import Entry
from fastscribe.results.object_folder import ObjectFolder
from fastscribe.results.store_journal import StoreJournal, files_line, journal_name, rows_name
from fastscribe.results.store_lock import StoreLock

# The longer a run, the longer the pauses: a day makes some thousand commits.
MIN_PAUSE_S, MAX_PAUSE_S, PAUSE_SHARE = 2.0, 30.0, 0.01
_COMMIT_RESULTS, _COMMIT_BYTES = 1000, 1 << 23  # with so many, a commit does not wait
_MAX_BYTES = 1 << 26  # of results that wait, until `add` does


class StoreFile(NamedTuple):
    name: str
    content: bytes
    is_listed: bool = True  # a run wrote the object of this name, so it may be replaced
    is_edited: bool = False  # someone changed that object since; it is kept beside


class StoreItem(NamedTuple):
    """One finished recording."""

    entry: Entry  # without offsets
    row: bytes
    files: tuple[StoreFile, ...] = ()
    obsolete: tuple[StoreFile, ...] = ()  # files of earlier results to delete

    @property
    def num_bytes(self) -> int:
        return len(self.row) + sum(len(file.content) for file in self.files)


class StoreCommitter:
    """Writes finished recordings to a store in a thread of its own.

    After an error nothing more is committed, and every method raises the error as an OutputError.

    Args:
        folder: The output URL's objects.
        run: Folder of this run's objects.
        journal: Notes complete commits.
        lock: Of the shard.
        has_conditional_writes: The store can refuse to replace an object.
        edits: Receives the edited objects that were kept beside.
    """

    def __init__(
        self,
        folder: ObjectFolder,
        run: str,
        journal: StoreJournal,
        lock: StoreLock,
        has_conditional_writes: bool,
        edits: Edits,
    ) -> None:
        self._folder, self._run, self._journal, self._lock = folder, run, journal, lock
        self._has_conditional_writes = has_conditional_writes
        self.num_commits = 0
        self._edits = edits
        self._changed = threading.Condition()  # of all below
        self._queued: list[StoreItem] = []
        self._num_bytes = 0
        self._is_committing = self._is_closing = False
        self._num_flushing = 0
        self._error: OutputError | None = None
        self._start_s = self._last_s = monotonic()
        self._thread = threading.Thread(target=self._work, name="commit", daemon=True)
        self._thread.start()

    def add(self, item: StoreItem) -> None:
        """Queue a result; wait while the queue is full. Raise OutputError if an earlier one could not be committed."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._num_bytes < _MAX_BYTES)
            self._raise()
            self._queued.append(item)
            self._num_bytes += item.num_bytes
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until the store has all results. Raises OutputError."""
        with self._changed:
            self._num_flushing += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error is not None or not (self._queued or self._is_committing))
            self._num_flushing -= 1
            self._raise()

    def close(self) -> None:
        """Commit all results, and end the thread. Raises OutputError."""
        try:
            self.flush()
        finally:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while items := self._take():
            error = self._try(items)
            with self._changed:
                self._error, self._is_committing, self._last_s = error, False, monotonic()
                self._changed.notify_all()
                if error is not None:
                    return

    def _take(self) -> list[StoreItem]:
        """Wait until a commit is due, and return its results; none if the thread has to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._is_closing)
            self._changed.wait_for(self._is_due, self._pause_s())
            items, num_bytes = self._queued[:_COMMIT_RESULTS], 0
            for number, item in enumerate(items, start=1):
                num_bytes += item.num_bytes
                if num_bytes >= _COMMIT_BYTES:
                    del items[number:]
            del self._queued[: len(items)]
            self._num_bytes -= num_bytes
            self._is_committing = bool(items)
            self._changed.notify_all()
            return items

    def _is_due(self) -> bool:
        is_full = len(self._queued) >= _COMMIT_RESULTS or self._num_bytes >= _COMMIT_BYTES
        return is_full or self._is_closing or self._num_flushing > 0

    def _pause_s(self) -> float:
        now = monotonic()
        pause_s = min(MAX_PAUSE_S, max(MIN_PAUSE_S, PAUSE_SHARE * (now - self._start_s)))
        return max(0.0, self._last_s + pause_s - now)

    def _try(self, items: Sequence[StoreItem]) -> OutputError | None:
        try:
            self._commit(items)
        except OSError as error:
            return OutputError(str(error.filename or self._folder.url), error)
        except BaseException as error:  # if the thread died, the run would wait for ever
            return OutputError(self._folder.url, OSError(None, f"{type(error).__name__}: {error}"))
        return None

    def _commit(self, items: Sequence[StoreItem]) -> None:
        self._lock.check()
        self.num_commits += 1
        commit = f"{self._run}/{self.num_commits:06d}"
        files = {file.name: file for item in items for file in item.files}  # a later result of the same name is valid
        rows, entries = b"".join(item.row for item in items), _with_offsets(items)
        sizes = files_line({name: len(file.content) for name, file in files.items()}) if files else b""
        self._folder.put(rows_name(commit), rows + sizes)
        for _ in self._folder.map(self._write_file, files.values()):
            pass
        self._folder.put(journal_name(commit), b"".join(entry.line() for entry in entries))
        self._journal.append(commit, entries)
        for _ in self._folder.map(self._remove_file, _obsolete(items, files)):
            pass

    def _write_file(self, file: StoreFile) -> None:
        if file.is_edited:
            self._keep_edited(file)
        if file.is_listed or not self._has_conditional_writes:
            self._folder.put(file.name, file.content)
        else:
            self._folder.create(file.name, file.content)

    def _remove_file(self, file: StoreFile) -> None:
        if file.is_edited:
            self._keep_edited(file)
        self._folder.delete([file.name])

    def _keep_edited(self, file: StoreFile) -> None:
        if copy := keep_edited(self._folder, file.name):
            self._edits.set_aside[self._folder.url_of(file.name)] = copy


def _obsolete(items: Sequence[StoreItem], written: Container[str]) -> list[StoreFile]:
    return [file for item in items for file in item.obsolete if file.name not in written]


def _with_offsets(items: Sequence[StoreItem]) -> list[Entry]:
    entries, begin = [], 0
    for item in items:
        entries.append(item.entry._replace(begin=begin, end=begin + len(item.row)))
        begin += len(item.row)
    return entries


def keep_edited(folder: ObjectFolder, name: str) -> str | None:
    """Copy an object that someone edited, `a.srt`, to `a.previous.srt` or the next free name.

    Returns:
        The name of the copy; None if the object is not there or empty.

    Raises:
        OSError: The store cannot be read or written.
    """
    stem, _, extension = name.rpartition(".")
    content, number = folder.read_if_there(name), 1
    while content:
        try:
            copy = f"{stem}.previous{f'.{number}' if number > 1 else ''}.{extension}"
            folder.create(copy, content)
            return copy
        except InTheWay:
            number += 1
    return None
