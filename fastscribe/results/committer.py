"""The queue of finished recordings: one thread commits all that wait, and then writes their files.

A file replaces only what a run wrote: nothing, a content whose CRC-32 the journal has, or what a power cut leaves of one. Any
other file is somebody's edit, which stays.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from time import monotonic
from zlib import crc32

from fastscribe._system.file_kinds import InTheWay
from fastscribe.audio.failures import defect
from fastscribe.errors import OutputError
from fastscribe.results.storage import Item, NewFile, Storage

_MAX_BYTES = 1 << 26  # of items that wait, until `add` does
_MAX_COMPARED_BYTES = 1 << 28  # no file of ours is larger
_BLOCK_BYTES = 512  # disks write no less
_MAX_LACKING = 1000  # results with a file that could not be written, which the journal names one by one
_MAX_LACKING_BYTES = 1 << 18  # of the row of one of them
# These errors of a file, and those that are no system's, stop a run; with any other, the file is not written.
_STOPS = {None, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}


class Committer:
    """Commits finished recordings in a thread of its own.

    After an error nothing more is committed, and every method raises the error as an OutputError. The next run repeats what
    was not committed.

    Attributes:
        kept: Names of the files that stay although results have them, because somebody edited them; True: the run would have
            changed them.
        not_written: Why files could not be written, although their rows are there.
        num_rows: How many rows of new results are durable.

    Args:
        storage: Where they go, and how they gather before.
    """

    def __init__(self, storage: Storage) -> None:
        self.kept: dict[str, bool] = {}
        self.not_written: list[OSError] = []
        self.num_rows = 0
        self._storage, self._pace = storage, storage.pace
        self._lacking: dict[int, Item] = {}  # results that lack a file, by their key
        self._are_all_known = True  # they are all that lack one
        self._changed = threading.Condition()  # of all below
        self._queued: list[Item] = []
        self._is_committing = False
        self._num_bytes = self._num_flushing = 0
        self._is_closing = False
        self._error: OutputError | None = None
        self._start_s = self._last_s = monotonic()
        self._thread = threading.Thread(target=self._work, name="commit", daemon=True)
        self._thread.start()

    def add(self, *items: Item) -> None:
        """Queue items that belong together; wait while the queue is full. Raise OutputError if an earlier commit failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._error is not None
                    or (len(self._queued) < self._pace.max_queued and self._num_bytes < _MAX_BYTES)
                )
            )
            self._raise()
            self._queued += items
            self._num_bytes += sum(item.num_bytes for item in items)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all rows are durable and all files are written. Raises OutputError."""
        with self._changed:
            self._num_flushing += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._error is not None or not (self._queued or self._is_committing))
            finally:
                self._num_flushing -= 1
            self._raise()

    def close(self) -> None:
        """Commit everything, and end the thread. Raises OutputError.

        Results that lack a file get another line in the journal, so that the next run looks into their files alone.
        """
        try:
            self.flush()
        finally:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._thread.join()
        if self._lacking and self._are_all_known:
            self._storage.lacks_files = False
            self._error = self._commit(list(self._lacking.values()))
            self._raise()

    def lack(self, item: Item | None) -> None:
        """Note that files of a result could not be read or written; None: of which one is not known."""
        self._storage.lacks_files = True
        if (
            item is None
            or item.entry is None
            or len(self._lacking) == _MAX_LACKING
            or len(item.row) > _MAX_LACKING_BYTES
        ):
            self._are_all_known = False
        else:
            self._lacking[item.entry.key] = item._replace(has_new_row=False, files=())

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while items := self._take():
            error = self._commit(items)
            with self._changed:
                self._error, self._is_committing, self._last_s = error, False, monotonic()
                self._changed.notify_all()
                if error is not None:
                    return

    def _take(self) -> list[Item]:
        """Wait until a commit is due, and return its items; none if the thread has to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._is_closing)
            self._changed.wait_for(self._is_due, self._pause_s())
            items, num_bytes = self._queued[: self._pace.max_results], 0
            for number, item in enumerate(items, start=1):
                num_bytes += item.num_bytes
                if num_bytes >= self._pace.max_bytes:
                    del items[number:]
            del self._queued[: len(items)]
            self._num_bytes -= num_bytes
            self._is_committing = bool(items)
            self._changed.notify_all()
            return items

    def _is_due(self) -> bool:
        is_full = len(self._queued) >= self._pace.max_results or self._num_bytes >= self._pace.max_bytes
        return is_full or self._is_closing or self._num_flushing > 0

    def _pause_s(self) -> float:
        now, pace = monotonic(), self._pace
        pause_s = min(pace.max_pause_s, max(pace.min_pause_s, pace.pause_share * (now - self._start_s)))
        return max(0.0, self._last_s + pause_s - now)

    def _commit(self, items: Sequence[Item]) -> OutputError | None:
        try:
            if any(item.entry is not None for item in items):
                items = self._storage.commit(items)
                are_new = (one.has_new_row and one.entry is not None and not one.is_renewed for one in items)
                self.num_rows += sum(are_new)
            for item in items:
                if item.entry is not None:  # what an older row lacks is no matter any more
                    self._lacking.pop(item.entry.key, None)
            for _ in self._storage.map(self._place, ((item, file) for item in items for file in item.files)):
                pass
        except OSError as error:
            return OutputError(str(error.filename or self._storage.where), error)
        except BaseException as error:  # if the thread died, the run would wait for ever
            return OutputError(self._storage.where, OSError(None, defect(error) or f"{type(error).__name__}: {error}"))
        return None

    def _place(self, placed: tuple[Item, NewFile]) -> None:
        """Write or remove a file of an item, unless somebody edited it. Raises OSError for what stops a run."""
        item, file = placed
        try:
            is_own = is_ours(self._storage, file)
            if is_own is False:
                self.kept[file.name] = True
            elif file.content is not None:
                self._storage.write(file.name, file.content, replaces=is_own is not None)
            elif is_own:
                self._storage.remove([file.name])
        except OSError as error:
            if error.errno in _STOPS and not isinstance(error, InTheWay):
                raise
            self.not_written.append(without_frames(error))
            self.lack(item)


def without_frames(error: OSError) -> OSError:
    """Return an equal error that keeps nothing in memory: frames hold the contents of files."""
    return OSError(error.errno, error.strerror or str(error), error.filename)


def is_ours(storage: Storage, file: NewFile) -> bool | None:
    """Return True if a file is as a run wrote it, or as a power cut leaves it: zeros, or parts of the content.

    Args:
        storage: Where it is; if it is not there, return None.
        file: What is to become of it.
    """
    if (size := storage.size(file.name)) is None:
        return None
    if not 0 <= size <= _MAX_COMPARED_BYTES or not file.former:
        return False
    content = storage.read(file.name)
    return crc32(content) in file.former or _is_damaged(content, file.content or b"")


def _is_damaged(found: bytes, whole: bytes) -> bool:
    """Return True if a power cut can have left this of a file: some of its blocks, cut, and zeros in place of others."""
    begins = range(0, len(found), _BLOCK_BYTES)
    return all(whole[at : at + _BLOCK_BYTES].startswith(found[at : at + _BLOCK_BYTES].rstrip(b"\0")) for at in begins)
