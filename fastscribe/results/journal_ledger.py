"""The ledger of a run with a journal: which of its inputs an earlier run into the same place has done.

The key identifies an input: its path, offset and duration. The state tells whether it has changed. Its upper half stands for
what decides the text: the file's version (of a local one, size and modification time), and some fields of its manifest row. The
lower half stands for the other fields: where it alone differs, the result stays, and its row gets the fields. A result also
stays, as it is, where its recording is not there or out of reach: nothing is known then that could replace it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from fastscribe._system.key_counter import KeyCounter
from fastscribe._system.url_secrets import unsigned
from fastscribe._system.urls import is_url
from fastscribe.audio.failures import relative_id
from fastscribe.audio.media import LocalFile, medium_of
from fastscribe.languages import SPOKEN_KEYS
from fastscribe.results.formats.writers import OWN_KEYS
from fastscribe.results.interfaces import NUM_FAILED, Ledger, OutputRun
from fastscribe.results.journal import NO_STATE, Entry, Journal, PendingInput, digest_of
from fastscribe.results.result_files import ResultFiles
from fastscribe.types import Failure, Samples, Source

# Fields of a manifest's row that decide the text, and those that also decide where words of a known text are.
_DECIDING = {*SPOKEN_KEYS, "boost", "offset", "duration", "audio_track", "audio_channel"}
_DECIDING_ALIGNED = {*_DECIDING, "text", "subtitles"}
_NOT_COUNTED = {*OWN_KEYS, "audio_filepath"}  # no result takes over the former, and the key has the path's place
_HALF = 32  # bits
FIELDS = (1 << _HALF) - 1  # the lower half of a state


class JournalLedger(Ledger):
    """Decides which inputs this run transcribes. Inputs that failed before count as done unless it retries them.

    Args:
        run: Its shard, whether it retries inputs that failed, and where the recordings of earlier results are now.
        journal: Results of earlier runs.
        files: Names the inputs' files, and makes those of earlier results again that are missing; None: there are no files.
        take_over: Called with the entry of a recording that was elsewhere, and with what is known of it now. Returns the new
            entry; None: there are no files.
        renew: Called with an input whose row has other fields than its result. Returns False if the result cannot take them,
            and None if its row cannot be read now.
    """

    def __init__(
        self,
        run: OutputRun,
        journal: Journal,
        files: ResultFiles | None = None,
        take_over: Callable[[int, PendingInput, int], Entry | None] = lambda *given: None,
        renew: Callable[[PendingInput, Source | Failure], bool | None] = lambda *given: True,
    ) -> None:
        super().__init__(run.shard)
        self._run, self._journal, self._files, self._take_over, self._renew = run, journal, files, take_over, renew
        self.earlier_formats = () if run.style.formats else journal.formats
        self.num_renewed = int(journal.is_renewed.sum())
        self._key_counts = KeyCounter()
        self._pending: dict[int, PendingInput] = {}  # by index
        self.ids_digest = 0  # of the names of all inputs so far, in any order

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard. Every shard names all inputs."""
        key = key_of(source)
        repeats = self._key_counts.count(key)
        key = _repeated(key, repeats)
        is_ours = super().expect(source)
        self.ids_digest = (self.ids_digest + digest_of(source.id)) % 2**64
        known_as = self._known_as(source, key, repeats)
        name = "" if self._files is None else self._files.names.name_of(source.id, known_as, is_ours)
        if is_ours:
            self._pending[source.index] = PendingInput(key, known_as, name)
        return is_ours

    def _known_as(self, source: Source | Failure, key: int, repeats: int) -> int:
        """Return the key of an input's earlier result: that of where the recording was, if it has a result from there alone."""
        moved = self._run.moved
        if moved is None or isinstance(source, Failure) or self._journal.has_result(key):
            return key
        place = moved.before(_identity(source))
        old = key if place is None else _repeated(key_of(source, place), repeats)
        return old if self._journal.has_result(old) else key

    def is_done(self, source: Source | Failure) -> bool:
        """Return True if an earlier run transcribed this very input, or failed and the input is not retried.

        A recording that is not there, or out of reach, has not changed.
        """
        pending = self._pending[source.index]
        pending.state, pending.num_bytes, is_there = state_of(source, self._run)
        pending.entry_index = entry_index = self._journal.find(pending.known_as)
        if entry_index is None:
            return False
        entry = self._journal.entries[entry_index]
        if entry["failed"] and self._run.retry_failed:
            return False
        pending.is_out_of_reach = not (is_there or entry["failed"] or int(entry["state"]) == NO_STATE)
        if pending.is_out_of_reach:
            return True
        if pending.is_moved:  # its time may be another there
            return pending.num_bytes is not None and pending.num_bytes == self._journal.entry(entry_index).input_bytes
        return int(entry["state"]) >> _HALF == pending.state >> _HALF

    def settle(self, source: Source | Failure) -> bool:
        """Count an input that is done, have its missing files made, and forget it. Return False if its row is no result."""
        pending = self._pending[source.index]
        assert pending.entry_index is not None
        entry = self._journal.entries[pending.entry_index]
        if pending.is_out_of_reach or pending.is_moved or int(entry["state"]) == pending.state:
            takes_over = pending.is_moved and not pending.is_out_of_reach
            taken = self._take_over(pending.entry_index, pending, source.index) if takes_over else None
            if self._files is not None and not self._files.complete(
                pending.entry_index, pending.name, source.index, taken
            ):
                return False
        elif not self._journal.is_renewed[pending.entry_index]:
            is_renewed = self._renew(pending, source)
            if is_renewed is False:
                return False
            self._journal.is_renewed[pending.entry_index] = bool(is_renewed)
            with self.lock:
                self.num_renewed += bool(is_renewed)
        self._journal.is_in_this_run[pending.entry_index] = True
        entry["order"] = source.index
        failed = bool(entry["failed"])
        with self.lock:
            self.num_done += 1
            self.num_out_of_reach += pending.is_out_of_reach
            self.failed_before += failed
            if failed and len(self.first_failed) < NUM_FAILED:
                self.first_failed.append(source.path)
            self.forget(source.index)
        return True

    def __getitem__(self, index: int) -> PendingInput:
        return self._pending[index]

    def forget(self, index: int) -> None:
        """Forget an input that has its result. The caller holds `lock`."""
        del self._pending[index]


def _repeated(key: int, repeats: int) -> int:
    """Return the key of an input that came `repeats` times before."""
    return digest_of(f"{key} {repeats}") if repeats else key


def _identity(source: Source) -> str:
    return os.path.abspath(source.file) if isinstance(source.file, str) else unsigned(source.file.identity)


def key_of(source: Source | Failure, identity: str | None = None) -> int:
    """Return an input's key in the journal. `identity`: of a recording that was elsewhere."""
    if isinstance(source, Source):
        track = f"\0{source.track}" if source.track else ""
        identity = identity or _identity(source)
        return digest_of(f"{identity}\0{source.offset_s}\0{source.duration_s}{track}")
    stands_for_path = source.id == relative_id(source.path)
    stretch = "None\0None" if stands_for_path else source.id  # as a Source's, once the file is there
    place = unsigned(source.path) if is_url(source.path) else os.path.abspath(source.path)
    return digest_of(f"{place}\0{stretch}")


def state_of(source: Source | Failure, run: OutputRun) -> tuple[int, int | None, bool]:
    """Return the input's state in a run, its size in bytes (None: not known), and whether its recording is within reach."""
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
    deciding = {name: value for name, value in row.items() if name in names}
    others = {name: value for name, value in row.items() if name not in names | _NOT_COUNTED}
    upper = digest_of(f"{found}\0{json.dumps(deciding)}") >> _HALF << _HALF
    lower = digest_of("" if source.row is None else json.dumps(others)) & FIELDS
    return upper | lower, num_bytes, is_there


def _number(text: str) -> float:
    """Return the number of a JSON text: 3.0 as 3, which jq makes of it."""
    number = float(text)
    return int(number) if number.is_integer() else number
