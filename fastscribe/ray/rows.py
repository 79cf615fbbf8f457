"""The recording that a row of a dataset names: a path or URL, and optionally `offset`, `duration` and `audio_track`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastscribe.audio.manifest import row_source
from fastscribe.errors import ManifestError, UsageError
from fastscribe.types import Failure, Source

PATH_COLUMNS = ("audio_filepath", "path")  # the first that is there
CUT_COLUMNS = ("offset", "duration", "audio_track")


def find_path_column(names: Sequence[str], path_column: str | None) -> str:
    """Return the column with the paths. Raises UsageError if there is none."""
    wanted = PATH_COLUMNS if path_column is None else (path_column,)
    found = next((name for name in wanted if name in names), None)
    if found is None:
        raise UsageError(
            f"no column {' or '.join(wanted)} among {', '.join(names)}: path_column names the one with paths"
        )
    return found


def to_source(row: Mapping[str, Any], column: str, number: int, where: str = "") -> Source | Failure:
    """Return the recording of a row, or the Failure of a row that names none.

    Args:
        row: Values by column; None and NaN stand for a missing one.
        column: Holds the path.
        number: The row's position, for messages.
        where: Path or URL of a file in the folder from which relative paths count; "": the current folder.
    """
    fields = {name: value for name, value in row.items() if value is not None and value == value}
    path = fields.get(column)
    has_path = isinstance(path, str) and path != ""
    name = str(path) if has_path else f"row {number}"
    fields = {"audio_filepath": name, **fields} if has_path else fields
    try:
        if not has_path:
            raise ManifestError(where, number, f"no path or URL in column {column}")
        return row_source(where, number, {**fields, "audio_filepath": path})
    except ManifestError as error:
        problem = str(error).partition(f"line {number}: ")[2]
        return Failure(name, f"row:{number}", "input", type(error).__name__, problem, fields)
