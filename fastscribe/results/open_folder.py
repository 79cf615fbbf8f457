"""The life of an output folder: lock, resume or overwrite, commit, and at the end compact.

Order: the lock comes first and goes last, and nothing is changed before all checks have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastscribe._system.safe_files import InTheWay, open_append, remove, sync_folder
from fastscribe.config import OutputStyle
from fastscribe.results import journal
from fastscribe.results.commit import Appender, Committer
from fastscribe.results.compact import compact, finish_compaction
from fastscribe.results.edits import Edits
from fastscribe.results.entries import Paths, PreviousRun, in_the_way, load_entries
from fastscribe.results.folder_lock import FolderLock
from fastscribe.results.in_the_way import FilesLedger, check_any_input, check_inputs
from fastscribe.results.journal_ledger import JournalLedger
from fastscribe.results.ledger import Ledger
from fastscribe.results.merge import merged_files
from fastscribe.results.overwrite import check_sharding, other_shardings, remove_results, remove_sharding
from fastscribe.results.shards import UNSHARDED, Shard


@dataclass(frozen=True)
class FolderRun:
    """What a run writes into which folder."""

    directory: Path
    style: OutputStyle
    fingerprint: Mapping[str, Any]  # all that decides results besides the inputs
    shard: Shard = UNSHARDED
    inputs: Sequence[str] = ()  # as the user gave them
    overwrite: bool = False  # remove the results of earlier runs
    retry_failed: bool = False  # transcribe inputs again that failed in an earlier run

    @property
    def paths(self) -> Paths:
        return Paths(self.directory, self.shard.suffix)

    @property
    def header(self) -> dict[str, Any]:
        return {**self.fingerprint, "shard": str(self.shard)}

    def check_inputs(self, previous: Sequence[PreviousRun], ledger: Ledger | None = None) -> None:
        """Raise UsageError if a file that no run wrote has the name of an output."""
        check_inputs(self.directory, self.style.formats, self.inputs, self.shard, previous, ledger)

    def check_resumed(self, previous: PreviousRun) -> None:
        """The same check, with a ledger of its own, because a ledger counts each input once."""
        earlier = PreviousRun(previous.entries)
        self.check_inputs([previous], FilesLedger(self.shard, earlier, self.retry_failed, self.style.formats))


class OpenFolder:
    """A locked output folder with its journal, rows and committer. The folder is made if need be.

    Args:
        run: What this run writes.
        say: Shows one line to the user.

    Raises:
        UsageError: The folder is in use, or holds results of another kind that `overwrite` does not remove, or a file that no
            run wrote is in the way.
        OSError: The folder cannot be written.
    """

    def __init__(self, run: FolderRun, say: Callable[[str], object]) -> None:
        if not run.directory.is_dir():
            run.directory.mkdir(parents=True, exist_ok=True)
            sync_folder(run.directory.parent)
        self.paths = run.paths
        self._lock = FolderLock(self.paths.lock)
        try:
            if run.overwrite:
                _clear(run, say)
            self.journal = _open_journal(run, say)
            self._rows = Appender(open_append(self.paths.rows), self.paths.rows)
            remove(self.paths.report)  # an earlier run's would be read as this one's
            sync_folder(run.directory)
            self.committer = Committer(self.paths, self._rows, self.journal.file)
        except InTheWay as error:
            self._lock.close()
            raise in_the_way([str(error.filename)]) from None
        except BaseException:
            self._lock.close()
            raise

    def close(self, finished: bool, ordered: bool) -> None:
        """Wait until all results are durable, and unlock the folder.

        A finished run also removes replaced rows, and entries of inputs that never were recordings and are not among this
        run's inputs: a bad row of a manifest that has been corrected, a path that has been corrected.

        Args:
            finished: False if an error or a signal ended the run.
            ordered: Sort the rows by input.

        Raises:
            OutputError: A file cannot be written.
        """
        previous = self.journal.previous
        try:
            try:
                self.committer.close()
            finally:
                self.journal.close()
                self._rows.close()
            is_dropped = previous.entries["for_list"] & ~previous.is_in_this_run
            has_replaced = (previous.is_replaced | previous.is_made_again).any() or len(previous) < len(
                previous.entries
            )
            if finished and (ordered or has_replaced or is_dropped.any()):
                compact(self.paths, ordered, previous.entries["order"], is_dropped)
        finally:
            self._lock.close()


def _clear(run: FolderRun, say: Callable[[str], object]) -> None:
    """Remove the results of earlier runs, after all checks, and name the files among them that someone edited."""
    check_any_input(run.inputs)
    paths, others = run.paths, other_shardings(run.directory, run.shard)
    former = [*others, *([paths] if paths.has_begun else [])]
    merged = merged_files(run.directory) if run.shard.count == 1 else ()
    paths.check(besides=merged)
    run.check_inputs([PreviousRun(load_entries(one.journal)) for one in former])
    edits = Edits()
    for other in others:
        remove_sharding(other, edits)
    remove_results(paths, edits)
    for line in edits.lines():
        say(line)
    for path in merged:
        remove(path)


def _open_journal(run: FolderRun, say: Callable[[str], object]) -> journal.Journal:
    paths = run.paths
    check_sharding(run.directory, run.shard)
    paths.check()
    if not paths.has_begun:
        return journal.begin(paths, run.header)
    finish_compaction(paths)
    opened = journal.resume(paths, run.header, say)
    try:
        run.check_resumed(opened.previous)
    except BaseException:
        opened.close()
        raise
    return opened


def read_folder_ledger(run: FolderRun) -> Ledger:
    """Return the ledger of a run, without changing its folder, which may not exist.

    Raises:
        UsageError: As for OpenFolder.
    """
    check_sharding(run.directory, run.shard)
    if not run.paths.has_begun:
        return Ledger(run.shard)
    previous = journal.load_readonly(run.paths, run.header)
    run.check_resumed(previous)
    return JournalLedger(run.shard, previous, run.retry_failed)
