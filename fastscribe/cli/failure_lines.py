"""Lines about inputs that failed: one for each, up to a number, some with a hint at what may be meant."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from itertools import islice

from fastscribe.audio.failures import NOT_THERE, is_utf8
from fastscribe.types import Failure

_MAX_LINES = 1000
_FEW_LINES = 10
_MAX_HINTS = 10  # failures whose paths are looked at
_MAX_NAMES = 1000  # of a folder, among which a wrong one is sought


class FailureLines:
    """Calls `say` with what inputs failed of. Behind _MAX_LINES of them one line says that the others have none.

    Args:
        say: Shows a line.
        where_others_are: Says this of the others, behind _FEW_LINES.
    """

    def __init__(self, say: Callable[[str], object], where_others_are: str = "") -> None:
        self._say, self._num_failed, self._has_named_folder = say, 0, False
        self._max_lines = _FEW_LINES if where_others_are else _MAX_LINES
        self._where_others_are = where_others_are or "further ones are counted, and are in the rows only"

    def add(self, failure: Failure) -> None:
        """Say what an input failed of."""
        self._num_failed += 1
        if self._num_failed <= self._max_lines:
            self._say(f"{_line(failure)}{self._hint(failure)}")
        elif self._num_failed == self._max_lines + 1:
            self._say(f"{self._max_lines:,} failures have lines here; {self._where_others_are}")

    def _hint(self, failure: Failure) -> str:
        if self._num_failed > _MAX_HINTS:
            return ""
        if not failure.listed and failure.row is None:
            return _near(failure)
        is_in_list = not (self._has_named_folder or os.path.isabs(failure.path))
        if not (is_in_list and failure.message.startswith(NOT_THERE) and os.path.exists(failure.path)):
            return ""
        self._has_named_folder = True
        return "; it is there from the current folder, but paths of this list count from the list's own folder"


def _line(failure: Failure) -> str:
    problem, listed = failure.message, failure.listed
    if failure.stage == "input":  # whose message has the line, but not the row's id
        place, has_id, _ = listed.rpartition(", id ")
        problem = problem.replace(place, listed, 1) if has_id else problem
        listed = ""
    problem = problem.removeprefix(f"{failure.path}: ")  # a manifest's row names the manifest itself
    return f"{failure.path}{f' ({listed})' if listed else ''}: {failure.stage} failed: {problem}"


def _near(failure: Failure) -> str:
    """Return a hint if an input's path is wrong and its folder has a similar name."""
    folder, name = os.path.split(failure.path.rstrip("/"))
    if os.path.lexists(failure.path) or not os.path.isdir(folder or "."):
        return ""
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in islice(entries, _MAX_NAMES) if is_utf8(entry.name)]
    except OSError:  # a folder that may be entered, and not listed
        return ""
    alike = {os.path.splitext(one)[0]: one for one in names}  # the extension says nothing
    found = get_close_matches(os.path.splitext(name)[0], alike, 1)
    return f": did you mean {os.path.join(folder, alike[found[0]])}?" if found else ""
