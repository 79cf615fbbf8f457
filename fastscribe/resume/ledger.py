"""Which inputs are this run's to do: of its shard, and not done by an earlier run into the same folder.

An input is known by where it lies and which stretch of it is meant (its key), and is still the same while its file's size
and time of change and its manifest row are (its state). A run calls `expect` for every input in order and `is_done` before
it opens any.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from fastscribe.audio.failures import relative_id
from fastscribe.resume.entries import PreviousRun
from fastscribe.resume.key_counter import KeyCounter
from fastscribe.resume.shards import UNSHARDED, Shard
from fastscribe.types import Failure, Source


@dataclass
class PendingEntry:
    """An input whose result is still to come."""

    key: int
    state: int = 0
    entry_index: int | None = None  # in the journal, of an earlier run's result that is being replaced
    may_have_files: bool = False  # of this run's: one was begun


class Ledger:
    """`previous` is None where nothing is remembered. Inputs that failed then count as done unless `retry_failed`."""

    def __init__(
        self, shard: Shard = UNSHARDED, previous: PreviousRun | None = None, retry_failed: bool = False
    ) -> None:
        self.failed_before = 0  # inputs that earlier runs could not do and this one leaves alone
        self._shard, self._previous, self._retry_failed = shard, previous, retry_failed
        self._key_counts = KeyCounter()
        self._pending: dict[int, PendingEntry] = {}  # by index
        self._guard = threading.Lock()  # of failed_before

    def expect(self, source: Source | Failure) -> bool:
        """Called once an input, in order, from one thread. False: it is another shard's."""
        if self._previous is None:
            return self._shard.holds(source.id)
        key = _key(source)
        repeats = self._key_counts.count(key)
        if not self._shard.holds(source.id):
            return False
        self._pending[source.index] = PendingEntry(_digest(f"{key} {repeats}") if repeats else key)
        return True

    def is_done(self, source: Source | Failure, is_kept: Callable[[int], bool] = lambda entry_index: True) -> bool:
        """True where an earlier run has done this very input, or failed at it and this one is not to try again.

        `is_kept` says of a line's place in the journal whether what it stands for is still where it was.
        """
        if self._previous is None:
            return False
        pending = self._pending[source.index]
        pending.state = _state(source)
        entry_index = self._previous.find(pending.key)
        if entry_index is None:
            return False
        self._previous.is_in_this_run[entry_index] = True
        entry = self._previous.entries[entry_index]
        failed = bool(entry["failed"])
        if int(entry["state"]) != pending.state or (failed and self._retry_failed) or not is_kept(entry_index):
            pending.entry_index = entry_index
            return False
        entry["order"] = source.index
        with self._guard:
            self.failed_before += failed
        return True

    def __getitem__(self, index: int) -> PendingEntry:
        return self._pending[index]

    def mark_done(self, index: int) -> None:
        """Its result is written, or was by an earlier run."""
        del self._pending[index]


def _key(source: Source | Failure) -> int:
    if isinstance(source, Source):
        return _digest(f"{os.path.abspath(source.file)}\0{source.offset_s}\0{source.duration_s}")
    stands_for_path = source.id == relative_id(source.path)
    stretch = "None\0None" if stands_for_path else source.id  # as a Source's, once the file is there
    return _digest(f"{os.path.abspath(source.path)}\0{stretch}")


def _state(source: Source | Failure) -> int:
    if isinstance(source, Failure):
        return _digest(source.message)
    try:
        status = os.stat(source.file)
        found = f"{status.st_size} {status.st_mtime_ns}"
    except (OSError, ValueError):
        found = "none"
    return _digest(f"{found}\0{json.dumps(source.row, sort_keys=True) if source.row is not None else ''}")


def _digest(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
