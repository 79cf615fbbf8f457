"""The ledger of a run with a journal: which of its inputs an earlier run into the same place has done.

The key identifies an input: its path, offset, duration, track, and the channel that its row names. A new result replaces that
of the same row with another duration, unless the run is given both. The state tells whether an input has changed. Its upper
half stands for what decides the text: the file's version (of a local one, size and modification time), and some fields of its
row. The lower half stands for the other fields: where it alone differs, the result stays, and its row gets the fields. A
result also stays, as it is, where its recording is not there or out of reach: nothing is known then that could replace it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from fastscribe._system.key_counter import KeyCounter
from fastscribe._system.url_secrets import unsigned
from fastscribe._system.urls import is_url
from fastscribe.audio.failures import relative_id
from fastscribe.audio.manifest import row_span
from fastscribe.audio.media import LocalFile, medium_of
from fastscribe.errors import AudioError, ManifestError
from fastscribe.languages import SPOKEN_KEYS
from fastscribe.results.formats.writers import OWN_KEYS
from fastscribe.results.interfaces import NUM_FAILED, Ledger, Moved, OutputRun
from fastscribe.results.journal import FIELDS, NO_STATE, Entry, Journal, PendingInput, digest_of
from fastscribe.results.names import base_name
from fastscribe.results.result_files import ResultFiles, row_of
from fastscribe.results.storage import Storage
from fastscribe.types import Failure, Samples, Source

# Fields of a manifest's row that decide the text, and those that also decide where words of a known text are.
_DECIDING = {*SPOKEN_KEYS, "boost", "offset", "duration", "audio_track", "audio_channel"}
_DECIDING_ALIGNED = {*_DECIDING, "text", "subtitles"}
_NOT_COUNTED = {*OWN_KEYS, "audio_filepath"}  # no result takes over the former, and the key has the path's place
_HALF = 32  # bits
_SAME_S = 0.3  # encoders add silence, MP3 at 8 kHz up to 0.28 s
# The bit of the upper half by which the state of a failure that may pass is another (result_files.py).
_MAY_PASS = 1 << 31


class JournalLedger(Ledger):
    """Decides which inputs this run transcribes. Inputs that failed before count as done unless it retries them.

    Args:
        run: Its shard, whether it retries inputs that failed, and where the recordings of earlier results are now.
        journal: Results of earlier runs.
        storage: Has their rows; None: nothing depends on them.
        files: Names the inputs' files, and gives earlier results what they lack; None: nothing is written.
    """

    def __init__(
        self, run: OutputRun, journal: Journal, storage: Storage | None = None, files: ResultFiles | None = None
    ) -> None:
        super().__init__(run.shard)
        self._run, self._journal, self._storage, self._files = run, journal, storage, files
        self.num_renewed = int(journal.is_renewed.sum())
        self.earlier_formats = () if run.style.formats else journal.formats
        self._key_counts = KeyCounter()
        self._pending: dict[int, PendingInput] = {}  # by index
        self._taken: set[int] = set()  # results that those of other inputs replace, by their place in the journal
        self.ids_digest = 0  # of the names of all inputs so far, in any order

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard. Every shard names all inputs."""
        key = key_of(source)
        repeats = self._key_counts.count(key)
        key = _repeated(key, repeats)
        is_ours = super().expect(source)
        self.ids_digest = (self.ids_digest + digest_of(source.id)) % 2**64
        known_as = self._given(self._known_as(source, key, repeats))
        name = ""
        if self._files is not None and self._files.formats:  # else nothing to name, so no memory for names
            name = self._files.names.name_of(source.id, known_as, is_ours)
            if known_as != key and self._is_renamed(source) and name != base_name(source.id):
                name = self._files.names.name_of(source.id, key, is_ours)
        if is_ours:
            self._pending[source.index] = PendingInput(key, known_as, name)
        return is_ours

    def _known_as(self, source: Source | Failure, key: int, repeats: int) -> int:
        """Return the key of an input's earlier result: that of where the recording was, if it has a result from there alone.

        A recording that --moved names itself takes the older result even if it has one of its own: an edited text is of that.
        """
        moved, is_renamed = self._run.moved, self._is_renamed(source)
        if isinstance(source, Failure) or (self._journal.has_result(key) and not is_renamed):
            return key
        old = None if moved is None else moved_key(source, moved, self._journal, repeats)
        return self._former_key(source, repeats) or key if old is None else old

    def _former_key(self, source: Source, repeats: int) -> int:
        """Return the key that an older version gave the input's result; 0 if there is none.

        Its keys had no channels, so that order alone told the rows of one file apart. In them, an offset of 0 was one.
        """
        former = list[int]()
        offsets = () if source.row is None else dict.fromkeys((source.offset_s or None, source.offset_s or 0.0))
        for offset_s in offsets:
            first = digest_of(f"{_identity(source)}\0{offset_s}\0{source.duration_s}{_track_text(source)}")
            for key in (_repeated(first, number) for number in count()):
                if (entry_index := self._journal.find(key)) is None:
                    break
                if self._journal.has_result(key) and channel_of(self._row(entry_index)) == channel_of(source.row):
                    former.append(key)
        return former[repeats] if repeats < len(former) else 0

    def _is_renamed(self, source: Source | Failure) -> bool:
        """Return True if --moved names this very recording, and not a folder."""
        moved = self._run.moved
        return moved is not None and isinstance(source, Source) and moved.new == _identity(source)

    def _given(self, key: int) -> int:
        """Note that a result is of an input of this run. Return its key; 0 if another input's result replaces it."""
        entry_index = self._journal.find(key)
        if entry_index is None:
            return key
        with self.lock:
            self._journal.is_in_this_run[entry_index] = True
            return 0 if entry_index in self._taken else key

    def is_done(self, source: Source | Failure) -> bool:
        """Return True if an earlier run transcribed this very input, or failed and the input is not retried.

        A recording that is not there, or out of reach, has not changed.
        """
        pending = self._pending[source.index]
        pending.state, pending.num_bytes, is_there = state_of(source, self._run)
        pending.entry_index = entry_index = self._journal.find(pending.known_as)
        if entry_index is None:
            pending.outdated = self._outdated(source)
            return False
        entry = self._journal.entries[entry_index]
        if entry["failed"] and self._run.retry_failed:
            return False
        pending.is_out_of_reach = not is_there and _was_there(entry, pending.state)
        if pending.is_out_of_reach:
            return True
        is_elsewhere = pending.is_moved and self._run.moved is not None  # and not known by a key of an older version
        if is_elsewhere and not self._is_renamed(source):  # its time may be another there
            old_bytes = self._journal.entry(entry_index).input_bytes
            if pending.num_bytes is None or pending.num_bytes != old_bytes:
                return False
        if (int(entry["state"]) ^ pending.state) >> _HALF and (own := self._listed(source, entry_index)):
            state = state_of(replace(source, row=own), self._run)[0]
            if is_elsewhere or state >> _HALF == int(entry["state"]) >> _HALF:  # else the recording has changed
                pending.listed_fields = tuple(own)
                pending.state = state & ~FIELDS | int(entry["state"]) & FIELDS  # its other fields stay, too
        is_same = is_elsewhere or int(entry["state"]) >> _HALF in self._states(source, pending)
        with self.lock:
            self.num_changed += not (is_same or entry["failed"])
        return is_same

    def _states(self, source: Source | Failure, pending: PendingInput) -> Iterator[int]:
        """Yield the upper half of an input's state, and those that older versions gave it for fields that say nothing."""
        yield pending.state >> _HALF
        if isinstance(source, Source) and source.row is not None:
            said = {name: value for name, value in source.row.items() if not says_nothing(name, value)}
            for row in (source.row, {**said, "offset": 0}):
                yield state_of(replace(source, row=row), self._run, as_given=True)[0] >> _HALF

    def _listed(self, source: Source | Failure, entry_index: int) -> dict[str, Any]:
        """Return what decides the text of an earlier result by its list, for a recording that comes without a list."""
        if isinstance(source, Failure) or source.row is not None:
            return {}
        row = self._row(entry_index)
        return {name: row[name] for name in row.keys() & _DECIDING - {"offset", "duration"}}  # each row has these

    def _row(self, entry_index: int) -> dict[str, Any]:
        """Return the row of an earlier result; {} if it cannot be read, or someone edited it."""
        return {} if self._storage is None else row_of(self._storage, self._journal.entry(entry_index))

    def _outdated(self, source: Source | Failure) -> list[int]:
        """Return the results of an input's row when it had another `duration`; fields may have come or gone since."""
        if isinstance(source, Failure) or source.row is None:
            return []
        found = []
        for entry_index in self._journal.of_id(source.id):
            key, row = int(self._journal.entries["key"][entry_index]), self._row(entry_index)
            if _may_be_one(row, source.row) and is_of_file(key, row, source):
                found.append(entry_index)
        return found

    def take_outdated(self, pending: PendingInput) -> None:
        """Let an input's new result replace the one of its row with another `duration`, unless that is an input, too."""
        with self.lock:
            is_given = self._journal.is_in_this_run
            left = (one for one in pending.outdated if not is_given[one] and one not in self._taken)
            if (entry_index := next(left, None)) is not None:
                self._taken.add(entry_index)
                self.num_replaced += 1
                pending.known_as, pending.entry_index = int(self._journal.entries["key"][entry_index]), entry_index
                pending.name = ""  # the files keep their name

    def settle(self, source: Source | Failure) -> bool:
        """Count an input that is done, have its missing files made, and forget it. Return False if its row is no result."""
        pending = self._pending[source.index]
        assert pending.entry_index is not None
        entry = self._journal.entries[pending.entry_index]
        is_other = (int(entry["state"]) ^ pending.state) & FIELDS or (pending.is_moved and self._is_renamed(source))
        if is_other and not pending.is_out_of_reach:
            if not self._renew(pending.entry_index, pending, source):
                return False
        elif self._files is not None and not self._files.complete(pending, source.index):
            return False
        entry["order"] = source.index
        failed = bool(entry["failed"])
        with self.lock:
            self.num_done += 1
            self.num_out_of_reach += pending.is_out_of_reach
            self.listed_fields.update(pending.listed_fields)
            self.failed_before += failed
            if failed and len(self.first_failed) < NUM_FAILED:
                self.first_failed.append(source.path)
            self.forget(source.index)
        return True

    def _renew(self, entry_index: int, pending: PendingInput, source: Source | Failure) -> bool:
        """Give a result the fields and path that its input has now, once in a run. Return False if its row is no result."""
        if self._journal.is_renewed[entry_index]:
            return True
        is_renewed = True if self._files is None else self._files.renew(pending, source)
        if is_renewed and (int(self._journal.entries[entry_index]["state"]) ^ pending.state) & FIELDS:
            self._journal.is_renewed[entry_index] = True
            with self.lock:
                self.num_renewed += 1
        return is_renewed is not False

    def __getitem__(self, index: int) -> PendingInput:
        return self._pending[index]

    def forget(self, index: int) -> None:
        """Forget an input that has its result. The caller holds `lock`."""
        del self._pending[index]


def _was_there(entry: np.void, state: int) -> bool:
    """Return True if a result's recording, which is not there now, was when its run came to it, so that its reason stays."""
    has_changed = (int(entry["state"]) ^ state) >> _HALF & ~_MAY_PASS
    return int(entry["state"]) != NO_STATE and not (entry["failed"] and (entry["for_list"] or not has_changed))


def _repeated(key: int, repeats: int) -> int:
    """Return the key of an input that came `repeats` times before."""
    return digest_of(f"{key} {repeats}") if repeats else key


def _identity(source: Source) -> str:
    return os.path.abspath(source.file) if isinstance(source.file, str) else unsigned(source.file.identity)


def key_of(source: Source | Failure, identity: str | None = None) -> int:
    """Return an input's key in the journal. `identity`: of a recording that was elsewhere."""
    if isinstance(source, Source):
        identity, channel = identity or _identity(source), channel_of(source.row)
        place = f"{identity}\0{source.offset_s or None}\0{source.duration_s}{_track_text(source)}"
        return digest_of(place if channel is None else f"{place}\0channel {channel}")
    stands_for_path = source.id == relative_id(source.path)
    stretch = "None\0None" if stands_for_path else source.id  # as a Source's, once the file is there
    place = unsigned(source.path) if is_url(source.path) else os.path.abspath(source.path)
    return digest_of(f"{place}\0{stretch}")


def channel_of(row: Mapping[str, Any] | None) -> Any:
    """Return the channel that a row names; None: it names none."""
    return (row or {}).get("audio_channel")


def _track_text(source: Source) -> str:
    return f"\0{source.track}" if source.track else ""


def says_nothing(name: str, value: Any) -> bool:
    """Return True if a field of a row is as if it was not there."""
    return value is None or (name == "offset" and value == 0)


def is_of_file(key: int, row: Mapping[str, Any], source: Source) -> bool:
    """Return True if a result with this key and row is of an input's file and track, whatever its offset and duration."""
    with suppress(ManifestError):
        span = row_span("", 0, row)
        lengths = (span.duration_s, None)  # a row has its length in any case
        sources = (replace(source, offset_s=span.offset_s, duration_s=length) for length in lengths)
        return key in map(key_of, sources)
    return False


def moved_key(source: Source, moved: Moved, journal: Journal, repeats: int = 0) -> int | None:
    """Return the key of the result that a recording has from elsewhere; None: it has none, or a file is another recording."""
    place = moved.before(_identity(source))
    key = 0 if place is None else _repeated(key_of(source, place), repeats)
    entry_index = journal.find(key) if journal.has_result(key) else None
    is_same = entry_index is not None and (place != moved.old or is_same_recording(source, journal.entry(entry_index)))
    return key if is_same else None


def is_same_recording(source: Source, entry: Entry) -> bool:
    """Return True if a file has the size of a result's recording, or, in another format, its length."""
    formats = {os.path.splitext(id)[1].partition("@")[0].lower() for id in (source.id, entry.id)}
    with suppress(OSError, AudioError):
        if len(formats) == 1:
            return isinstance(source.file, str) and os.path.getsize(source.file) == entry.input_bytes
        from fastscribe.audio.probe import probe

        return abs(probe(source).duration_s - entry.audio_s) <= _SAME_S
    return False


def _may_be_one(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return True if rows differ in their `duration` alone, and in fields that one of them lacks and that decide no text."""
    before, now = ({name: one for name, one in row.items() if not says_nothing(name, one)} for row in (before, now))
    names = (before.keys() | now.keys()) - {"duration"} - _NOT_COUNTED
    weighed = names & (_DECIDING_ALIGNED | (before.keys() & now.keys()))
    return all(before.get(name) == now.get(name) for name in weighed)


def state_of(source: Source | Failure, run: OutputRun, as_given: bool = False) -> tuple[int, int | None, bool]:
    """Return the input's state in a run, its size in bytes (None: not known), and whether its recording is within reach.

    `as_given`: with fields that decide nothing, such as null.
    """
    if isinstance(source, Failure):
        return digest_of(source.message), None, False
    num_bytes, is_there = None, True
    try:
        found = ""
        if not isinstance(source.file, Samples):
            medium = medium_of(source.file)
            found = medium.version()
            if isinstance(medium, LocalFile):  # others may need a request
                num_bytes = int(found.partition(" ")[0])
    except (OSError, ValueError):
        found, is_there = "none", False
    row = json.loads(json.dumps(source.row or {}, sort_keys=True), parse_float=_number)
    settings = run.fingerprint or {}
    names = set(row) if "export" in settings else _DECIDING_ALIGNED if "--align" in settings else _DECIDING
    deciding = {name: one for name, one in row.items() if name in names and (as_given or not says_nothing(name, one))}
    others = {name: value for name, value in row.items() if name not in names | _NOT_COUNTED}
    upper = digest_of(f"{found}\0{json.dumps(deciding)}") >> _HALF << _HALF
    lower = digest_of("" if source.row is None else json.dumps(others)) & FIELDS
    return upper | lower, num_bytes, is_there


def _number(text: str) -> float:
    """Return the number of a JSON text: 3.0 as 3, which jq makes of it."""
    number = float(text)
    return int(number) if number.is_integer() else number
