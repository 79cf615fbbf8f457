"""Compaction: rewrite rows and journal without replaced results, and with `--ordered` in the order of the inputs.

Both files are written under temporary names. A marker file then says that both are complete, and both are renamed. So a kill
leaves the old files, or all that the next run needs to finish.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import BinaryIO

import numpy as np

from fastscribe._system.file_kinds import safe_open, status_of
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
from fastscribe.results.journal import (
    NO_FILE,
    NO_STATE,
    SYNCED,
    Journal,
    header_line,
    is_row,
    parse_entry,
    read_journal,
    run_line,
)
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
    is_behind = (kept >= journal.num_synced) & (entries["name"][kept] != 0)  # a file could not be removed, for one
    kept = kept[(entries["state"][kept] != NO_STATE) | has_files | is_behind]
    kept = kept[np.argsort(entries["order" if ordered else "begin"][kept], kind="stable")]
    is_right = len(kept) == len(entries) and bool((np.diff(kept) > 0).all())
    if is_right and not (ordered and (entries["order"] != written_order).any()):
        return
    sizes = entries["end"][kept] - entries["begin"][kept]
    ends = np.cumsum(sizes)
    try:
        if bool((entries["end"][kept][sizes > 0] == ends[sizes > 0]).all()) and paths.rows_bytes == sizes.sum():
            write_atomic(paths.journal, lambda file: _write_journal(file, journal, kept, ends))  # the rows are right
            return
        _write_temps(paths, journal, kept, ends)
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


def _write_temps(paths: Paths, journal: Journal, kept: Int64Array, ends: Int64Array) -> None:
    with (
        paths.rows.open("rb") if paths.rows.exists() else nullcontext() as rows,
        open_temp(paths.journal) as new_journal,
        open_temp(paths.rows) as new_rows,
    ):
        for begin, end in journal.entries[["begin", "end"]][kept].tolist():
            if rows is not None and end > begin:
                rows.seek(begin)
                row = rows.read(end - begin)
                if not is_row(row):
                    raise UsageError(f"{paths.rows}: {CHANGED}")
                new_rows.write(row)
        _write_journal(new_journal, journal, kept, ends)
        sync(new_rows)
        sync(new_journal)
    if rows is None:
        remove(temp_path_for(paths.rows))


def _write_journal(file: BinaryIO, journal: Journal, kept: Int64Array, ends: Int64Array) -> None:
    """Write the lines of the entries that are kept, whose rows end at these offsets."""
    file.write(header_line(journal.header or {}) + run_line(journal.facts))
    behind: list[bytes] = []  # lines of those whose files the next run has to look into
    assert journal.path is not None
    with safe_open(journal.path) as lines:
        for entry_index, end in zip(kept.tolist(), ends.tolist(), strict=True):
            lines.seek(int(journal.entries["line"][entry_index]))
            entry = parse_entry(lines.readline())
            assert entry is not None
            order = int(journal.entries["order"][entry_index])
            entry = entry._replace(begin=end - (entry.end - entry.begin), end=end, order=order)
            file.write(entry._replace(former={}).line())
            if entry_index >= journal.num_synced and entry.name:
                behind.append(entry.line())
    file.write(SYNCED + b"".join(behind))


def finish_compaction(paths: Paths) -> None:
    """Complete a compaction that a kill interrupted; if its new files are not complete, remove them."""
    complete = status_of(paths.swap) is not None
    if complete:  # a run may have ended by an error before its marker was durable, and a rename may be so before it
        sync_folder(paths.directory)
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
