"""Rows of manifests: JSON objects with audio_filepath, optionally offset, duration (seconds), audio_track and audio_channel.

list_rows.py gives rows of other lists the same names. The lines of any list are opened here. The probe finds out later whether
the audio exists.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple, cast

from fastscribe._system.remote import read_lines
from fastscribe._system.urls import is_url, join_url
from fastscribe.audio.archives import part_at
from fastscribe.audio.failures import is_utf8, relative_id
from fastscribe.audio.input_names import meant_beside
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.phrase_lines import PhraseError, phrases_of_row
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.errors import ManifestError
from fastscribe.types import File, Phrase, Source

# Fields that are numbers, also where a row has them as text, as every field of a table is.
NUMBERS: Mapping[str, type[float | int]] = {
    "offset": float,
    "duration": float,
    "audio_track": int,
    "audio_channel": int,
    "shard_id": int,
}
# Fields that may have the recording's path, the first that is there.
PATH_NAMES = (
    "audio_filepath",
    "file_name",
    "path",
    "audio_filename",
    "audio_file",
    "audio_path",
    "audio",
    "wav",
    "wav_filename",
    "wav_path",
    "filename",
    "file_path",
    "filepath",
    "file",
)
GZIP = b"\x1f\x8b"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
_MAX_DEPTH = 100  # nesting of a row that can be written again; Python's limit is near 1,000


@contextmanager
def opened_lines(path: str) -> Iterator[Iterator[bytes]]:
    """Give the lines of a list, of a file or of an object in a store, unpacked if its first bytes are gzip's.

    Raises:
        OSError: It cannot be read.
        NotAList: Not all of it can be unpacked.
    """
    try:
        if is_url(path):
            yield from _of_object(path)
        else:
            with open(path, "rb") as file:  # which may be a pipe, and cannot seek then
                yield iter(cast(Iterator[bytes], gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == GZIP else file))
    except _DAMAGED as error:
        raise NotAList("damaged or cut off: not all of it can be unpacked") from error


def _of_object(url: str) -> Iterator[Iterator[bytes]]:
    """Yield the lines of an object, once."""
    lines = read_lines(url)
    first = next(lines, b"")
    if first[:2] != GZIP:
        yield chain([first], lines)
        return

    with RemoteFile(url).open() as file, gzip.GzipFile(fileobj=file) as unpacked:
        yield iter(unpacked)


def parse_row(manifest: str, number: int, line: bytes) -> dict[str, Any]:
    """Parse one line of a manifest or of a result file into a JSON object, with numbers where it has them as text.

    Raises ManifestError for anything else.
    """
    try:
        # With its end, a row that is cut off would be wrong in column 1 of the next line.
        text = line.decode("utf-8").rstrip("\r\n")
        fields = json.loads(text)
    except UnicodeDecodeError as error:
        raise ManifestError(manifest, number, f"not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ManifestError(
            manifest, number, f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ManifestError(manifest, number, f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ManifestError(manifest, number, "not a JSON object")
    if text.count("{") + text.count("[") > _MAX_DEPTH and _is_deeper(fields, _MAX_DEPTH):
        raise ManifestError(manifest, number, f"nested deeper than {_MAX_DEPTH}")
    if "\\u" in text and not is_utf8(json.dumps(fields, ensure_ascii=False)):
        raise ManifestError(manifest, number, "holds half of a \\u surrogate pair, which is not text")
    read_numbers(fields)
    return fields


def read_numbers(fields: dict[str, Any]) -> None:
    """Make numbers of those NUMBERS that a row has as text. What is no number stays, for row_span() to refuse."""
    for key in NUMBERS:
        if key in fields and isinstance(fields[key], str):
            with suppress(ValueError):
                fields[key] = NUMBERS[key](fields[key])


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
    channel: int | None


def row_span(manifest: str, number: int, fields: Mapping[str, Any]) -> Span:
    """Return what a row names. Raises ManifestError if audio_filepath or one of the numbers is unusable."""
    path = fields.get("audio_filepath")
    if not isinstance(path, str) or not path:
        problem = f"audio_filepath is {path!r:.40}, not a text" if path else "no audio_filepath"
        raise ManifestError(manifest, number, problem)
    offset_s = _seconds(manifest, number, fields, "offset")
    duration_s = _seconds(manifest, number, fields, "duration") or None  # NeMo reads 0 as "to the end"
    track, channel = (_position(manifest, number, fields, key) for key in ("audio_track", "audio_channel"))
    return Span(path, offset_s, duration_s, track, channel)


def row_source(manifest: str, number: int, fields: Mapping[str, Any]) -> Source:
    """Return the recording that a row names, to open it. Raises ManifestError as `row_span` does, and for an unusable boost."""
    span = row_span(manifest, number, fields)
    span = span._replace(path=meant_beside(manifest, span.path))
    return source_of(manifest, number, fields, span, opened(resolve(manifest, span.path)))


def source_of(manifest: str, number: int, fields: Mapping[str, Any], span: Span, file: File) -> Source:
    """Return a row's recording, whose bytes are in `file`. Raises ManifestError for an unusable boost."""
    suffix = f"@{round(span.offset_s * 1000)}" if span.offset_s else ""
    return Source(
        path=span.path,
        file=file,
        id=relative_id(span.path) + suffix,
        row=fields,
        offset_s=span.offset_s,
        duration_s=span.duration_s,
        track=span.track,
        channel=span.channel,
        boost=_phrases(manifest, number, fields),
        listed=line_of(manifest, number, fields.get("id")),
    )


def line_of(where: str, number: int, row_id: object) -> str:
    """Return where a row is, for messages: the list, the line and the row's own id."""
    return f"{where}: line {number}" if row_id is None else f"{where}: line {number}, id {row_id!s:.100}"


def _phrases(manifest: str, number: int, fields: Mapping[str, Any]) -> tuple[Phrase, ...]:
    """Return the row's own phrases to boost."""
    try:
        return phrases_of_row(fields.get("boost"))
    except PhraseError as error:
        raise ManifestError(manifest, number, str(error)) from None


def opened(path: str) -> File:
    """Return what to open at a path or URL. `shard.tar/a.flac` is a file of an archive, unless it is a path by itself."""
    if is_url(path):
        return RemoteFile(path)
    if ".tar/" in path and not os.path.exists(path):
        return part_at(path) or path
    return path


def resolve(manifest: str, path: str) -> str:
    """Return the path or URL that a row's audio_filepath names: a relative one counts from the manifest's folder."""
    if is_url(path):
        return path
    if is_url(manifest) and not os.path.isabs(path):
        return join_url(manifest, path)
    return os.path.join(os.path.dirname(manifest), path)


def _position(manifest: str, number: int, fields: Mapping[str, Any], key: str) -> int | None:
    position = fields.get(key)  # not "track", which may be a song's
    if position is not None and (type(position) is not int or position < 0):
        raise ManifestError(manifest, number, f"{key} is {position!r:.40}, not a number from 0")
    return position


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
