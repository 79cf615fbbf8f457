"""Compaction: rewrite rows and journal without replaced results, and with `--ordered` in the order of the inputs.

Both files are written under temporary names. A marker file then says that both are complete, and both are renamed. So a kill
leaves the old files, or all that the next run needs to finish.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from fastscribe.results.entries import is_row, latest_entry_indices, load_entries_and_names, parse_entry
from fastscribe.results.paths import SWAP, Paths, first_line
from fastscribe.types import BoolArray, Int64Array, RecordArray

CHANGED = "was changed since the last run; use another folder, or --overwrite"


def compact(paths: Paths, ordered: bool, order: Int64Array, is_dropped: BoolArray, keeps_places: bool = False) -> None:
    """Drop replaced rows, and sort the rows. Write nothing if there is nothing to change.

    Args:
        paths: The folder's files; the journal is closed.
        ordered: Sort by input.
        order: Index of the input of each of the journal's first lines in this run; the lines may have an older one.
        is_dropped: Which of the same lines to drop.
        keeps_places: Without `ordered`: leave the rows in their order, also those whose lines are new. No two results may
            have files of the same name.

    Raises:
        OutputError: A file cannot be written. The old files stay.
        UsageError: Another program changed the rows.
    """
    entries, new_names = load_entries_and_names(paths.journal)
    written_order = entries["order"].copy()
    entries["order"][: len(order)] = order
    entry_indices = latest_entry_indices(entries)
    entry_indices = entry_indices[~np.pad(is_dropped, (0, len(entries) - len(is_dropped)))[entry_indices]]
    if ordered:
        entry_indices = entry_indices[np.argsort(entries["order"][entry_indices], kind="stable")]
    elif keeps_places:
        entry_indices = entry_indices[np.argsort(entries["begin"][entry_indices], kind="stable")]
    is_right = len(entry_indices) == len(entries) and bool((np.diff(entry_indices) > 0).all())
    if is_right and not (ordered and (entries["order"] != written_order).any()):
        return
    try:
        _write_temps(paths, entries, entry_indices, new_names)
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


def _write_temps(paths: Paths, entries: RecordArray, entry_indices: Int64Array, new_names: Mapping[int, str]) -> None:
    starts = [len(first_line(paths.journal)), *entries["line_end"].tolist()]
    with (
        paths.rows.open("rb") if paths.rows.exists() else nullcontext() as rows,
        paths.journal.open("rb") as journal,
        open_temp(paths.journal) as new_journal,
        open_temp(paths.rows) as new_rows,
    ):
        new_journal.write(journal.readline())
        for entry_index in entry_indices.tolist():
            journal.seek(starts[entry_index])
            entry = parse_entry(journal.readline())
            assert entry is not None
            begin = new_rows.tell()
            if rows is not None and entry.end > entry.begin:
                rows.seek(entry.begin)
                row = rows.read(entry.end - entry.begin)
                if not is_row(row):
                    raise UsageError(f"{paths.rows}: {CHANGED}")
                new_rows.write(row)
            order, name = int(entries["order"][entry_index]), new_names.get(entry_index, entry.name)
            new_journal.write(entry._replace(begin=begin, end=new_rows.tell(), order=order, name=name).line())
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
