"""Repair of rows and journal: truncate both to the last line that is whole and has its row.

After a kill or a power cut there is nothing to truncate, because commit.py's `redo` has completed or undone the last commit.
The repair is for files that someone edited, and for disks that lose synced data. Rows that the journal does not list, and that
no kill can have left, are moved to a file beside.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from fastscribe._system.safe_files import open_new, sync, unused_name, write_atomic
from fastscribe.errors import UsageError
from fastscribe.results.compact import CHANGED
from fastscribe.results.entries import NO_STATE, is_row, load_entries, read_lines, rename_line
from fastscribe.results.names import Rename
from fastscribe.results.paths import Paths, first_line
from fastscribe.types import RecordArray

_COPY_BYTES = 1 << 20
_MAX_TORN = 1000  # rows at the end that a power cut may have zeroed


def check_unedited(paths: Paths) -> None:
    """Raise UsageError if `repair` would cut off rows of the user's, or results would lose theirs. Changes nothing."""
    entries, num_kept = load_intact_entries(paths)
    rows_end = int(entries["end"].max(initial=0))
    if num_kept < len(entries) or (_size(paths.rows) > rows_end and not _is_end_of_ours(paths.rows, rows_end)):
        raise rows_changed(paths.rows)


def rows_changed(path: Path) -> UsageError:
    """Return the error for rows from which no files can be made in their own folder."""
    return UsageError(
        f"{path}: was changed since its run: `fastscribe export {path} -o FOLDER` makes files of the rows as they are now; "
        "the same transcribe command keeps them beside and decodes again"
    )


def repair(paths: Paths, say: Callable[[str], object] = print) -> RecordArray:
    """Truncate journal and rows to the last input that both have whole. Return the entries that stay.

    Entries without their row stay too, as owners of files that the run may replace; their state matches no input.

    Args:
        paths: The folder's files.
        say: Shows one line to the user if rows that someone edited are moved to a file beside.

    Raises:
        UsageError: Another program changed the rows.
        OSError: A file cannot be written.
    """
    entries, num_kept = load_intact_entries(paths)
    rows_size = _size(paths.rows)
    rows_end = int(entries["end"][:num_kept].max(initial=0))
    if rows_size > rows_end:
        _truncate(paths.rows, rows_end, num_kept == len(entries), say)
    if num_kept < len(entries):
        write_atomic(paths.journal, b"".join(_without_rows(paths.journal, num_kept)))
        return load_entries(paths.journal)
    journal_end = int(entries["line_end"][-1]) if num_kept else len(first_line(paths.journal))
    if paths.journal.stat().st_size > journal_end:
        os.truncate(paths.journal, journal_end)
    return entries


def _without_rows(journal: Path, num_kept: int) -> Iterator[bytes]:
    """Yield the journal's lines; remove row and state from all but the first `num_kept` entries."""
    yield first_line(journal)
    for line, _ in read_lines(journal):
        if isinstance(line, Rename):
            yield rename_line(line)
            continue
        num_kept -= 1
        yield (line if num_kept >= 0 else line._replace(begin=0, end=0, state=NO_STATE)).line()


def load_intact_entries(paths: Paths) -> tuple[RecordArray, int]:
    """Return all entries, and the number of leading entries whose rows are intact."""
    entries, rows_size = load_entries(paths.journal), _size(paths.rows)
    starts = np.concatenate(([0], np.maximum.accumulate(entries["end"])))[:-1]
    is_earlier = entries["end"] <= starts  # no row, or one that an earlier entry wrote
    fits = (entries["end"] <= rows_size) & (is_earlier | (entries["begin"] == starts))
    num_kept = len(entries) if fits.all() else int(np.argmin(fits))
    writers = np.flatnonzero(~is_earlier[:num_kept])
    num_intact = _num_intact_rows(paths.rows, entries[writers], len(writers))
    return entries, num_kept if num_intact == len(writers) else int(writers[num_intact])


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _num_intact_rows(path: Path, entries: RecordArray, num_kept: int) -> int:
    """Return the number of leading entries that have their row; after a power cut, the last ones may have none."""
    if num_kept == 0 or entries["end"][num_kept - 1] == 0:
        return num_kept
    with path.open("rb") as file:
        for kept in range(num_kept, max(0, num_kept - _MAX_TORN), -1):
            begin, end = int(entries["begin"][kept - 1]), int(entries["end"][kept - 1])
            file.seek(begin)
            if is_row(file.read(end - begin)):
                return kept
    if num_kept <= _MAX_TORN:
        return 0
    raise UsageError(f"{path}: {CHANGED}")


def _truncate(path: Path, end: int, is_unlisted: bool, say: Callable[[str], object]) -> None:
    """Truncate rows that the journal does not list; keep them in a file beside unless a kill can have left them."""
    if not (is_unlisted and _is_end_of_ours(path, end)):
        beside = unused_name(path, "cut-off")
        with path.open("rb") as file, open_new(beside) as kept:
            file.seek(end)
            shutil.copyfileobj(file, kept, _COPY_BYTES)
            sync(kept)
        say(
            f"{path}: was changed since its run: rows that do not fit the journal are in {beside}; their inputs are done again"
        )
    os.truncate(path, end)


def _is_end_of_ours(path: Path, end: int) -> bool:
    """Return True if a kill can have left what follows offset `end`."""
    with path.open("rb") as file:
        file.seek(end)
        return _is_interrupted_write(file.readline(), file)


def _is_interrupted_write(line: bytes, rest: IO[bytes]) -> bool:
    """Return True for half a row, for zeros, and for a single row of ours."""
    if line.endswith(b"\n"):
        try:
            row = json.loads(line)
            is_ours = "audio_filepath" in row and ("segments" in row or "error" in row)
        except (ValueError, TypeError):
            return False
        return is_ours and not rest.read(1)
    return line.startswith(b"{") or not line.strip(b"\0")
