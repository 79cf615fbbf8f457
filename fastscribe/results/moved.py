"""Recordings that were renamed, or whose folder is elsewhere: their results are taken over, and nothing is decoded again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastscribe._system.text_layout import count_of
from fastscribe.errors import UsageError
from fastscribe.results.interfaces import NOT_MOVED, UNKNOWN_PLACE, Moved, OutputRun
from fastscribe.results.journal import FIELDS, NO_STATE, Entry, Journal, name_key, read_entries
from fastscribe.results.journal_ledger import is_of_file, is_same_recording, key_of, moved_key, state_of
from fastscribe.results.names import base_name
from fastscribe.results.result_files import path_of, row_of
from fastscribe.results.storage import Storage
from fastscribe.types import Source

MOVES = "moved"  # what --moved has said so far, among the facts of a journal
FROM = "from"  # the folder in which its last run began, from which paths in rows count, unless they are of a list
_FEW = 256  # inputs that are looked at
_ROWS = 64  # results that are looked at, each a request to a store
_MANY = 100_000  # lines of the journal in which they are sought


def moved_line(storage: Storage, run: OutputRun, journal: Journal, inputs: Iterable[object]) -> str:
    """Return what a run says if results seem to be of its inputs when they were elsewhere; "" if there is nothing to say.

    There is nothing to say if all of the first inputs have results, or if nothing is known of the others under any other path.
    New recordings may be among them if most of the old folder's are found again. If most inputs have results, the run goes on
    after its line. A --moved finds a result that an earlier run has taken over, too, and the run ends if it finds none; not a
    shard of which most have results, as those that moved may be in others.

    Args:
        storage: Where the results are.
        run: What it writes.
        journal: Results of earlier runs.
        inputs: Sources and Failures of this run, in order; a few are taken, but with --moved all until it finds a result.

    Raises:
        UsageError: The run should decode nothing: the results seem to be of all its inputs, or --moved finds none of them.
        OSError: The results cannot be read.
    """
    given, where = run.moved, run.where
    if given is not None and os.path.isfile(given.new) and os.path.lexists(given.old):
        raise UsageError(
            f"{given}: the first is still there, and a file takes over the result of one that is gone alone"
        )
    may_find_none = given is None or run.shard.count > 1  # its results may be in other shards
    if may_find_none and not journal.is_live.any():
        return ""
    own = (one for one in inputs if isinstance(one, Source) and run.shard.holds(one.id))
    files = (one for one in own if isinstance(one.file, str))
    sources = list(islice(files, _FEW))
    new = [one for one in sources if not journal.has_result(key_of(one))]
    is_part = 2 * len(new) <= len(sources)  # a subfolder, perhaps
    if given == Moved.of(NOT_MOVED) or (not new if given is None else is_part and may_find_none):
        return ""

    def is_known(source: Source, moved: Moved) -> bool:
        is_new = moved.before(os.path.abspath(str(source.file))) is not None
        return is_new and (journal.has_result(key_of(source)) or moved_key(source, moved, journal) is not None)

    if given is not None and any(is_known(one, given) for one in chain(sources, files)):
        return ""
    alike = [] if journal.path is None else _find_moved(journal.path, run, new)
    # Without a list, the very same file itself would have the result.
    found = [
        one
        for one in alike
        if one.source.row is None or not is_of_file(one.entry.key, row_of(storage, one.entry), one.source)
    ]
    moved = _place_of(found, storage, is_known, journal.facts, given is not None) if found else None
    are_most = 2 * len(found) > len(new)  # the others may be new recordings
    if moved and not (is_part or are_most or _is_of_most(moved, storage, journal)):
        moved = None
    if given is not None:
        moved = moved or next(iter(_renamed(storage, run, journal, new)), None)
        near = f"did you mean {moved}?" if moved else f"--moved {NOT_MOVED} decodes them"
        of = " of the same size or length" if os.path.isfile(given.new) else ""
        raise UsageError(f"{given}: takes over no result{of} in {where}, so nothing is decoded: {near}")
    if moved is None and (renamed := _renamed(storage, run, journal, new)):
        more = f" (and {len(renamed) - 1} more)" if len(renamed) > 1 else ""
        takes = "takes its result over, with edited texts, now or in a later run"
        return f"{where}: a recording that has a result seems to have another name now{more}: {renamed[0]} {takes}"
    if moved is None:
        return ""
    gone = "" if os.path.exists(moved.old) else ", which is gone"
    place = "that were elsewhere" if moved.old == UNKNOWN_PLACE else f"in {moved.old}{gone}"
    if is_part:
        again = f"the names and sizes of {count_of(len(found), 'input')} without a result: {moved} takes them over"
        return f"{where}: holds results of recordings {place}, with {again}" if _are_same(found) else ""
    these = "these inputs" if are_most else "some of these inputs"
    text = f"{where}: holds results of recordings {place}, with the names and sizes of {these}"
    if not _are_same(found):
        return f"{text}; these are decoded as others: if they are the same, {moved} takes the results over"
    raise UsageError(
        f"{text}, so nothing is decoded: {moved} takes the results over, --moved {NOT_MOVED} decodes all again"
    )


def _renamed(storage: Storage, run: OutputRun, journal: Journal, new: list[Source]) -> list[Moved]:
    """Return what --moved should say for `new` inputs that are files with results, by another name, which is gone.

    Such a file has the time of change of one, and its size; or all of its name but for the format, and its length.
    """
    by_state = {state_of(one, run)[0] | FIELDS: one for one in new}
    by_name = {name_key(base_name(one.id)): one for one in new}
    entries = journal.entries
    has_state = np.isin(entries["state"] | np.uint64(FIELDS), np.array(list(by_state), np.uint64))
    has_name = np.isin(entries["name"], np.array(list(by_name), np.uint64))
    found: dict[str, Moved] = {}  # by the input's id
    for entry_index in np.flatnonzero(journal.is_live & ~entries["failed"] & (has_state | has_name))[:_ROWS].tolist():
        entry = journal.entry(entry_index)
        source = by_state.get(entry.state | FIELDS) or by_name[int(entries["name"][entry_index])]
        places = _places_since(_absolute(path_of(storage, entry), journal.facts), journal.facts)
        old = next((one for one in places if key_of(source, one) == entry.key), None)
        moved = None if old is None else Moved(old, os.path.abspath(str(source.file)))
        is_other = moved is not None and len({os.path.basename(one) for one in moved}) > 1  # else its folder has moved
        if moved and is_other and not os.path.lexists(moved.old) and is_same_recording(source, entry):
            found[source.id] = moved
    return list(found.values())


class _Found(NamedTuple):
    """A new input, and a result of its name and size."""

    source: Source
    state: int
    entry: Entry


def _find_moved(journal: Path, run: OutputRun, new: list[Source]) -> list[_Found]:
    """Return the `new` inputs of which results have the names and sizes, in the journal's order.

    Of several results of one name and size, the one with the most folders alike counts.
    """
    wanted: dict[tuple[str, int | None], tuple[Source, int]] = {}
    for source in new:
        state, num_bytes, _ = state_of(source, run)
        if num_bytes is not None:
            for end in _ends(source.id):
                wanted.setdefault((end, num_bytes), (source, state))
    found: dict[str, tuple[tuple[bool, int], _Found]] = {}  # by the source's id, with what is alike
    for entry in islice(read_entries(journal), _MANY):
        name = next((one for one in _ends(entry.id) if (one, entry.input_bytes) in wanted), "")
        if entry.state != NO_STATE and name:
            source, state = wanted[name, entry.input_bytes]
            alike = _has_same_time(state, entry), len(name)
            if source.id not in found or alike > found[source.id][0]:
                found[source.id] = alike, _Found(source, state, entry)
    return [one for _, one in found.values()]


def _ends(id: str) -> list[str]:
    """Return an id, and what is left of it without its first folders: it depends on how the recording was given.

    >>> _ends("in/x/a.flac")
    ['in/x/a.flac', 'x/a.flac', 'a.flac']
    """
    parts = id.split("/")
    return ["/".join(parts[at:]) for at in range(len(parts))]


def _has_same_time(state: int, entry: Entry) -> bool:
    """Return True if a result is of a file of this state; what its list says of it may be another."""
    return entry.state | FIELDS == state | FIELDS


def _are_same(found: list[_Found]) -> bool:
    """Return True if most have the time of change too, or if their sizes tell them apart.

    Recordings of a fixed length, as of one night and the next, have equal sizes, which say nothing.
    """
    num_same = sum(_has_same_time(one.state, one.entry) for one in found)
    num_files = len({one.source.file for one in found})  # rows may share one
    num_sizes = len({one.entry.input_bytes for one in found})
    return 2 * num_same > len(found) or 2 * num_sizes > num_files > 1


def _place_of(
    found: list[_Found],
    storage: Storage,
    is_known: Callable[[Source, Moved], bool],
    facts: Mapping[str, Any],
    may_be_there: bool,
) -> Moved | None:
    """Return what --moved should say for inputs of which results have the names and sizes.

    Return None if those recordings are still there, unless they `may_be_there`, or if their rows are no longer where the
    journal says. Rows name the first place of a recording; the journal's facts have what --moved said since then. The old
    place is UNKNOWN_PLACE if rows name it by a path that counts from their list, or from another folder than this run's.
    """
    source, _, entry = found[0]
    stated, path = path_of(storage, entry), str(source.file)
    if not stated:  # someone edited the rows, which a run mends first
        return None
    is_relative = source.row is not None and not os.path.isabs(stated)  # to its list, which may have been anywhere
    here = _folders(_absolute(stated, facts), os.path.abspath(path))
    is_relative &= here is None or not is_known(source, here)  # a folder's rows count from here
    first = os.path.join(os.sep, UNKNOWN_PLACE, stated) if is_relative else _absolute(stated, facts)
    places = _places_since(first, facts)
    moves = [(old, _folders(old, os.path.abspath(path))) for old in places]
    old, moved = next((one for one in moves if one[1] and is_known(source, one[1])), moves[0])
    if moved is None or (os.path.exists(old) and not may_be_there):
        return None
    return moved if is_known(source, moved) else moved._replace(old=UNKNOWN_PLACE)


def _absolute(stated: str, facts: Mapping[str, Any]) -> str:
    """Return the absolute path of a row's recording, when its run began."""
    return os.path.abspath(os.path.join(facts.get(FROM, ""), stated))


def _places_since(first: str, facts: Mapping[str, Any]) -> list[str]:
    """Return where a recording was at first, and where each --moved says that it was since then."""
    places = [first]
    for before, after in facts.get(MOVES, ()):  # one may be mistyped, so the others count from any place
        found_at = (Moved(after, before).before(place) for place in places)
        places = list(dict.fromkeys([*places, *filter(None, found_at)]))[:_FEW]
    return places


def _is_of_most(moved: Moved, storage: Storage, journal: Journal) -> bool:
    """Return True if most results of the old place are of recordings that are in the new one alone, and of their sizes.

    Some are looked at, from all parts of the journal.
    """
    live, are_moved = np.flatnonzero(journal.is_live), list[bool]()
    for entry in map(journal.entry, live[:: len(live) // _ROWS + 1].tolist()):
        stated = path_of(storage, entry)
        for old in () if not stated else _places_since(_absolute(stated, journal.facts), journal.facts):
            if new := Moved(moved.new, moved.old).before(old):
                is_there = os.path.isfile(new) and os.path.getsize(new) == entry.input_bytes
                are_moved.append(is_there and not os.path.exists(old))
    return 2 * sum(are_moved) > len(are_moved)


def _folders(old: str, new: str) -> Moved | None:
    """Return the parts of two paths that differ; None if nothing is alike at their ends."""
    olds, news = old.split(os.sep), new.split(os.sep)
    while len(olds) > 1 and len(news) > 1 and olds[-1] == news[-1]:
        olds, news = olds[:-1], news[:-1]
    found = Moved(os.sep.join(olds), os.sep.join(news))
    return found if found.old and found.new and found.old != old else None
