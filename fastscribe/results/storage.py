"""Where a run keeps results, rows and journal: a folder (storage_folder.py) or the objects below a URL (storage_object.py).

Everything above this interface is the same for both: names, files, ledger, commits, resuming, overwriting. The back end repairs
what a kill or a power cut leaves: a folder has a write-ahead block, temporary files, syncs and renames; a store has numbered
objects, and writes that refuse to replace. Names of files are relative, with "/".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fastscribe._system.urls import is_url
from fastscribe.results.edits import Edits
from fastscribe.results.items import Item, Pace, StagedFile
from fastscribe.results.journal import Journal
from fastscribe.results.shards import Shard


class Storage(Protocol):
    """One shard's place. Methods raise OSError with the name of the file or object.

    `can_rename`: finished files get other names when another input shares theirs, and rows and journal can be rewritten.
    `is_local`: reading a file costs no request, so contents are compared before a file is replaced; else sizes are.
    """

    where: str  # the folder or URL
    can_rename: bool
    is_local: bool
    pace: Pace
    edits: Edits  # files that someone edited

    # --- the life of a run, in this order

    def lock(self, say: Callable[[str], object]) -> None:
        """Lock the shard until `close`. Raises UsageError if another run has it."""

    def shards(self) -> list[Shard]:
        """Return the shards that have a journal here."""

    def shown(self, shard: Shard) -> str:
        """Return what a message calls the results of a shard here."""

    def removable(self, shards: Sequence[Shard]) -> Container[str]:
        """Return the names of the files that `remove` removes of these shards, and of a merge if this run has no shards."""

    def remove(self, shards: Sequence[Shard], say: Callable[[str], object]) -> None:
        """Remove the results of these shards, and what a merge made if this run has no shards; edited files stay beside."""

    def check_own_names(self, removed: Container[str] | None = None) -> None:
        """Raise UsageError if rows, report and so on would replace something that no run wrote, besides what is `removed`."""

    def open_journal(self, header: Mapping[str, Any], has_files: bool, say: Callable[[str], object] | None) -> Journal:
        """Return the journal of earlier runs, completed or repaired after a kill. Raises UsageError for other settings.

        Args:
            header: This run's fingerprint.
            has_files: The run writes a file for each input, so those that are there matter.
            say: Shows one line to the user; None: only read, and change nothing.
        """

    def begin(self, header: Mapping[str, Any], say: Callable[[str], object]) -> None:
        """Prepare for commits. An earlier run's report is removed: it would be read as this one's."""

    def commit(self, items: Sequence[Item]) -> None:
        """Make items durable: their files, rows, and at last their journal lines. Called from one thread."""

    def end_commits(self) -> None:
        """Remove what only an interrupted commit needs."""

    def publish(self, ordered: bool) -> None:
        """Write the rows that readers see, unless commits append to those rows."""

    def write_report(self, content: bytes) -> None:
        """Write the report durably."""

    def close(self, is_finished: bool, ordered: bool) -> None:
        """Unlock the shard, if it is locked. Of a finished run, first drop replaced rows, and sort them if `ordered`."""

    # --- files of results

    def has_other_files(self) -> bool:
        """Return True if there may be files that no run wrote. Called after `removable` or `open_journal`."""

    def path_of(self, file: str) -> str:
        """Return the path or URL of a file."""

    def is_taken(self, file: str) -> bool:
        """Return True if anything has this name."""

    def size(self, file: str) -> int | None:
        """Return the size of a file in bytes, as a journal records it; None if there is no file, or no regular one."""

    def read(self, file: str) -> bytes:
        """Return a file's content; b"" if it is gone."""

    def is_left_over(self, file: str) -> bool:
        """Return True if a file that the journal does not list was left by a run that was killed."""

    def is_damaged(self, file: str, whole: Callable[[], bytes]) -> bool:
        """Return True if a kill or a power cut left part of a content in a file. Then no user has edited it."""

    def set_aside(self, file: str) -> None:
        """Keep an edited file under another name, before the next commit replaces or removes it."""

    def stage(self, file: str, content: bytes, is_listed: bool) -> StagedFile:
        """Take a file's new content for the next commit. `is_listed`: the journal has a file of this name."""

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Forget staged files that no commit has taken."""

    def discard_stale(self, file: str) -> None:
        """Forget what a run that was killed has staged for this name."""


def storage_at(place: Path | str, shard: Shard) -> Storage:
    """Return the storage of a folder or URL. Only its own modules are imported.

    Raises:
        UsageError: The store needs a package that is not installed, or there is no such protocol or bucket.
    """
    if is_url(str(place)):
        from fastscribe.results.storage_object import ObjectStorage

        return ObjectStorage(str(place), shard)
    from fastscribe.results.storage_folder import FolderStorage

    return FolderStorage(Path(place), shard)
