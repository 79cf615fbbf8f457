"""Cuts rows and journal back to the last line that is whole and has its row, so that an input is finished or done again.

After a kill or a power cut there is nothing to cut: commit.py's `redo` has finished or taken back what was under way. This is
for files that someone edited, and for disks that lose what they have synced. Rows that the journal does not know, and that no
kill can have left, are kept in a file beside.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from fastscribe._system.safe_files import open_new, sync, unused_name, write_atomic
from fastscribe.errors import UsageError
from fastscribe.output.names import Rename
from fastscribe.resume.compact import CHANGED
from fastscribe.resume.entries import NO_STATE, Paths, first_line, is_row, load_entries, read_lines, rename_line
from fastscribe.types import RecordArray

_COPY_BYTES = 1 << 20
_MAX_TORN = 1000  # rows at the end of a file that a power failure may have left empty


def repair(paths: Paths) -> RecordArray:
    """Cuts journal and rows back to the last input that both have whole; returns the entries that stay.

    Entries without their row stay as owners of their files, which the run may replace, and match no input's state.
    """
    entries, num_kept = load_intact_entries(paths)
    rows_size = _size(paths.rows)
    rows_end = int(entries["end"][:num_kept].max(initial=0))
    if rows_size > rows_end:
        _truncate(paths.rows, rows_end, is_unlisted=num_kept == len(entries))
    if num_kept < len(entries):
        write_atomic(paths.journal, b"".join(_without_rows(paths.journal, num_kept)))
        return load_entries(paths.journal)
    journal_end = int(entries["line_end"][-1]) if num_kept else len(first_line(paths.journal))
    if paths.journal.stat().st_size > journal_end:
        os.truncate(paths.journal, journal_end)
    return entries


def _without_rows(journal: Path, num_kept: int) -> Iterator[bytes]:
    """The journal's lines, those after the first entries without place and state."""
    yield first_line(journal)
    for line, _ in read_lines(journal):
        if isinstance(line, Rename):
            yield rename_line(line)
            continue
        num_kept -= 1
        yield (line if num_kept >= 0 else line._replace(begin=0, end=0, state=NO_STATE)).line()


def load_intact_entries(paths: Paths) -> tuple[RecordArray, int]:
    """All entries, and how many of the first have all that they stand for."""
    entries, rows_size = load_entries(paths.journal), _size(paths.rows)
    starts = np.concatenate(([0], np.maximum.accumulate(entries["end"])))[:-1]
    fits = (entries["end"] <= rows_size) & ((entries["end"] == 0) | (entries["begin"] == starts))
    return entries, _num_intact_rows(paths.rows, entries, len(entries) if fits.all() else int(np.argmin(fits)))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _num_intact_rows(path: Path, entries: RecordArray, num_kept: int) -> int:
    """How many of the first entries have their row; a few at the end may have none, as power failures leave files."""
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


def _truncate(path: Path, end: int, is_unlisted: bool) -> None:
    """Takes off what the journal knows nothing of. Unless a kill can have left it, it is kept beside, whoever it is from."""
    with path.open("rb") as file:
        file.seek(end)
        if not (is_unlisted and _is_interrupted_write(file.readline(), file)):
            file.seek(end)
            with open_new(unused_name(path, "cut-off")) as kept:
                shutil.copyfileobj(file, kept, _COPY_BYTES)
                sync(kept)
    os.truncate(path, end)


def _is_interrupted_write(line: bytes, rest: IO[bytes]) -> bool:
    """Half a row, zeros or one row of ours and nothing more."""
    if line.endswith(b"\n"):
        try:
            row = json.loads(line)
            is_ours = "audio_filepath" in row and ("segments" in row or "error" in row)
        except (ValueError, TypeError):
            return False
        return is_ours and not rest.read(1)
    return line.startswith(b"{") or not line.strip(b"\0")
