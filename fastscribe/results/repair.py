"""Repair of rows and journal: truncate both to the last line that is whole and has its row.

A commit appends rows before their lines, so a kill or a power cut leaves rows without a line, or half of either. Other rows
that the journal does not list are somebody's, and are moved to a file beside.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import NamedTuple
from zlib import crc32

import numpy as np

from fastscribe._system.safe_files import open_new, sync, sync_folder, unused_name, write_atomic
from fastscribe.errors import UsageError
from fastscribe.results.compact import CHANGED
from fastscribe.results.journal import NO_STATE, SYNCED, Entry, Journal, is_row, parse_entry, read_entries, read_journal
from fastscribe.results.paths import Paths
from fastscribe.types import BoolArray, RecordArray

_COPY_BYTES = 1 << 20
_MAX_TORN = 4096  # rows at the end that a power cut may have zeroed
_MAX_TORN_BYTES = 1 << 27  # of one commit
_Place = tuple[int, int]  # offsets of the begin and the end of a row


def repair(paths: Paths, journal: Journal, say: Callable[[str], object]) -> Journal:
    """Truncate journal and rows to the last input that both have whole.

    Entries without their row stay too, as owners of files that the run may replace; their state matches no input.

    Args:
        paths: The folder's files.
        journal: What the journal has.
        say: Shows one line to the user if rows that someone edited are moved to a file beside.

    Returns:
        The entries that stay.

    Raises:
        UsageError: Another program changed the rows.
        OSError: A file cannot be written.
    """
    num_kept = num_with_rows(paths, journal.entries)
    rows_end = int(journal.entries["end"][:num_kept].max(initial=0))
    if paths.rows_bytes > rows_end:
        _truncate(paths.rows, rows_end, num_kept == len(journal.entries), say)
    if num_kept < len(journal.entries):
        write_atomic(paths.journal, b"".join(_without_rows(paths.journal, num_kept)))
        return read_journal(paths.journal)
    if paths.journal.stat().st_size > journal.end:
        os.truncate(paths.journal, journal.end)
    return journal


class FoundRows(NamedTuple):
    """Where rows are that someone's edit has moved."""

    places: Mapping[_Place, _Place]  # of the rows that are as their run left them, by those in the journal
    gaps: Sequence[_Place]  # lines between and behind them that the journal does not know
    end: int  # of the last of these rows

    def is_lost(self, entries: RecordArray) -> BoolArray:
        """Return which entries have had a row that is gone."""
        had_row = entries["end"] > entries["begin"]
        return np.array([place not in self.places for place in entries[["begin", "end"]].tolist()], bool) & had_row


def found_again(paths: Paths, journal: Journal) -> FoundRows | None:
    """Find rows by their size and CRC-32 behind one that someone changed, or removed.

    Return None if the last row is where the journal says, if there are none behind such a row, as after a power cut, or if that
    cannot be told: rows of an earlier version have no CRC-32 in the journal.
    """
    entries = journal.entries
    last = int(np.argmax(entries["end"])) if len(entries) else 0
    if journal.path is None or not len(entries) or not paths.rows.exists() or _is_there(paths.rows, entries[last]):
        return None
    wanted: dict[tuple[int, int], list[_Place]] = {}  # by size and CRC-32
    known = set[_Place]()
    for entry in islice(read_entries(journal.path), len(entries)):
        place = entry.begin, entry.end
        if entry.end > entry.begin and place not in known and entry.state != NO_STATE:
            if entry.row_crc is None:
                return None
            known.add(place)
            wanted.setdefault((entry.end - entry.begin, entry.row_crc), []).append(place)
    places, gaps = dict[_Place, _Place](), list[_Place]()
    # Where the line begins, where a gap before it would, and where the journal has the row before.
    at, begin, behind = 0, 0, -1
    with paths.rows.open("rb") as file:
        for line in file:
            rows = (one for one in wanted.get((len(line), crc32(line)), ()) if one[0] > behind)
            if (old := next(rows, None)) is not None:
                if at > begin:
                    gaps.append((begin, at))
                begin, behind, places[old] = at + len(line), old[0], (at, at + len(line))
            at += len(line)
    if at > begin:
        gaps.append((begin, at))
    return FoundRows(places, gaps, begin) if any(old != new for old, new in places.items()) else None


def realign(paths: Paths, journal: Journal, say: Callable[[str], object]) -> Journal:
    """Rewrite the journal if someone's edit has moved rows, so that only inputs whose rows it changed are done again.

    Lines of the user's are copied to a file beside first. Those between rows stay until the run ends, as replaced rows do.

    Args:
        paths: The folder's files.
        journal: What the journal has.
        say: Shows one line to the user if there was such an edit.

    Returns:
        The journal as it is now.

    Raises:
        OSError: A file cannot be written.
    """
    found = found_again(paths, journal)
    if found is None:
        return journal
    gone = "the inputs of rows that are gone"
    if found.gaps:
        beside = unused_name(paths.rows, "cut-off")
        with paths.rows.open("rb") as file, open_new(beside) as copy:
            for begin, end in found.gaps:
                file.seek(begin)
                for at in range(begin, end, _COPY_BYTES):
                    copy.write(file.read(min(_COPY_BYTES, end - at)))
            sync(copy)
        sync_folder(paths.directory)  # or a power cut could keep the journal below and lose the copy
        gone = f"rows that do not fit the journal are in {beside}; their inputs"
    write_atomic(paths.journal, b"".join(_moved_lines(paths.journal, journal.end, found)))
    os.truncate(paths.rows, found.end)
    say(f"{paths.rows}: was changed since its run: {gone} are done again")
    return read_journal(paths.journal)


def _moved_lines(path: Path, end: int, found: FoundRows) -> Iterator[bytes]:
    """Yield the journal's lines up to offset `end` with the rows' places, and a line without an input for each gap."""
    gaps = {gap_end: gap_begin for gap_begin, gap_end in found.gaps}
    with path.open("rb") as file:
        for line in file:
            if (end := end - len(line)) < 0:
                return
            entry = parse_entry(line)
            if entry is None or entry.end == entry.begin:
                yield line
            elif (place := found.places.get((entry.begin, entry.end))) is None:
                yield entry._replace(begin=0, end=0, state=NO_STATE).line()
            else:
                if (gap_begin := gaps.pop(place[0], None)) is not None:
                    yield Entry("", NO_STATE, NO_STATE, gap_begin, place[0], 0, False).line()
                yield entry._replace(begin=place[0], end=place[1]).line()


def _is_there(path: Path, entry: np.void) -> bool:
    with path.open("rb") as file:
        file.seek(int(entry["begin"]))
        return entry["end"] == entry["begin"] or is_row(file.read(int(entry["end"] - entry["begin"])))


def check_unedited(paths: Paths, journal: Journal) -> None:
    """Raise UsageError if `repair` would cut off rows of the user's, or results would lose theirs. Changes nothing."""
    end = int(journal.entries["end"].max(initial=0))
    is_ours = paths.rows_bytes <= end or _is_torn_commit(paths.rows, end)
    if num_with_rows(paths, journal.entries) < len(journal.entries) or not is_ours:
        raise edited_rows(paths.rows)


def edited_rows(rows: Path) -> UsageError:
    """Return the error for rows that someone changed since their run."""
    return UsageError(
        f"{rows}: was changed since its run: `fastscribe export {quote(str(rows))} -o FOLDER` makes files of the rows as they "
        "are now; the same transcribe command keeps them beside and decodes again"
    )


def _without_rows(path: Path, num_kept: int) -> Iterator[bytes]:
    """Yield the journal's lines; remove row and state from all but the first `num_kept` entries."""
    with path.open("rb") as file:
        for line in file:
            entry = parse_entry(line)
            if entry is not None:
                num_kept -= 1
                line = line if num_kept >= 0 else entry._replace(begin=0, end=0, state=NO_STATE).line()
            elif num_kept < 0 and line != SYNCED:
                return
            yield line


def num_with_rows(paths: Paths, entries: RecordArray) -> int:
    """Return the number of leading entries whose rows are intact."""
    starts = np.concatenate(([0], np.maximum.accumulate(entries["end"])))[:-1]
    is_earlier = entries["end"] <= starts  # no row, or one that an earlier entry wrote
    fits = (entries["end"] <= paths.rows_bytes) & (is_earlier | (entries["begin"] == starts))
    num_kept = len(entries) if fits.all() else int(np.argmin(fits))
    writers = np.flatnonzero(~is_earlier[:num_kept])
    num_intact = _num_intact_rows(paths.rows, entries[writers])
    return num_kept if num_intact == len(writers) else int(writers[num_intact])


def _num_intact_rows(path: Path, entries: RecordArray) -> int:
    """Return the number of leading entries that have their row; after a power cut, the last ones may have none."""
    if not len(entries):
        return 0
    with path.open("rb") as file:
        for kept in range(len(entries), max(0, len(entries) - _MAX_TORN), -1):
            begin, end = int(entries["begin"][kept - 1]), int(entries["end"][kept - 1])
            file.seek(begin)
            if is_row(file.read(end - begin)):
                return kept
    if len(entries) <= _MAX_TORN:
        return 0
    raise UsageError(f"{path}: {CHANGED}")


def _truncate(path: Path, end: int, is_unlisted: bool, say: Callable[[str], object]) -> None:
    """Truncate rows that the journal does not list; keep them in a file beside unless one commit can have left them."""
    if not (is_unlisted and _is_torn_commit(path, end)):
        beside = unused_name(path, "cut-off")
        with path.open("rb") as file, open_new(beside) as kept:
            file.seek(end)
            shutil.copyfileobj(file, kept, _COPY_BYTES)
            sync(kept)
        say(
            f"{path}: was changed since its run: rows that do not fit the journal are in {beside}; their inputs are done again"
        )
    os.truncate(path, end)


def _is_torn_commit(path: Path, end: int) -> bool:
    """Return True if what follows offset `end` can be a commit that a kill or a power cut interrupted."""
    if path.stat().st_size - end > _MAX_TORN_BYTES:
        return False
    with path.open("rb") as file:
        file.seek(end)
        return all(map(_is_ours, file))


def _is_ours(line: bytes) -> bool:
    """Return True for a row of ours, half of one, and one that a power cut has filled with zeros."""
    if b"\0" in line:
        return True
    if not line.endswith(b"\n"):
        return line.startswith(b"{")
    try:
        row = json.loads(line)
        return "audio_filepath" in row and ("segments" in row or "error" in row)
    except (ValueError, TypeError):
        return False
