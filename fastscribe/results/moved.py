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
from fastscribe.types import Failure, Source

_FEW = 256  # inputs that are looked at
_MANY = 100_000  # lines of the journal in which they are sought


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

    None: most of the first inputs have results, or no others have their names and sizes, or those are still there.

    Args:
        journal: Results of earlier runs.
        key_of: Returns an input's key.
        read_row: Reads a row, by its offsets.
        inputs: Sources and Failures, in order; a few are taken.
    """
    first = [one for one in islice(inputs, _FEW) if not isinstance(one, Failure)]
    sources = [one for one in first if isinstance(one, Source) and isinstance(one.file, str)]
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
    old = os.path.abspath(str(json.loads(read_row(entry.begin, entry.end)).get("audio_filepath")))
    moved = _folders(old, os.path.abspath(str(source.file)))
    return None if moved is None or os.path.exists(old) else (moved, len(found))


def _folders(old: str, new: str) -> Moved | None:
    """Return the parts of two paths that differ; None if nothing is alike at their ends."""
    olds, news = old.split(os.sep), new.split(os.sep)
    while len(olds) > 1 and len(news) > 1 and olds[-1] == news[-1]:
        olds, news = olds[:-1], news[:-1]
    found = Moved(os.sep.join(olds), os.sep.join(news))
    return found if found.old and found.new and found.old != old else None
