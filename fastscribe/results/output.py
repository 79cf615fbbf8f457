"""Output into a folder or a store: `transcripts.jsonl` with a row for each input, and for each other format a file.

The rows are written whatever the formats: of them, later runs and `fastscribe export` make other formats without decoding.

    ledger.expect -> ledger.is_done -> write: staged files -> committer: names, rows, journal lines

file_names.py chooses names, result_files.py makes files, commit.py queues results, and a storage (storage.py) keeps them.
The lock comes first and goes last, and nothing is changed before all checks have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastscribe._system.file_kinds import InTheWay
from fastscribe.errors import OutputError
from fastscribe.results.commit import Committer
from fastscribe.results.entries import NO_STATE, Entry, PreviousRun
from fastscribe.results.file_names import FileNames
from fastscribe.results.formats.writers import render
from fastscribe.results.in_the_way import FilesLedger, check_inputs
from fastscribe.results.items import Item
from fastscribe.results.journal import Journal
from fastscribe.results.journal_ledger import JournalLedger
from fastscribe.results.ledger import Ledger
from fastscribe.results.names import Rename
from fastscribe.results.output_run import OutputRun
from fastscribe.results.overwrite import check_sharding, overwrite
from fastscribe.results.paths import in_the_way
from fastscribe.results.result_files import ResultFiles
from fastscribe.results.shards import Shard
from fastscribe.results.storage import Storage, storage_at
from fastscribe.types import BoolArray, Failure, Source, Transcript


class Totals(NamedTuple):
    """Counts of all runs into a folder. `not_given` counts results in the folder whose inputs this run was not given."""

    files: int = 0
    failed: int = 0
    audio_s: float = 0.0
    not_given: int = 0

    def plus(self, entry: Entry) -> Totals:
        """Return the counts with one more result."""
        return self._replace(
            files=self.files + 1, failed=self.failed + entry.failed, audio_s=self.audio_s + entry.audio_s
        )


class FileLedger(JournalLedger):
    """Ledger of a run with a file for each input: it also chooses file names, and checks the files of earlier runs.

    Files that are missing, damaged or of another style are made again of the earlier result's row, without decoding.
    """

    def __init__(self, shard: Shard, previous: PreviousRun, retry_failed: bool, files: ResultFiles) -> None:
        super().__init__(shard, previous, retry_failed)
        self.names = FileNames(files.formats, shard.count > 1, files.storage.can_rename)
        self._files = files

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard. Every shard chooses the names of all inputs."""
        is_ours = super().expect(source)
        with self.lock:
            for change in self.names.reserve(source.id, source.index if is_ours else None):
                if self._files.apply(change):
                    self.renamed.append(change.rename)
        return is_ours

    def _adopt_earlier_result(self, source: Source | Failure, entry_index: int) -> bool:
        """Return True if the earlier result has its files, or has them again now.

        A file in the way, or a store that cannot be read, leaves the result as it is; the run goes on.
        """
        with self.lock:
            name = self._owned_name(source, entry_index)
        try:  # without the lock, because folders and stores may be slow
            outdated = self._files.outdated(entry_index, name)
            stored = self._files.stored(entry_index, source.index) if outdated else None
        except OSError as error:
            self.not_made.append(error)
            outdated, stored = [], None
        if outdated and stored is None:
            return False
        with self.lock:
            if stored is not None:
                self._make_again(entry_index, name or self.names[source.index], stored, outdated)
            self._adopt_name(source, entry_index, name)
        return True

    def _owned_name(self, source: Source | Failure, entry_index: int) -> str | None:
        """Return the name of the earlier result's files; None if it has none of its own."""
        key = int(self._previous.entries["name"][entry_index])
        found = self.names.find(source.id, source.index, key) if key else None
        return found if found is not None and self._previous.find_by_name(found) == entry_index else None

    def _make_again(
        self, entry_index: int, name: str, stored: tuple[Transcript | Failure, bytes], formats: Sequence[str]
    ) -> None:
        try:
            self.laid_out_again |= self._files.other_layouts(entry_index) & set(formats)
            self._files.make_again(entry_index, name, stored, formats)
        except OSError as error:
            self.not_made.append(error)
        else:
            self.num_made_again += 1

    def _adopt_name(self, source: Source | Failure, entry_index: int, name: str | None) -> None:
        has_failed, key = self._previous.entries[["failed", "name"]][entry_index].item()
        if name is None:
            former = self._files.name_of(entry_index)
            if former and self.names.can_rename:
                self.renamed.append(Rename(former, self.names[source.index]))
            self.names.finish(source.index, has_failed)
            return
        rename = self.names.restore(source.index, key, has_failed)
        if rename is not None and self._files.rename(rename, self._files.formats):
            self.renamed.append(rename)


class JournaledOutput:
    """Writes results into a storage, and resumes where an earlier run with the same fingerprint stopped.

    Use it as a context manager, and give its `ledger` to Transcriber._results().

    Arguments and errors are those of outputs.open_output(), with a storage in place of its place.
    """

    def __init__(self, storage: Storage, run: OutputRun, say: Callable[[str], object] = print) -> None:
        self._storage, self._style, self._ordered, self._say = storage, run.style, run.ordered, say
        try:
            journal = self._open(run)
        except InTheWay as error:
            storage.close(False, False)
            raise in_the_way([str(error.filename)]) from None
        except BaseException:
            storage.close(False, False)
            raise
        self._previous, self._committer = journal.previous, Committer(storage)
        self._files = ResultFiles(storage, run.style, journal, self._committer)
        self.ledger: JournalLedger
        if self._files.formats:
            self.ledger = FileLedger(run.shard, self._previous, run.retry_failed, self._files)
            self._names = self.ledger.names
        else:  # nothing to name, so no memory for names
            self.ledger = JournalLedger(run.shard, self._previous, run.retry_failed)
            self._names = FileNames(())
        self._new = Totals()

    def _open(self, run: OutputRun) -> Journal:
        storage = self._storage
        storage.lock(self._say)
        if run.overwrite:
            overwrite(storage, run, self._say)
        journal = _checked_journal(storage, run, self._say)
        storage.begin(run.header, self._say)
        return journal

    def __enter__(self) -> JournaledOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(finished=kind is None)

    def write(self, result: Transcript | Failure) -> None:
        """Queue all formats of one result. They are durable soon afterwards, and after `flush`.

        Raises:
            InTheWay: A file that no run wrote has the name of one of its files.
            OSError: A file cannot be written. The same input may be written again afterwards, as a Failure.
            OutputError: An earlier result could not be committed. The run cannot go on.
        """
        item = result if isinstance(result, Failure) else result.audio
        with self.ledger.lock:
            pending, name = self.ledger[item.index], self._names[item.index]
            files = self._files.write(name, result)
            try:
                obsolete = self._files.take_obsolete(name, pending.entry_index, files)
                row = render(result, "jsonl", self._style.tokens).encode()
                entry = self._files.listed(pending.entry(result, name), files)
                self._committer.add(Item(name, entry, row, files=tuple(files), obsolete=tuple(obsolete)))
            except BaseException:
                self._storage.discard(files)
                raise
            self._names.finish(item.index, entry.failed)
            self.ledger.mark_done(item.index)
        if pending.entry_index is not None:
            self._previous.is_replaced[pending.entry_index] = True
        self._new = self._new.plus(entry)

    def flush(self) -> None:
        """Wait until all results are durable. Raises OutputError."""
        self._committer.flush()

    def close(self, finished: bool = True) -> None:
        """Wait until all results are durable; then sort and compact the rows if need be, unless the run did not finish.

        Files that someone edited since an earlier run are named at last.

        Raises:
            OutputError: A file cannot be written.
        """
        try:
            try:
                self._committer.close()
            except BaseException:
                finished = False
                raise
            finally:
                self._storage.close(finished, self._ordered)
        finally:
            for line in self._storage.edits.lines():
                self._say(line)

    def totals(self) -> Totals:
        """Return what the place holds once this run has finished."""
        previous = self._previous
        is_counted = (
            ~previous.is_replaced & (previous.is_in_this_run | ~previous.entries["for_list"]) & previous.is_live
        )
        before = previous.entries[is_counted]
        return Totals(
            files=self._new.files + len(before),
            failed=self._new.failed + int(before["failed"].sum()),
            audio_s=self._new.audio_s + float(before["audio_s"].sum()),
            not_given=int((is_counted & ~previous.is_in_this_run).sum()),
        )

    def write_report(self, content: bytes) -> None:
        """Write the report last and durably: `merge` takes it as proof that the run is complete.

        Args:
            content: The file's content.

        Raises:
            OutputError: A file cannot be written.
        """
        if not self._storage.can_rename:
            for item in self._old_failures():
                self._committer.add(item)
        self._committer.flush()
        try:
            self._storage.publish(self._ordered)
            self._storage.write_report(content)
        except OSError as error:
            raise OutputError(str(error.filename or self._storage.where), error) from error

    def _old_failures(self) -> Iterator[Item]:
        """Yield items that drop inputs which never were recordings and are not among this run's: a manifest's row, corrected.

        A folder drops them when it rewrites its journal at the end.
        """
        previous = self._previous
        is_dropped: BoolArray = previous.is_live & previous.entries["for_list"] & ~previous.is_in_this_run
        for entry_index in np.flatnonzero(is_dropped).tolist():
            obsolete = self._files.take_obsolete("", entry_index, ())
            key, order = previous.entries[["key", "order"]][entry_index].item()
            entry = Entry("", key, NO_STATE, 0, 0, order, failed=True, for_list=True)
            yield Item("", entry, obsolete=tuple(obsolete))


def _checked_journal(storage: Storage, run: OutputRun, say: Callable[[str], object] | None) -> Journal:
    """Return the journal of earlier runs, after all checks. `say` is None: read only."""
    check_sharding(storage, run.shard)
    storage.check_own_names()
    journal = storage.open_journal(run.header, run.has_files, say)
    _check_inputs(storage, run, journal)
    return journal


def _check_inputs(storage: Storage, run: OutputRun, journal: Journal) -> None:
    """Raise UsageError if a file that no run wrote has the name of an output.

    The ledger is one of its own, because a ledger counts each input once. A folder without a journal was checked before
    the model was loaded.
    """
    if journal.is_new and storage.is_local:
        return
    previous = PreviousRun(journal.previous.entries)
    ledger = FilesLedger(run.shard, previous, run.retry_failed, run.style.formats)

    def is_ours(file: str) -> bool:
        name, _, format = file.rpartition(".")
        is_listed = format in previous.sizes(previous.find_by_name(name))
        return (is_listed and storage.size(file) is not None) or storage.is_left_over(file)

    check_inputs(storage, run.style.formats, run.inputs, ledger, is_ours)


def open_journaled(place: Path | str, run: OutputRun, say: Callable[[str], object] = print) -> JournaledOutput:
    """Open a folder or a URL, as outputs.open_output()."""
    return JournaledOutput(storage_at(place, run.shard), run, say)


def read_ledger(place: Path | str, run: OutputRun) -> Ledger:
    """Return the ledger that a run would have, and write nothing.

    Raises:
        UsageError: As for JournaledOutput.
        OSError: The place cannot be read.
    """
    storage = storage_at(place, run.shard)
    try:
        previous = _checked_journal(storage, run, None).previous
    finally:
        storage.close(False, False)
    return JournalLedger(run.shard, previous, run.retry_failed) if len(previous.entries) else Ledger(run.shard)
