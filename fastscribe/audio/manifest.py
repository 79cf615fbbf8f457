"""NeMo manifests: one JSON object a line, with audio_filepath and optionally offset and duration in seconds, and audio_track.

They are read line by line as bytes, so that a million rows start at once and one broken row costs one Failure. The probe
finds out later whether the audio exists.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from fastscribe._system.remote import read_lines
from fastscribe._system.urls import is_url, join_url
from fastscribe.audio.failures import input_failure, is_utf8, printable, relative_id, system_problem
from fastscribe.audio.json_lines import NotJsonLines, numbered_rows
from fastscribe.audio.phrase_lines import PhraseError, phrases_of_row
from fastscribe.errors import ManifestError
from fastscribe.types import Failure, Medium, Phrase, Source

_MAX_DEPTH = 100  # nesting of a row that can be written again; Python's limit is near 1,000


def read_manifest(path: str) -> Iterator[Source | Failure]:
    """Yield every row of the manifest in order, a broken one as a Failure. Blank lines are skipped."""
    empty = True
    try:
        with _lines(path) as lines:
            for row in rows_of(path, lines):
                empty = False
                yield row
    except OSError as error:
        yield input_failure(path, system_problem(error))
        return
    if empty:
        yield input_failure(path, "this manifest holds no rows")


def rows_of(path: str, lines: Iterable[bytes]) -> Iterator[Source | Failure]:
    """Yield the rows in a manifest's lines; if these are no JSON lines at all, one Failure.

    Relative paths of stdin, whose path is "-", count from the current folder.
    """
    try:
        for number, line in numbered_rows(lines):
            yield _row(path, number, line)
    except NotJsonLines as error:
        yield input_failure(path, str(error))


@contextmanager
def _lines(path: str) -> Iterator[Iterable[bytes]]:
    if is_url(path):
        yield read_lines(path)
    else:
        with open(path, "rb") as lines:
            yield lines


def _row(manifest: str, number: int, line: bytes) -> Source | Failure:
    fields: dict[str, Any] | None = None
    try:
        fields = parse_row(manifest, number, line)
        return row_source(manifest, number, fields)
    except ManifestError as error:
        given = fields.get("audio_filepath") if fields else None
        path = given if isinstance(given, str) and given else printable(manifest)
        row_id = f"{printable(relative_id(manifest))}:{number}"
        return Failure(path, row_id, "input", type(error).__name__, printable(str(error)), fields)


def parse_row(manifest: str, number: int, line: bytes) -> dict[str, Any]:
    """Parse one line of a manifest or of a result file into a JSON object. Raises ManifestError for anything else."""
    try:
        text = line.decode("utf-8")
        fields = json.loads(text)
    except UnicodeDecodeError as error:
        raise ManifestError(manifest, number, f"not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ManifestError(manifest, number, f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise ManifestError(manifest, number, f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ManifestError(manifest, number, "not a JSON object")
    if text.count("{") + text.count("[") > _MAX_DEPTH and _is_deeper(fields, _MAX_DEPTH):
        raise ManifestError(manifest, number, f"nested deeper than {_MAX_DEPTH}")
    if "\\u" in text and not is_utf8(json.dumps(fields, ensure_ascii=False)):
        raise ManifestError(manifest, number, "holds half of a \\u surrogate pair, which is not text")
    return fields


def _is_deeper(value: Any, max_depth: int) -> bool:
    """Return True if lists and objects lie more than `max_depth` deep in each other."""
    level: list[Any] = [value]
    for _ in range(max_depth):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, (dict, list))
        ]
    return bool(level)


class Span(NamedTuple):
    """The recording that a row names, or the part of it."""

    path: str  # as the row gives it
    offset_s: float | None
    duration_s: float | None  # None: to the end
    track: int | None


def row_span(manifest: str, number: int, fields: Mapping[str, Any]) -> Span:
    """Return what a row names. Raises ManifestError if audio_filepath, offset, duration or audio_track is unusable."""
    path = fields.get("audio_filepath")
    if not isinstance(path, str) or not path:
        raise ManifestError(manifest, number, "no audio_filepath")
    offset_s = _seconds(manifest, number, fields, "offset")
    duration_s = _seconds(manifest, number, fields, "duration") or None  # NeMo reads 0 as "to the end"
    return Span(path, offset_s, duration_s, _track(manifest, number, fields))


def row_source(manifest: str, number: int, fields: Mapping[str, Any]) -> Source:
    """Return the recording that a row names, to open it. Raises ManifestError as `row_span` does, and for an unusable boost."""
    path, offset_s, duration_s, track = row_span(manifest, number, fields)
    suffix = f"@{round(offset_s * 1000)}" if offset_s else ""
    return Source(
        path=path,
        file=_opened(manifest, path),
        id=relative_id(path) + suffix,
        row=fields,
        offset_s=offset_s,
        duration_s=duration_s,
        track=track,
        boost=_phrases(manifest, number, fields),
    )


def _phrases(manifest: str, number: int, fields: Mapping[str, Any]) -> tuple[Phrase, ...]:
    """Return the row's own phrases to boost."""
    if fields.get("boost") is None:
        return ()
    try:
        return phrases_of_row(fields["boost"])
    except PhraseError as error:
        raise ManifestError(manifest, number, str(error)) from None


def _opened(manifest: str, path: str) -> str | Medium:
    resolved = resolve(manifest, path)
    if not is_url(resolved):
        return resolved
    from fastscribe.audio.remote_file import RemoteFile

    return RemoteFile(resolved)


def resolve(manifest: str, path: str) -> str:
    """Return the path or URL that a row's audio_filepath names: a relative one counts from the manifest's folder."""
    if is_url(path):
        return path
    if is_url(manifest) and not os.path.isabs(path):
        return join_url(manifest, path)
    return os.path.join(os.path.dirname(manifest), path)


def _track(manifest: str, number: int, fields: Mapping[str, Any]) -> int | None:
    track = fields.get("audio_track")  # "track" may be a song's
    if track is not None and (type(track) is not int or track < 0):
        raise ManifestError(manifest, number, f"audio_track is {track!r:.40}, not a number from 0")
    return track


def _seconds(manifest: str, number: int, fields: Mapping[str, Any], key: str) -> float | None:
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ManifestError(manifest, number, f"{key} is {value!r:.40}, not a number of seconds")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0:
        raise ManifestError(manifest, number, f"{key} is {seconds:g}, not a number of seconds from 0")
    return seconds
