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

from fastscribe.audio.source import Source, relative_id
from fastscribe.resume.entries import Earlier
from fastscribe.resume.key_set import Seen
from fastscribe.resume.shards import WHOLE, Shard
from fastscribe.types import Failure


@dataclass
class Expected:
    """An input whose result is still to come."""

    key: int
    state: int = 0
    place: int | None = None  # in the journal, of an earlier run's result that is being replaced
    may_have_files: bool = False  # of this run's: one was begun


class Ledger:
    """`earlier` is None where nothing is remembered. Inputs that failed then count as done unless `retry_failed`."""

    def __init__(self, shard: Shard = WHOLE, earlier: Earlier | None = None, retry_failed: bool = False) -> None:
        self.failed_before = 0  # inputs that earlier runs could not do and this one leaves alone
        self._shard, self._earlier, self._retry_failed = shard, earlier, retry_failed
        self._seen = Seen()
        self._expected: dict[int, Expected] = {}  # by index
        self._guard = threading.Lock()  # of failed_before

    def expect(self, source: Source | Failure) -> bool:
        """Called once an input, in order, from one thread. False: it is another shard's."""
        if self._earlier is None:
            return self._shard.holds(source.id)
        key = _key(source)
        repeats = self._seen.count(key)
        if not self._shard.holds(source.id):
            return False
        self._expected[source.index] = Expected(_digest(f"{key} {repeats}") if repeats else key)
        return True

    def is_done(self, source: Source | Failure, is_kept: Callable[[int], bool] = lambda place: True) -> bool:
        """True where an earlier run has done this very input, or failed at it and this one is not to try again.

        `is_kept` says of a line's place in the journal whether what it stands for is still where it was.
        """
        if self._earlier is None:
            return False
        expected = self._expected[source.index]
        expected.state = _state(source)
        place = self._earlier.find(expected.key)
        if place is None:
            return False
        self._earlier.is_met[place] = True
        entry = self._earlier.entries[place]
        failed = bool(entry["failed"])
        if int(entry["state"]) != expected.state or (failed and self._retry_failed) or not is_kept(place):
            expected.place = place
            return False
        entry["order"] = source.index
        with self._guard:
            self.failed_before += failed
        return True

    def __getitem__(self, index: int) -> Expected:
        return self._expected[index]

    def settle(self, index: int) -> None:
        """Its result is written, or was by an earlier run."""
        del self._expected[index]


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
