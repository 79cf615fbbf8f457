"""Rows and journal written anew: without what was replaced, and with `--ordered` in the order of the inputs.

Both go to temporary names first and, once a marker says that both are complete, to their own, so that a kill in the middle
leaves the old ones or what it takes to finish.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import IO, Any

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.resume.entries import Paths, entries_of, first_line, is_row, live_places, parse_entry
from fastscribe.unfinished import part_of

CHANGED = "was changed since the last run; use another folder, or --overwrite"


def tidy(paths: Paths, ordered: bool, order: np.ndarray, is_dropped: np.ndarray) -> None:
    """Drops rows that were replaced and, if `ordered`, sorts them by their inputs' order; nothing is written where all is well.

    The journal must be closed. `order` is that of its first lines' inputs, which may no longer be what the lines say;
    `is_dropped` says of the same lines which are to go, too.
    """
    entries = entries_of(paths.journal)
    written_order = entries["order"].copy()
    entries["order"][: len(order)] = order
    places = live_places(entries)
    places = places[~np.pad(is_dropped, (0, len(entries) - len(is_dropped)))[places]]
    if ordered:
        places = places[np.argsort(entries["order"][places], kind="stable")]
    is_right = len(places) == len(entries) and bool((np.diff(places) > 0).all())
    if is_right and not (ordered and (entries["order"] != written_order).any()):
        return
    _write_parts(paths, entries, places)
    paths.swap.touch()
    finish_tidying(paths)


def _write_parts(paths: Paths, entries: np.ndarray, places: np.ndarray) -> None:
    starts = [len(first_line(paths.journal)), *entries["line_end"].tolist()]
    with (
        paths.rows.open("rb") if paths.rows.exists() else nullcontext() as rows,
        paths.journal.open("rb") as journal,
        part_of(paths.journal).open("wb") as new_journal,
        part_of(paths.rows).open("wb") as new_rows,
    ):
        new_journal.write(journal.readline())
        for place in places.tolist():
            journal.seek(starts[place])
            entry = parse_entry(journal.readline())
            assert entry is not None
            begin = new_rows.tell()
            if rows is not None and entry.end > entry.begin:
                rows.seek(entry.begin)
                row = rows.read(entry.end - entry.begin)
                if not is_row(row):
                    raise UsageError(f"{paths.rows}: {CHANGED}")
                new_rows.write(row)
            moved = entry._replace(begin=begin, end=new_rows.tell(), order=int(entries["order"][place]))
            new_journal.write(moved.line())
        sync(new_rows)
        sync(new_journal)
    if rows is None:
        part_of(paths.rows).unlink()


def finish_tidying(paths: Paths) -> None:
    """After a kill in the middle of it: completes it where both new files are there, forgets it where they are not."""
    complete = paths.swap.exists()
    for path in (paths.rows, paths.journal):
        part = part_of(path)
        if part.exists():
            if complete:
                os.replace(part, path)
            else:
                part.unlink()
    paths.swap.unlink(missing_ok=True)


def sync(file: IO[Any]) -> None:
    """Onto the disk, so that not even a power failure leaves a name without what it stands for."""
    file.flush()
    os.fsync(file.fileno())
