"""Compaction: rewrite rows and journal without replaced results, and with `--ordered` in the order of the inputs.

Both files are written under temporary names. A marker file then says that both are complete, and both are renamed. So a kill
leaves the old files, or all that the next run needs to finish.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from fastscribe._system.file_kinds import status_of
from fastscribe._system.safe_files import (
    open_temp,
    remove,
    rename_into_place,
    sync,
    sync_folder,
    temp_path_for,
    write_atomic,
)
from fastscribe.errors import OutputError, UsageError
from fastscribe.results.journal import NO_FILE, NO_STATE, SYNCED, Journal, header_line, is_row, read_journal, run_line
from fastscribe.results.paths import SWAP, Paths
from fastscribe.types import Int64Array

NO_ORDER: Int64Array = np.zeros(0, np.int64)
CHANGED = "was changed since the last run; use another folder, or --overwrite"


def compact(paths: Paths, ordered: bool, order: Int64Array = NO_ORDER) -> None:
    """Drop replaced rows, and sort the rows. Write nothing if there is nothing to change.

    Args:
        paths: The folder's files; all files of results are durable.
        ordered: Sort by input; else the rows stay in their order.
        order: Index of the input of each of the journal's first entries in this run; their lines may have an older one.

    Raises:
        OutputError: A file cannot be written. The old files stay.
        UsageError: Another program changed the rows.
    """
    journal = read_journal(paths.journal)
    entries = journal.entries
    written_order = entries["order"].copy()
    entries["order"][: len(order)] = order
    kept = journal.entry_indices
    has_files = (entries["sizes"][kept] != NO_FILE).any(axis=1)  # which are a run's own, even if the row is lost
    kept = kept[(entries["state"][kept] != NO_STATE) | has_files]
    kept = kept[np.argsort(entries["order" if ordered else "begin"][kept], kind="stable")]
    is_right = len(kept) == len(entries) and bool((np.diff(kept) > 0).all())
    if is_right and not (ordered and (entries["order"] != written_order).any()):
        return
    try:
        _write_temps(paths, journal, kept)
        sync_folder(paths.directory)
        write_atomic(paths.swap, SWAP)
    except OSError as error:
        for path in (paths.swap, temp_path_for(paths.rows), temp_path_for(paths.journal)):
            remove(path)
        raise OutputError(str(paths.rows), error) from error
    try:
        finish_compaction(paths)
    except OSError as error:
        raise OutputError(str(paths.rows), error) from error


def _write_temps(paths: Paths, journal: Journal, kept: Int64Array) -> None:
    with (
        paths.rows.open("rb") if paths.rows.exists() else nullcontext() as rows,
        open_temp(paths.journal) as new_journal,
        open_temp(paths.rows) as new_rows,
    ):
        new_journal.write(header_line(journal.header or {}) + run_line(journal.facts))
        for entry_index in kept.tolist():
            entry = journal.entry(entry_index)
            begin = new_rows.tell()
            if rows is not None and entry.end > entry.begin:
                rows.seek(entry.begin)
                row = rows.read(entry.end - entry.begin)
                if not is_row(row):
                    raise UsageError(f"{paths.rows}: {CHANGED}")
                new_rows.write(row)
            order = int(journal.entries["order"][entry_index])
            new_journal.write(entry._replace(begin=begin, end=new_rows.tell(), order=order, former={}).line())
        new_journal.write(SYNCED)
        sync(new_rows)
        sync(new_journal)
    if rows is None:
        remove(temp_path_for(paths.rows))


def finish_compaction(paths: Paths) -> None:
    """Complete a compaction that a kill interrupted; if its new files are not complete, remove them."""
    complete = status_of(paths.swap) is not None
    for path in (paths.rows, paths.journal):
        if status_of(temp_path_for(path)) is not None:
            if complete:
                rename_into_place(path)
            else:
                remove(temp_path_for(path))
    if complete:
        sync_folder(paths.directory)  # or a power cut could keep the marker's removal and lose a rename
        remove(paths.swap)
        sync_folder(paths.directory)
