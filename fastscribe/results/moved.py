"""Recordings whose folder was renamed, or is mounted elsewhere: their results are taken over, and nothing is decoded again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from fastscribe._system.urls import is_url
from fastscribe.errors import UsageError
from fastscribe.results.journal import NO_STATE, Journal, read_entries
from fastscribe.types import Source

_FEW = 256  # inputs that are looked at
_MANY = 100_000  # lines of the journal in which they are sought
UNKNOWN = "OLD"


class Moved(NamedTuple):
    """Where recordings were, and where they are: absolute paths, or URLs."""

    old: str
    new: str

    @classmethod
    def of(cls, text: str) -> Moved:
        """Return the value of --moved. Raises UsageError."""
        old, equals, new = text.partition("=")
        if not (equals and old and new):
            raise UsageError(f"--moved {text}: not OLD=NEW, the folder's path when its results were made and now")
        return cls(*(one.rstrip("/") if is_url(one) else os.path.abspath(one) for one in (old, new)))

    def before(self, identity: str) -> str | None:
        """Return where a recording was; None if it is not below the new place."""
        rest = identity.removeprefix(self.new)
        return self.old + rest if rest != identity and rest[:1] in ("/", os.sep) else None


def find_moved(
    journal: Journal, key_of: Callable[[Source], int], read_row: Callable[[int, int], bytes], inputs: Iterable[object]
) -> tuple[Moved, int] | None:
    """Return what --moved should say, and the number of results that it takes over as far as this is looked into.

    None: most of the first inputs have results, or no others have their names and sizes, or those are still there. The old
    place is UNKNOWN where rows name it by a path that counts from their list.

    Args:
        journal: Results of earlier runs.
        key_of: Returns an input's key.
        read_row: Reads a row, by its offsets.
        inputs: Sources and Failures, in order; a few are taken.
    """
    sources = _first_files(inputs)
    new = [one for one in sources if not journal.has_result(key_of(one))]
    if journal.path is None or not new or 2 * len(new) <= len(sources):
        return None
    wanted: dict[tuple[str, int | None], Source] = {
        (one.id, os.path.getsize(str(one.file))): one for one in new if os.path.isfile(str(one.file))
    }
    entries = (entry for entry in islice(read_entries(journal.path), _MANY) if entry.state != NO_STATE)
    found = [
        (entry, wanted[entry.id, entry.input_bytes]) for entry in entries if (entry.id, entry.input_bytes) in wanted
    ]
    if 2 * len(found) <= len(new):
        return None
    entry, source = found[0]
    stated, path = str(json.loads(read_row(entry.begin, entry.end)).get("audio_filepath")), str(source.file)
    if source.row is not None and not os.path.isabs(stated):  # relative to its list, which may have been anywhere
        moved = _folders(os.path.join(os.sep, UNKNOWN, stated), os.path.abspath(path))
        return None if moved is None else (Moved(UNKNOWN, moved.new), len(found))
    old = os.path.abspath(stated)
    moved = _folders(old, os.path.abspath(path))
    return None if moved is None or os.path.exists(old) else (moved, len(found))


def takes_nothing(
    moved: Moved, journal: Journal, key_of: Callable[[Source, str | None], int], inputs: Iterable[object]
) -> bool:
    """Return True if some of the first inputs have no results, and `moved` finds none for any of them."""
    new = [one for one in _first_files(inputs) if not journal.has_result(key_of(one, None))]
    before = ((one, moved.before(os.path.abspath(str(one.file)))) for one in new)
    return bool(new) and not any(old is not None and journal.has_result(key_of(one, old)) for one, old in before)


def _first_files(inputs: Iterable[object]) -> list[Source]:
    """Return those of the first inputs that are files here."""
    return [one for one in islice(inputs, _FEW) if isinstance(one, Source) and isinstance(one.file, str)]


def _folders(old: str, new: str) -> Moved | None:
    """Return the parts of two paths that differ; None if nothing is alike at their ends."""
    olds, news = old.split(os.sep), new.split(os.sep)
    while len(olds) > 1 and len(news) > 1 and olds[-1] == news[-1]:
        olds, news = olds[:-1], news[:-1]
    found = Moved(os.sep.join(olds), os.sep.join(news))
    return found if found.old and found.new and found.old != old else None
