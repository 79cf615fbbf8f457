"""The ledger of a run with a journal: which of its inputs an earlier run into the same place has done.

The key identifies an input: its path, offset and duration. The state tells whether it has changed: its file's version (of a
local one, size and modification time), and its manifest row.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable

from fastscribe._system.key_counter import KeyCounter
from fastscribe._system.url_secrets import unsigned
from fastscribe._system.urls import is_url
from fastscribe.audio.failures import relative_id
from fastscribe.audio.media import LocalFile, medium_of
from fastscribe.results.interfaces import NUM_FAILED, Ledger, Moved
from fastscribe.results.journal import Journal, PendingInput
from fastscribe.results.result_files import ResultFiles
from fastscribe.results.shards import Shard
from fastscribe.types import Failure, Samples, Source


class JournalLedger(Ledger):
    """Decides which inputs this run transcribes. Inputs that failed before count as done unless `retry_failed`.

    Args:
        shard: The part of the inputs that this run transcribes.
        journal: Results of earlier runs.
        retry_failed: Transcribe inputs again that failed in an earlier run.
        files: Names the inputs' files, and makes those of earlier results again that are missing; None: there are no files.
        moved: Where the recordings of earlier results are now.
        take_over: Called with the entry of a recording that was elsewhere, and with what is known of it now.
    """

    def __init__(
        self,
        shard: Shard,
        journal: Journal,
        retry_failed: bool = False,
        files: ResultFiles | None = None,
        moved: Moved | None = None,
        take_over: Callable[[int, PendingInput, int], object] = lambda *given: None,
    ) -> None:
        super().__init__(shard)
        self._journal, self._retry_failed, self._files = journal, retry_failed, files
        self._moved, self._take_over = moved, take_over
        self._key_counts = KeyCounter()
        self._pending: dict[int, PendingInput] = {}  # by index

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard. Every shard names all inputs."""
        key = key_of(source)
        repeats = self._key_counts.count(key)
        key = _repeated(key, repeats)
        is_ours = super().expect(source)
        moved_from = None if self._moved is None or self._journal.has_result(key) else self._before(source, repeats)
        known_as = key if moved_from is None else moved_from
        name = "" if self._files is None else self._files.names.name_of(source.id, known_as, is_ours)
        if is_ours:
            self._pending[source.index] = PendingInput(key, name, moved_from=moved_from)
        return is_ours

    def _before(self, source: Source | Failure, repeats: int) -> int | None:
        """Return the key that an input had where it was; None if it has no result from there."""
        assert self._moved is not None
        old = None if isinstance(source, Failure) else self._moved.before(_identity(source))
        if old is None:
            return None
        assert isinstance(source, Source)
        key = _repeated(key_of(source, old), repeats)
        return key if self._journal.has_result(key) else None

    def is_done(self, source: Source | Failure) -> bool:
        """Return True if an earlier run transcribed this very input, or failed and the input is not retried.

        Called from several threads.
        """
        pending = self._pending[source.index]
        pending.state, pending.num_bytes = state_of(source)
        is_moved = pending.moved_from is not None
        entry_index = self._journal.find(pending.key if pending.moved_from is None else pending.moved_from)
        if entry_index is None:
            return False
        self._journal.is_in_this_run[entry_index] = True
        entry = self._journal.entries[entry_index]
        failed = bool(entry["failed"])
        if is_moved:  # its time may be another there
            is_same = (
                pending.num_bytes is not None and pending.num_bytes == self._journal.entry(entry_index).input_bytes
            )
        else:
            is_same = int(entry["state"]) == pending.state
        is_same &= not (failed and self._retry_failed)
        if not is_same or not (self._files is None or self._files.complete(entry_index, pending.name, source.index)):
            pending.entry_index = entry_index
            return False
        entry["order"] = source.index
        if is_moved:
            self._take_over(entry_index, pending, source.index)
        with self.lock:
            self.num_done += 1
            self.failed_before += failed
            if failed and len(self.first_failed) < NUM_FAILED:
                self.first_failed.append(source.path)
            self.mark_done(source.index)
        return True

    def __getitem__(self, index: int) -> PendingInput:
        return self._pending[index]

    def mark_done(self, index: int) -> None:
        """Forget an input that has its result. The caller holds `lock`."""
        del self._pending[index]


def _repeated(key: int, repeats: int) -> int:
    """Return the key of an input that came `repeats` times before."""
    return _digest(f"{key} {repeats}") if repeats else key


def _identity(source: Source) -> str:
    return os.path.abspath(source.file) if isinstance(source.file, str) else unsigned(source.file.identity)


def key_of(source: Source | Failure, identity: str | None = None) -> int:
    """Return an input's key in the journal. `identity`: of a recording that was elsewhere."""
    if isinstance(source, Source):
        track = f"\0{source.track}" if source.track else ""
        identity = identity or _identity(source)
        return _digest(f"{identity}\0{source.offset_s}\0{source.duration_s}{track}")
    stands_for_path = source.id == relative_id(source.path)
    stretch = "None\0None" if stands_for_path else source.id  # as a Source's, once the file is there
    place = unsigned(source.path) if is_url(source.path) else os.path.abspath(source.path)
    return _digest(f"{place}\0{stretch}")


def state_of(source: Source | Failure) -> tuple[int, int | None]:
    """Return the input's state, and its size in bytes; None if it is not known."""
    if isinstance(source, Failure):
        return _digest(source.message), None
    num_bytes = None
    try:
        found = ""
        if not isinstance(source.file, Samples):
            medium = medium_of(source.file)
            found = medium.version()
            if isinstance(medium, LocalFile):  # others may need a request
                num_bytes = int(found.partition(" ")[0])
    except (OSError, ValueError):
        found = "none"
    return _digest(f"{found}\0{json.dumps(source.row, sort_keys=True) if source.row is not None else ''}"), num_bytes


def _digest(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
