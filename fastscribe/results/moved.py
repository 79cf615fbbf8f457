"""Recordings whose folder was renamed, or is mounted elsewhere: their results are taken over, and nothing is decoded again."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import NamedTuple

from fastscribe._system.urls import is_url
from fastscribe.errors import UsageError
from fastscribe.results.journal import NO_STATE, Journal, read_entries
from fastscribe.types import Source

_FEW = 256  # inputs that are looked at
_MANY = 100_000  # lines of the journal in which they are sought
_UNKNOWN = "OLD"
_NOTHING = "none"  # as --moved has it


class Moved(NamedTuple):
    """Where recordings were, and where they are: absolute paths, or URLs. Both are "" if nothing has moved."""

    old: str
    new: str

    @classmethod
    def of(cls, text: str) -> Moved:
        """Return the value of --moved. Raises UsageError."""
        if text == _NOTHING:
            return cls("", "")
        old, equals, new = text.partition("=")
        if not (equals and old and new):
            raise UsageError(
                f"--moved {text}: not OLD=NEW, the folder's path when its results were made and now, or {_NOTHING}"
            )
        return cls(*(one.rstrip("/") if is_url(one) else os.path.abspath(one) for one in (old, new)))

    def __str__(self) -> str:
        if self.old != _UNKNOWN:
            return f"--moved {shlex.quote('='.join(self))}"
        return f"--moved {shlex.quote('='.join(self))} (with the folder in which they were as {_UNKNOWN})"

    def before(self, identity: str) -> str | None:
        """Return where a recording was; None if it is not below the new place."""
        rest = identity.removeprefix(self.new)
        return self.old + rest if rest != identity and rest[:1] in ("/", os.sep) else None


def moved_line(
    where: str,
    given: Moved | None,
    journal: Journal,
    key_of: Callable[[Source, str | None], int],
    read_row: Callable[[int, int], bytes],
    inputs: Iterable[object],
) -> str:
    """Return why a run should stop: results seem to be of its inputs when they were elsewhere, or --moved finds none of them.

    Return "" if most of the first inputs have results, or if nothing is known of the others under any other path. A --moved
    finds a result that an earlier run has taken over, too.

    Args:
        where: The output folder or URL.
        given: The value of --moved.
        journal: Results of earlier runs.
        key_of: Returns an input's key, and the key that it had at another path.
        read_row: Reads a row, by its offsets.
        inputs: Sources and Failures of this run, in order; a few are taken, but with --moved all until it finds a result.
    """
    files = (one for one in inputs if isinstance(one, Source) and isinstance(one.file, str))
    sources = list(islice(files, _FEW))
    new = [one for one in sources if not journal.has_result(key_of(one, None))]
    if given == Moved.of(_NOTHING) or journal.path is None or 2 * len(new) <= len(sources):
        return ""

    def is_known(source: Source, moved: Moved) -> bool:
        old = moved.before(os.path.abspath(str(source.file)))
        return old is not None and (journal.has_result(key_of(source, None)) or journal.has_result(key_of(source, old)))

    if given is not None and any(is_known(one, given) for one in chain(sources, files)):
        return ""
    found = _find_moved(journal, read_row, new, is_known, given is not None)
    if given is not None:
        near = f"did you mean {found}?" if found else f"--moved {_NOTHING} decodes them"
        return f"{given}: takes over no result in {where}, so nothing is decoded: {near}"
    if found is None:
        return ""
    place = "that were elsewhere" if found.old == _UNKNOWN else f"in {found.old}, which is gone"
    return (
        f"{where}: holds results of recordings {place}, with the names and sizes of these inputs, so nothing is decoded: "
        f"{found} takes the results over, --moved {_NOTHING} decodes all again"
    )


def _find_moved(
    journal: Journal,
    read_row: Callable[[int, int], bytes],
    new: list[Source],
    is_known: Callable[[Source, Moved], bool],
    may_be_there: bool,
) -> Moved | None:
    """Return what --moved should say for most of the `new` inputs; None if too few results have their names and sizes.

    None too if those recordings are still there, unless they `may_be_there`. The old place is _UNKNOWN if rows name it by a
    path that counts from their list, or were taken over from a third place.
    """
    assert journal.path is not None
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
    is_relative = source.row is not None and not os.path.isabs(stated)  # to its list, which may have been anywhere
    old = os.path.join(os.sep, _UNKNOWN, stated) if is_relative else os.path.abspath(stated)
    moved = _folders(old, os.path.abspath(path))
    if moved is None or (os.path.exists(old) and not may_be_there):
        return None
    return moved if not is_relative and is_known(source, moved) else moved._replace(old=_UNKNOWN)


def _folders(old: str, new: str) -> Moved | None:
    """Return the parts of two paths that differ; None if nothing is alike at their ends."""
    olds, news = old.split(os.sep), new.split(os.sep)
    while len(olds) > 1 and len(news) > 1 and olds[-1] == news[-1]:
        olds, news = olds[:-1], news[:-1]
    found = Moved(os.sep.join(olds), os.sep.join(news))
    return found if found.old and found.new and found.old != old else None
