"""The files that a run makes in its folder beside the results' own."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fastscribe._system.file_kinds import (
    InTheWay,
    check_regular,
    is_regular,
    safe_open,
    safe_read,
    starts_with,
    status_of,
)
from fastscribe._system.safe_files import temp_path_for
from fastscribe._system.urls import is_url
from fastscribe.errors import UsageError
from fastscribe.results.journal import HEADER_START, read_header
from fastscribe.results.shards import UNSHARDED, Shard

SWAP = b"fastscribe: both temporary files are complete\n"
_MAX_REPORT_BYTES = 1 << 24
_JOURNAL_NAME = re.compile(r"journal(\.shard-\d+-of-\d+)?\.jsonl", re.ASCII)


@dataclass(frozen=True)
class Paths:
    """The files of one shard of an output folder."""

    directory: Path
    suffix: str  # shards.Shard.suffix

    @property
    def is_ours(self) -> bool:
        """True if the journal is a journal, or empty: an empty file has nothing to lose."""
        if not is_regular(self.journal):
            return False
        line = first_line(self.journal)
        return line.startswith(HEADER_START) or HEADER_START.startswith(line.rstrip(b"\0"))

    @property
    def has_begun(self) -> bool:
        """True if the journal's first line is whole; without it, the journal has no entries."""
        return self.is_ours and first_line(self.journal).endswith(b"\n")

    @property
    def shard(self) -> Shard:
        """The shard of these files, by their suffix."""
        index, _, count = self.suffix.removeprefix(".shard-").partition("-of-")
        return Shard(int(index), int(count)) if count else UNSHARDED

    @property
    def rows(self) -> Path:
        return self.directory / f"transcripts{self.suffix}.jsonl"

    @property
    def rows_bytes(self) -> int:
        return self.rows.stat().st_size if self.rows.exists() else 0

    @property
    def journal(self) -> Path:
        return self.directory / f"journal{self.suffix}.jsonl"

    @property
    def report(self) -> Path:
        return self.directory / f"report{self.suffix}.json"

    @property
    def lock(self) -> Path:
        return self.directory / f".lock{self.suffix}"

    @property
    def swap(self) -> Path:
        """The marker that both temporary files are complete."""
        return self.directory / f".swap{self.suffix}"

    def check(self, besides: Collection[Path] = ()) -> None:
        """Raise UsageError if one of these names has a file that no run wrote, except `besides`. Changes nothing."""
        own = (self.journal, self.rows, self.report, self.swap)
        try:
            check_regular(*own)
            for path in own:
                status = status_of(path) if path not in besides else None
                if status is not None and status.st_size and not self._is_own(path):
                    raise InTheWay(path)
        except InTheWay as error:
            raise in_the_way(str(error.filename)) from None

    def check_new(self, overwrite: bool) -> None:
        """Check a folder without a journal, before a model is loaded; with one, the run checks it once it knows its settings.

        Args:
            overwrite: The run removes what a merge made.

        Raises:
            UsageError: A file that no run wrote has the name of rows, journal or report.
            OSError: The folder cannot be read.
        """
        if not self.has_begun:
            self.check(besides=merged_files(self.directory) if overwrite and not self.suffix else ())

    def _is_own(self, path: Path) -> bool:
        if path == self.journal or not self.has_begun:
            return path == self.journal and self.is_ours
        if path == self.rows:
            return True
        return starts_with(path, re.compile(rb'\{\s*"(files|shards)":' if path == self.report else re.escape(SWAP)))


def journals_in(directory: Path) -> list[Paths]:
    """Return the paths of the runs whose journals are in a folder: one, or one for each shard."""
    names = (_JOURNAL_NAME.fullmatch(path.name) for path in sorted(directory.glob("journal*.jsonl")))
    found = (Paths(directory, match[1] or "") for match in names if match is not None)
    return [paths for paths in found if paths.has_begun]


def merged_files(folder: Path) -> list[Path]:
    """Return the report, the rows and the journal of an earlier merge. Its report records the size of its rows.

    A merge that stopped between two renames has left the new rows under their temporary name, and no journal.
    """
    own = Paths(folder, UNSHARDED.suffix)
    if not is_regular(own.report):
        return []
    try:
        stored = json.loads(safe_read(own.report, _MAX_REPORT_BYTES))
        num_bytes, has_journal = stored["rows_bytes"], "journal_bytes" in stored
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []
    if "shards" not in stored:  # somebody else's
        return []
    if not any(_has_size(path, num_bytes) for path in (own.rows, temp_path_for(own.rows))):
        return [own.report]
    # An export, which changes no rows, has added to the journal; a run that did has written a report of its own.
    return [own.report, own.rows, *([own.journal] if has_journal and own.is_ours else [])]


def _has_size(path: Path, num_bytes: object) -> bool:
    return is_regular(path) and path.stat().st_size == num_bytes


def earlier_dtype(folder: Path, shard: Shard) -> str | None:
    """Return the dtype of the shard's earlier results, or of another shard's of as many; None if there are none."""
    own = Paths(folder, shard.suffix)
    others = [paths for paths in journals_in(folder) if paths.shard.count == shard.count > 1]
    for paths in (own, *others):
        with suppress(UsageError, OSError):  # the run itself says what is wrong with its journal
            if paths.has_begun and (found := read_header(paths.journal).get("--dtype")):
                return str(found)
    return None


def in_the_way(path: str) -> UsageError:
    """Return the error for a file that no run wrote, where this run would write; it may be what `merge` made."""
    if not is_url(path) and Path(path) in merged_files(Path(path).parent):
        return UsageError(
            f"{Path(path).parent}: holds what fastscribe merge made of shards: merge them with -o FOLDER, and name this other "
            "output folder, where the run goes on; or --overwrite to start over"
        )
    return UsageError(
        f"{path}: no journal says that fastscribe wrote this file: move it away, or name another output folder"
    )


def first_line(path: Path) -> bytes:
    with safe_open(path) as file:
        return file.readline()
