"""Output into a folder: `transcripts.jsonl` with a row for each input, and for each other format a file for each input.

The rows are written whatever the formats: of them, later runs and `fastscribe export` make other formats without decoding.

    ledger.expect -> ledger.is_done -> write: temporary files -> committer: names, row, journal line

file_names.py chooses names, result_files.py writes files, open_folder.py resumes and closes the folder. Only these and
the journal touch output files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastscribe._system.safe_files import write_atomic
from fastscribe.config import OutputStyle
from fastscribe.errors import OutputError
from fastscribe.results.commit import finished_item
from fastscribe.results.entries import NO_STATE, Entry, PreviousRun
from fastscribe.results.file_names import FileNames
from fastscribe.results.formats.writers import render
from fastscribe.results.journal_ledger import JournalLedger
from fastscribe.results.names import Rename
from fastscribe.results.open_folder import FolderRun, OpenFolder
from fastscribe.results.result_files import ResultFiles
from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.types import Failure, Source, Transcript


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


class FolderLedger(JournalLedger):
    """Ledger of a folder with a file for each input: it also chooses file names, and checks the files of earlier runs.

    Files that are missing, damaged or of another style are made again of the earlier result's row, without decoding.
    """

    def __init__(self, shard: Shard, previous: PreviousRun, retry_failed: bool, files: ResultFiles) -> None:
        super().__init__(shard, previous, retry_failed)
        self.names = FileNames(files.formats, is_sharded=shard.count > 1)
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
        """Return True if the earlier result has its files, or has them again now."""
        previous = self._previous
        has_failed, key = previous.entries[["failed", "name"]][entry_index].item()
        with self.lock:
            found = self.names.find(source.id, source.index, key) if key else None
            name = found if found is not None and previous.find_by_name(found) == entry_index else None
        outdated = self._files.outdated(entry_index, name)  # without the lock, because folders may be slow
        with self.lock:
            new_name = name or self.names[source.index]
            if outdated and not self._make_again(entry_index, new_name, source.index, outdated):
                return False
            if name is None:
                if former := self._files.name_of(entry_index):
                    self.renamed.append(Rename(former, new_name))
                self.names.finish(source.index, has_failed)
                return True
            rename = self.names.restore(source.index, key, has_failed)
            if rename is not None and self._files.rename(rename, self._files.formats):
                self.renamed.append(rename)
        return True

    def _make_again(self, entry_index: int, name: str, order: int, formats: Sequence[str]) -> bool:
        """Make the files of an earlier result again. Return False if its row is gone.

        A file in the way leaves the result as it is; the run goes on.
        """
        try:
            self.laid_out_again |= self._files.other_layouts(entry_index) & set(formats)
            is_made = self._files.make_again(entry_index, name, order, formats)
        except OSError as error:
            self.not_made.append(error)
            return True
        self.num_made_again += is_made
        return is_made


class FolderOutput:
    """Writes results into `directory`, and resumes where an earlier run with the same fingerprint stopped.

    Use it as a context manager, and give its `ledger` to Transcriber._results().

    Args:
        directory: The folder, which is made if need be.
        style: The formats and their options.
        fingerprint: All that decides results besides the inputs.
        shard: The part of the inputs that this run transcribes.
        overwrite: Remove the results of earlier runs first.
        retry_failed: Transcribe inputs again that failed in an earlier run.
        ordered: Sort the rows by input at the end.
        inputs: As the user gave them; their output names are checked before anything is written.
        say: Shows one line to the user.

    Raises:
        UsageError: The folder is in use, or holds results of another kind that `overwrite` does not remove, or a file that no
            run wrote is in the way.
        OSError: The folder cannot be written.
    """

    def __init__(
        self,
        directory: Path,
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
        self._style, self._ordered, self._say = style, ordered, say
        run = FolderRun(directory, style, fingerprint, shard, inputs, overwrite, retry_failed)
        self._folder = OpenFolder(run, say)
        self._previous, self._committer = self._folder.journal.previous, self._folder.committer
        self._files = ResultFiles(directory, style, shard.suffix, self._folder.journal, self._committer)
        self.ledger: JournalLedger
        if self._files.formats:
            self.ledger = FolderLedger(shard, self._previous, retry_failed, self._files)
            self._names = self.ledger.names
        else:  # nothing to name, so no memory for names
            self.ledger = JournalLedger(shard, self._previous, retry_failed)
            self._names = FileNames(())
        self._new, self._is_finished = Totals(), True

    def __enter__(self) -> FolderOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(finished=kind is None and self._is_finished)

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
                begin = self._committer.rows_end
                entry = pending.entry(result, name, begin, begin + len(row))
                self._committer.add(finished_item(self._files.listed(entry, files), row, files, obsolete))
            except BaseException:
                self._files.discard(files)
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
            self._folder.close(finished, self._ordered)
        finally:
            for line in self._files.edits.lines():
                self._say(line)

    def totals(self) -> Totals:
        """Return what the folder holds once this run has finished."""
        return totals_of(self._previous, self._new)

    def write_report(self, content: bytes, finished: bool = True) -> None:
        """Write the report last and durably: `merge` takes it as proof that the run is complete.

        Args:
            content: The file's content, which says so if the run is not `finished`.
            finished: The run has done all of its inputs. Else the rows stay as they are, for the next run.

        Raises:
            OutputError: The file cannot be written.
        """
        self._is_finished = finished
        try:
            write_atomic(self._folder.paths.report, content)
        except OSError as error:
            raise OutputError(str(error.filename), error) from error


def totals_of(previous: PreviousRun, new: Totals) -> Totals:
    """Add the results of a run to those of earlier runs that it has not replaced."""
    is_counted = np.zeros(len(previous.entries), bool)
    is_counted[previous.entry_indices] = True
    is_counted &= previous.entries["state"] != NO_STATE
    is_counted &= ~previous.is_replaced & (previous.is_in_this_run | ~previous.entries["for_list"])
    before = previous.entries[is_counted]
    return Totals(
        files=new.files + len(before),
        failed=new.failed + int(before["failed"].sum()),
        audio_s=new.audio_s + float(before["audio_s"].sum()),
        not_given=int((is_counted & ~previous.is_in_this_run).sum()),
    )
