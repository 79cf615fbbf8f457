"""Where a run keeps results, rows and journal: a folder (storage_folder.py) or the objects below a URL (storage_object.py).

Everything above this interface is the same for both: names, files, ledger, resuming, overwriting. Names of files are relative,
with "/". A commit makes rows durable, and then their journal lines; files come after it. So the journal lists whole rows only,
and a file that a kill or a power cut takes is made again of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fastscribe.results.journal import Entry, Journal
from fastscribe.results.shards import Shard
from fastscribe.types import Int64Array

Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
ROWS = "transcripts.jsonl"  # what `Storage.read` calls the rows, whatever their names


class NewFile(NamedTuple):
    """A file of a result, which a commit writes, replaces or removes if it has a content that a run wrote."""

    name: str
    content: bytes | None  # None: remove it
    former: tuple[int, ...] = ()  # CRC-32 of what runs have written under this name; none: nothing may be there


class Item(NamedTuple):
    """One finished recording, or the files of one that are made again."""

    entry: Entry | None  # if `has_new_row`, its offsets are those of the row, which the commit knows; None: files alone
    row: bytes = b""
    has_new_row: bool = True  # False: the results have the row already
    files: tuple[NewFile, ...] = ()
    is_renewed: bool = False  # an earlier result, whose row has other fields now

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""
        return len(self.row) + sum(len(file.content or b"") for file in self.files)


class Pace(NamedTuple):
    """How results gather until they are committed together."""

    max_queued: int  # results, until another one has to wait
    max_results: int  # with so many, a commit does not wait
    max_bytes: int  # likewise
    min_pause_s: float = 0.0  # between two commits
    max_pause_s: float = 0.0
    pause_share: float = 0.0  # pause as a share of the time since the start


class Storage(Protocol):
    """One shard's place. Methods raise OSError with the name of the file or object.

    Attributes:
        where: The folder or URL.
        pace: How results gather.
        map: Calls a function with each of several files: in a store, several at once.
        lacks_files: A file could not be written or read. As long as it is True, the journal does not say that files are
            durable, so the next run looks into them.
    """

    where: str
    pace: Pace
    map: Each
    lacks_files: bool

    def lock(self, say: Callable[[str], object]) -> list[Shard]:
        """Lock the shard until `close`, and return the shards that have a journal here. Raises UsageError if a run has it."""

    def load(self, shard: Shard, whatever_is_left: bool = False) -> Journal:
        """Return what the journal of a shard has, and change nothing.

        Args:
            shard: This one or another.
            whatever_is_left: Leave out what is missing or damaged, because all of it is to be removed.

        Raises:
            UsageError: It is no journal, or something of it is missing.
        """

    def own_names(self, shard: Shard) -> Sequence[tuple[str, ...]]:
        """Return the names of a shard's rows, journal and report, in the groups in which they are to be removed."""

    def open(self, header: Mapping[str, Any] | None, facts: Mapping[str, Any], say: Callable[[str], object]) -> Journal:
        """Begin or repair the shard's journal, and prepare for commits. An earlier run's report is removed.

        Args:
            header: This run's fingerprint; None: whatever the journal's is, but its rows must be as its run left them.
            facts: What this run states.
            say: Shows one line to the user.

        Raises:
            UsageError: The journal is of a run with other settings, or a file that no run wrote is in the way.
        """

    def commit(self, items: Sequence[Item]) -> Sequence[Item]:
        """Make rows durable, and then their entries; and what `write` wrote before. Called from one thread, as are the next.

        Returns:
            The items; each entry has the offsets of its row.
        """

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return the content of a file, or of ROWS, between two offsets; fewer bytes if there are no more."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if there is none; -1 for a folder, link or device."""

    def write(self, name: str, content: bytes, replaces: bool) -> None:
        """Write a file whole. Raises InTheWay if it must not replace one."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove files, durably. One that is not there is no error."""

    def sync(self, names: Sequence[str]) -> None:
        """Make files, and removals, of an earlier run durable that was killed. One that is not there is no error.

        From here on `size` knows what was written before.
        """

    def close(self, finish: Finish | None) -> None:
        """Do what ends a run, if it has finished, and unlock the shard."""


class Finish(NamedTuple):
    """What a run asks for at its end."""

    ordered: bool  # sort the rows by input
    order: Int64Array  # index of the input of each entry of earlier runs
    report: bytes | None  # the report, which is written last
