"""Result columns: fields of Transcript that rooms write into rows of results and read back. rooms.py has them by room.

It is imported for a transcript or a row that has one, and imports the rooms of those that are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from fastscribe.rooms import ROOMS, enter
from fastscribe.types import Transcript


class ResultColumns(Protocol):
    """All columns of a room. The room's module `columns` is one (add_columns() and read_columns() call it)."""

    def write(self, transcript: Transcript) -> Mapping[str, Any]:
        """Return the values of a row, by the field. The caller leaves out those of fields that have their default."""

    def read(self, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the transcript's fields. `stored` has a row's values, by field. Raises ValueError and others if damaged."""


# Each room with its columns: field, name in a manifest's row, and the core's field that follows it.
_TABLE = [
    (room.name, [(name.removeprefix("pred_"), name, at) for at, names in room.columns.items() for name in names])
    for room in ROOMS
]


def add_columns(found: Mapping[str, Any], transcript: Transcript, order: Sequence[str]) -> dict[str, Any]:
    """Return a row's fields with the columns of its transcript (writers.to_object() calls this). Raises as enter().

    Args:
        found: The fields that the core has written.
        transcript: The transcript. A column whose field has its default is left out.
        order: All fields that the core can write, in order.
    """
    has_row, added = transcript.audio.row is not None, dict[str, dict[str, Any]]()
    for room, columns in _TABLE:
        present = [one for one in columns if getattr(transcript, one[0]) != getattr(Transcript, one[0])]
        values = _columns(room, present[0][has_row]).write(transcript) if present else {}
        for field, name, before in present:
            added.setdefault(before, {})[name if has_row else field] = values[field]
    row: dict[str, Any] = {}
    for name in order:
        row |= added.get(name, {})
        if name in found:
            row[name] = found[name]
    return row


def read_columns(row: Mapping[str, Any], is_manifest: bool) -> Mapping[str, Any]:
    """Return a transcript's fields in a row, which may be a manifest's (stored.to_result() calls this). Raises as enter()."""
    values: dict[str, Any] = {}
    for room, columns in _TABLE:
        present = [one for one in columns if one[is_manifest] in row]
        if present:
            values |= _columns(room, present[0][is_manifest]).read({one[0]: row[one[is_manifest]] for one in present})
    return values


def _columns(room: str, name: str) -> ResultColumns:
    return cast(ResultColumns, enter(room, "columns", f"the field {name} of a result"))
