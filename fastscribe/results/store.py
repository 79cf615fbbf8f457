"""Output to an object store: for each input a row, and a file for each other format. See open_store.py for its life.

    ledger.expect -> ledger.is_done -> write -> committer: files, rows, journal -> at the end: transcripts.jsonl, report.json

Objects cannot be renamed, so every file keeps its input's extension (`a.wav.srt`), and no name ever changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from fastscribe._system.safe_files import InTheWay
from fastscribe.config import OutputStyle
from fastscribe.results.entries import NO_STATE, SUBTITLES, Entry
from fastscribe.results.fingerprint import style_key
from fastscribe.results.folder import Totals, totals_of
from fastscribe.results.formats.writers import render
from fastscribe.results.journal_ledger import JournalLedger
from fastscribe.results.names import OutputNames
from fastscribe.results.object_folder import ObjectFolder
from fastscribe.results.open_store import RESERVED_NAMES, OpenStore, StoredResults, StoreRun, find_shards
from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.results.store_commit import StoreFile, StoreItem
from fastscribe.results.stored import to_result
from fastscribe.types import Failure, Source, Transcript


class StoreLedger(JournalLedger):
    """Ledger of an output URL: it also chooses file names, and looks for the files of earlier runs in a listing.

    Args:
        run: The present run.
        results: Results of earlier runs.
        make_again: Makes files of an earlier result's row (entry index, position, formats), and returns True if there is one;
            None: the run writes nothing.
    """

    def __init__(
        self,
        run: StoreRun,
        results: StoredResults,
        make_again: Callable[[int, int, Sequence[str]], bool] | None = None,
    ) -> None:
        super().__init__(run.shard, results.journal.previous, run.retry_failed)
        self._formats, self._results, self._make_again = run.formats, results, make_again
        self._style = style_key(run.style.subtitles)
        self._names = OutputNames(RESERVED_NAMES)
        self._pending_names: dict[int, str] = {}  # by the input's index

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard. Every shard chooses the names of all inputs."""
        is_ours = super().expect(source)
        if self._formats:
            name = self._names.take_full(source.id)
            if is_ours:
                self._pending_names[source.index] = name
        return is_ours

    def name_of(self, index: int) -> str:
        """Return the name of an input that waits for its result; "" if the run writes no files."""
        return self._pending_names.get(index, "")

    def mark_done(self, index: int) -> None:
        super().mark_done(index)
        self._pending_names.pop(index, None)

    def _adopt_earlier_result(self, source: Source | Failure, entry_index: int) -> bool:
        """Return True if the earlier result has its files, or has them again now."""
        if self._make_again is None:
            return True
        try:
            outdated = self._results.outdated(entry_index, self.name_of(source.index), self._style)
            if not outdated:
                return True
            self.laid_out_again |= self._results.journal.previous.other_layouts(entry_index, self._style) & set(
                outdated
            )
            is_made = self._make_again(entry_index, source.index, outdated)
        except OSError as error:  # an object is in the way, or cannot be read; the result stays, and the run goes on
            self.not_made.append(error)
            return True
        self.num_made_again += is_made
        return is_made


def read_store_ledger(run: StoreRun) -> JournalLedger:
    """Return the ledger of a run, and write nothing.

    Raises:
        UsageError: As for StoreOutput.
        OSError: The store cannot be read.
    """
    folder = ObjectFolder(run.url)
    try:
        results = StoredResults(run, folder, find_shards(folder))
        results.journal.close()
        return StoreLedger(run, results)
    finally:
        folder.close()


class StoreOutput:
    """Writes results below a URL, and resumes where an earlier run with the same fingerprint stopped.

    Use it as a context manager, and give its `ledger` to Transcriber.transcribe().

    Args:
        url: The folder's URL.
        style: The formats and their options; rows are always written.
        fingerprint: All that decides results besides the inputs.
        shard: The part of the inputs that this run transcribes.
        overwrite: Remove the results of earlier runs first.
        retry_failed: Transcribe inputs again that failed in an earlier run.
        ordered: Sort the rows by input at the end.
        inputs: As the user gave them; their output names are checked before anything is written.
        say: Shows one line to the user.

    Raises:
        UsageError: Another run writes there, or the URL holds results of another kind that `overwrite` does not remove, or an
            object that no run wrote is in the way.
        OSError: The store cannot be read or written.
    """

    def __init__(
        self,
        url: str,
        style: OutputStyle,
        fingerprint: Mapping[str, Any],
        shard: Shard = UNSHARDED,
        *,
        overwrite: bool = False,
        retry_failed: bool = False,
        ordered: bool = False,
        inputs: Sequence[str] = (),
        say: Callable[[str], object] = print,
    ) -> None:
        run = StoreRun(url, style, fingerprint, shard, inputs, overwrite, retry_failed)
        self._style, self._ordered, self._formats, self._say = style, ordered, run.formats, say
        self._store = OpenStore(run, say)
        self._results = self._store.results
        self._previous = self._results.journal.previous
        self.ledger = StoreLedger(run, self._results, self._make_again)
        self._new = Totals()

    def __enter__(self) -> StoreOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close()

    def write(self, result: Transcript | Failure) -> None:
        """Queue all formats of one result. The store has them some seconds later, and after `flush`.

        Raises:
            InTheWay: An object that no run wrote has the name of one of its files.
            OutputError: An earlier result could not be committed. The run cannot go on.
        """
        item = result if isinstance(result, Failure) else result.audio
        with self.ledger.lock:
            pending, name = self.ledger[item.index], self.ledger.name_of(item.index)
            files = self._files(name, result, self._formats)
            entry = self._listed(pending.entry(result, name), files)
            row = render(result, "jsonl", self._style.tokens).encode()
            obsolete = self._take_obsolete(name, pending.entry_index, {file.name for file in files})
            self._store.committer.add(StoreItem(entry, row, files, obsolete))
            self.ledger.mark_done(item.index)
        if pending.entry_index is not None:
            self._previous.is_replaced[pending.entry_index] = True
        self._new = self._new.plus(entry)

    def flush(self) -> None:
        """Wait until the store has all results. Raises OutputError."""
        self._store.committer.flush()

    def totals(self) -> Totals:
        """Return what the URL holds once this run has finished."""
        return totals_of(self._previous, self._new)

    def write_report(self, content: bytes, finished: bool = True) -> None:
        """Write `transcripts.jsonl`, and the report last: it says that the run is complete.

        Args:
            content: The report, which says so if the run is not `finished`.
            finished: The run has done all of its inputs.

        Raises:
            OutputError: The store cannot be written.
        """
        if finished:
            self._drop_old_failures()
        self._store.committer.flush()
        if self._ordered or self._store.committer.num_commits or not self._store.is_published:
            self._store.publish(self._ordered)
        self._store.put_report(content)

    def close(self) -> None:
        """Wait until the store has all results, unlock the URL, and name the files that someone edited. Raises OutputError."""
        try:
            self._store.close()
        finally:
            for line in self._results.edits.lines():
                self._say(line)

    def _make_again(self, entry_index: int, order: int, formats: Sequence[str]) -> bool:
        """Make files from the row of an earlier result, and commit them with it. Return False if there is no such row."""
        entry = self._results.journal.entry(entry_index)
        try:
            row = self._results.journal.row(entry)
            result = to_result(json.loads(row), entry.id, entry.audio_s, order)
        except (FileNotFoundError, ValueError):
            return False
        with self.ledger.lock:
            name = self.ledger.name_of(order)
            files = self._files(name, result, formats)
            obsolete: tuple[StoreFile, ...] = ()
            if self._previous.find_by_name(name) != entry_index:
                obsolete = self._take_obsolete(name, entry_index, {file.name for file in files})
                entry = entry._replace(name=name, sizes={}, styles={}, checksums={})
            item = StoreItem(self._listed(entry._replace(order=order), files), row, files, obsolete)
            self._store.committer.add(item)
        self._previous.is_made_again[entry_index] = True
        return True

    def _listed(self, entry: Entry, files: Sequence[StoreFile]) -> Entry:
        """Return the entry with these files, besides those that it lists already."""
        new = {file.name.removeprefix(f"{entry.name}."): file.content for file in files}
        style = style_key(self._style.subtitles)
        return entry._replace(
            sizes={**entry.sizes, **{format: len(content) for format, content in new.items()}},
            styles={**entry.styles, **{format: style for format in SUBTITLES if format in new}},
            checksums={**entry.checksums, **{format: crc32(content) for format, content in new.items()}},
        )

    def _files(self, name: str, result: Transcript | Failure, formats: Sequence[str]) -> tuple[StoreFile, ...]:
        files, results = [], self._results
        for format in formats:
            content = render(result, format, self._style.tokens, self._style.subtitles).encode()
            file = f"{name}.{format}"
            is_in_the_way = results.is_in_the_way(file)
            if isinstance(result, Failure) and (is_in_the_way or not content):  # its row and stderr report the failure
                continue
            if is_in_the_way:
                raise InTheWay(self._store.folder.url_of(file))
            is_ours = results.listing.size(file) is not None
            files.append(StoreFile(file, content, is_ours, results.is_edited(name, format)))
        return tuple(files)

    def _take_obsolete(self, name: str, entry_index: int | None, written: set[str]) -> tuple[StoreFile, ...]:
        """Return files of earlier results that a new result makes obsolete. Later calls do not return them again."""
        if not self._results.has_files:
            return ()
        previous, found = self._previous, []
        owners = {previous.find_by_name(name): name}
        if entry_index is not None and not previous.are_files_replaced[entry_index]:
            owners.setdefault(entry_index, self._results.journal.entry(entry_index).name)
        for index, former in owners.items():
            if index is None or previous.find_by_name(former) != index:
                continue
            for format in previous.sizes(index):
                file = f"{former}.{format}"
                if file not in written and self._results.listing.size(file) is not None:
                    found.append(StoreFile(file, b"", is_edited=self._results.is_edited(former, format)))
            previous.are_files_replaced[index] = True
        return tuple(found)

    def _drop_old_failures(self) -> None:
        """Forget inputs that never were recordings and are not among this run's: a row of a manifest, corrected since."""
        previous = self._previous
        is_dropped = np.zeros(len(previous.entries), bool)
        is_dropped[previous.entry_indices] = True
        is_dropped &= previous.entries["for_list"] & ~previous.is_in_this_run & (previous.entries["state"] != NO_STATE)
        for entry_index in np.flatnonzero(is_dropped).tolist():
            obsolete = self._take_obsolete("", entry_index, set())
            key, order = previous.entries[["key", "order"]][entry_index].item()
            entry = Entry("", key, NO_STATE, 0, 0, order, failed=True, for_list=True)
            self._store.committer.add(StoreItem(entry, b"", obsolete=obsolete))
