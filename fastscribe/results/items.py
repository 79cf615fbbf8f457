"""What a storage commits: finished recordings with their files, rows and journal entries, and renames of files."""

from __future__ import annotations

from typing import NamedTuple

from fastscribe.results.entries import Entry
from fastscribe.results.names import Rename


class StagedFile(NamedTuple):
    """A new file of a result, which a commit gives its name. A folder's block stores all but the content."""

    name: str
    temp: str  # name of the temporary file; "" where the content waits in memory
    size: int
    crc: int
    is_replacing: bool  # a run may have written the file that has this name now
    content: bytes = b""  # in memory, of a store


class Item(NamedTuple):
    """One finished recording, or one rename of a finished recording's files."""

    name: str  # of its files, without a format's extension
    entry: Entry | None = (
        None  # if `has_new_row`, its offsets are those of the row, which the commit knows; None: a rename
    )
    row: bytes = b""
    has_new_row: bool = True  # False: the results have the row already
    files: tuple[StagedFile, ...] = ()
    obsolete: tuple[str, ...] = ()  # files of earlier results to remove
    rename: Rename | None = None
    moves: tuple[tuple[str, str], ...] = ()  # the files of the rename: old and new name

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""
        return len(self.row) + sum(len(file.content) for file in self.files)


class Pace(NamedTuple):
    """How results gather until they are committed together."""

    max_queued: int  # results, until another one has to wait
    max_results: int  # with so many, a commit does not wait
    max_bytes: int  # likewise
    min_pause_s: float = 0.0  # between two commits
    max_pause_s: float = 0.0
    pause_share: float = 0.0  # pause as a share of the time since the start
