"""Result columns: fields of Transcript that rooms write into rows of results and read back. rooms.py has them by room.

This module is imported for a transcript with a value of one, or for a row with such a field. It imports the rooms of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from fastscribe.rooms import ROOMS, Room, enter
from fastscribe.types import Transcript


class ResultColumns(Protocol):
    """All columns of a room. The room's module `columns` is one (add_columns() and read_columns() call it)."""

    def write(self, transcript: Transcript) -> Mapping[str, Any]:
        """Return the values of a row, by the field. The caller leaves out those of fields that have their default."""

    def read(self, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of the fields of which `stored` has a row's. Raises ValueError and others for a damaged one."""


def add_columns(found: Mapping[str, Any], transcript: Transcript, order: Sequence[str]) -> dict[str, Any]:
    """Return a row's fields with the columns of its transcript (writers.to_object() calls this).

    Args:
        found: The fields that the core has written.
        transcript: The transcript. A column whose field has its default is left out.
        order: All fields that the core can write, in order.

    Raises:
        UsageError: This installation lacks the room of a column.
    """
    row, places = dict(found), {name: float(place) for place, name in enumerate(order)}
    for room in ROOMS:
        present = [
            one for one in _names(room, transcript) if getattr(transcript, one[0]) != getattr(Transcript, one[0])
        ]
        values = _columns(room, present[0][1]).write(transcript) if present else {}
        for field, name, before in present:
            row[name], places[name] = values[field], places[before] - 0.5
    return dict(sorted(row.items(), key=lambda item: places[item[0]]))


def read_columns(fields: Mapping[str, Any], transcript: Transcript) -> Transcript:
    """Return a transcript with the columns of its row, `fields` (stored.to_result() calls this). Raises as add_columns()."""
    values: dict[str, Any] = {}
    for room in ROOMS:
        names = {field: name for field, name, _ in _names(room, transcript) if name in fields}
        if names:
            columns = _columns(room, next(iter(names.values())))
            values |= columns.read({field: fields[name] for field, name in names.items()})
    return replace(transcript, **values)


def _names(room: Room, transcript: Transcript) -> Iterator[tuple[str, str, str]]:
    """Yield each column of a room: its field, its name in the transcript's row, and the core's field that follows it."""
    for before, names in room.columns.items():
        for name in names:
            field = name.removeprefix("pred_")
            yield field, field if transcript.audio.row is None else name, before


def _columns(room: Room, name: str) -> ResultColumns:
    return cast(ResultColumns, enter(room.name, "columns", f"the field {name} of a result"))
