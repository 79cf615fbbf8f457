"""The ledger of a run with a journal: which of its inputs an earlier run into the same place has done.

The key identifies an input: its path, offset and duration. The state tells whether it has changed: its file's version
(of a local one, size and modification time), and its manifest row.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass

from fastscribe._system.key_counter import KeyCounter
from fastscribe._system.url_secrets import unsigned
from fastscribe._system.urls import is_url
from fastscribe.audio.failures import relative_id
from fastscribe.audio.media import medium_of
from fastscribe.results.entries import Entry, PreviousRun
from fastscribe.results.ledger import Ledger
from fastscribe.results.shards import Shard
from fastscribe.types import Failure, Samples, Source, Transcript


@dataclass
class PendingEntry:
    """An input that waits for its result."""

    key: int
    state: int = 0
    entry_index: int | None = None  # in the journal: the earlier result that the new one replaces

    def entry(self, result: Transcript | Failure, name: str) -> Entry:
        """Return the journal entry of the input's result, whose row has no place yet.

        Args:
            result: The result.
            name: Name of its files.
        """
        item = result if isinstance(result, Failure) else result.audio
        return Entry(
            id=item.id,
            key=self.key,
            state=self.state,
            begin=0,
            end=0,
            order=item.index,
            failed=isinstance(result, Failure),
            audio_s=0.0 if isinstance(item, Failure) else item.duration_s,
            for_list=isinstance(result, Failure) and result.stage == "input",
            name=name,
        )


class JournalLedger(Ledger):
    """Decides which inputs this run transcribes. Inputs that failed before count as done unless `retry_failed`.

    Args:
        shard: The part of the inputs that this run transcribes.
        previous: Results of earlier runs.
        retry_failed: Transcribe inputs again that failed in an earlier run.
    """

    def __init__(self, shard: Shard, previous: PreviousRun, retry_failed: bool = False) -> None:
        super().__init__(shard)
        self._previous, self._retry_failed = previous, retry_failed
        self._key_counts = KeyCounter()
        self._pending: dict[int, PendingEntry] = {}  # by index

    def expect(self, source: Source | Failure) -> bool:
        key = _key(source)
        repeats = self._key_counts.count(key)
        if not super().expect(source):
            return False
        self._pending[source.index] = PendingEntry(_digest(f"{key} {repeats}") if repeats else key)
        return True

    def is_done(self, source: Source | Failure) -> bool:
        """Return True if an earlier run transcribed this very input, or failed and the input is not retried.

        Called from several threads.
        """
        pending = self._pending[source.index]
        pending.state = _state(source)
        entry_index = self._previous.find(pending.key)
        if entry_index is None:
            return False
        self._previous.is_in_this_run[entry_index] = True
        entry = self._previous.entries[entry_index]
        failed = bool(entry["failed"])
        is_same = int(entry["state"]) == pending.state and not (failed and self._retry_failed)
        if not is_same or not self._adopt_earlier_result(source, entry_index):
            pending.entry_index = entry_index
            return False
        entry["order"] = source.index
        with self.lock:
            self.failed_before += failed
            self.mark_done(source.index)
        return True

    def _adopt_earlier_result(self, source: Source | Failure, entry_index: int) -> bool:
        """Return True if the earlier result is still there. Called last, so the input is done then."""
        return True

    def __getitem__(self, index: int) -> PendingEntry:
        return self._pending[index]

    def mark_done(self, index: int) -> None:
        """Forget an input that has its result. The caller holds `lock`."""
        del self._pending[index]


def _key(source: Source | Failure) -> int:
    if isinstance(source, Source):
        track = f"\0{source.track}" if source.track else ""
        identity = os.path.abspath(source.file) if isinstance(source.file, str) else unsigned(source.file.identity)
        return _digest(f"{identity}\0{source.offset_s}\0{source.duration_s}{track}")
    stands_for_path = source.id == relative_id(source.path)
    stretch = "None\0None" if stands_for_path else source.id  # as a Source's, once the file is there
    return _digest(f"{_place(source.path)}\0{stretch}")


def _place(path: str) -> str:
    return unsigned(path) if is_url(path) else os.path.abspath(path)


def _state(source: Source | Failure) -> int:
    if isinstance(source, Failure):
        return _digest(source.message)
    try:
        found = "" if isinstance(source.file, Samples) else medium_of(source.file).version()
    except (OSError, ValueError):
        found = "none"
    return _digest(f"{found}\0{json.dumps(source.row, sort_keys=True) if source.row is not None else ''}")


def _digest(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
