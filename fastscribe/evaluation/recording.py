"""What tells one recording of results and manifests from another. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from fastscribe._system.urls import is_url
from fastscribe.errors import ManifestError

_SAME_MS = 20  # durations this close are equal: another program may have rounded them


class Recording(NamedTuple):
    """A file or a part of it. A text stands for a value that is not usable: rows with the same one are the same recording."""

    file: str = ""  # absolute path or URL
    offset: int | str = 0  # ms
    track: int | str = 0
    duration: int | str | None = None  # ms; None: to the end, or unknown

    @property
    def start(self) -> tuple[str, int | str, int | str]:
        """Where it begins: all but the duration, which two runs may know differently."""
        return self[:3]

    @property
    def offset_s(self) -> float:
        return self.offset / 1000 if isinstance(self.offset, int) else 0.0

    def lasts_as(self, other: Recording) -> bool:
        """Return True if both have the same duration."""
        if isinstance(self.duration, int) and isinstance(other.duration, int):
            return abs(self.duration - other.duration) <= _SAME_MS
        return self.duration == other.duration


def recording_of(fields: Mapping[str, Any], file: str) -> Recording:
    """Return the recording of a row.

    Args:
        fields: A row of results or of a manifest.
        file: Its path, absolute or relative to the current folder, or its URL.
    """
    track = fields.get("audio_track")
    return Recording(
        file if is_url(file) or not file else os.path.abspath(file),
        _unusable_row(fields) or _milliseconds(fields.get("offset")) or 0,
        (track if type(track) is int else json.dumps(track)) if track is not None else 0,
        _milliseconds(fields.get("duration")) or None,
    )


def _unusable_row(fields: Mapping[str, Any]) -> str:
    """Return the number of the manifest's line and its problem, if the row's error is that the manifest's row is unusable."""
    error = fields.get("error")
    is_unusable = isinstance(error, dict) and error.get("type") == ManifestError.__name__
    return str(error.get("message")).partition(": line ")[2] if isinstance(error, dict) and is_unusable else ""


def _milliseconds(value: object) -> int | str | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return round(value * 1000)
    return json.dumps(value)
