"""NeMo manifests: one JSON object a line, with audio_filepath and optionally offset and duration in seconds.

Read line by line as bytes, so that a million rows start at once and one broken row costs one Failure. Whether the audio
exists is found out later, by the probe.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from fastscribe.audio.failures import input_failure, is_utf8, printable, relative_id, system_problem
from fastscribe.errors import ManifestError
from fastscribe.types import Failure, Source

_MAX_DEPTH = 100  # of a row, so that it can be written again; Python itself gives up near 1,000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_manifest(path: str) -> Iterator[Source | Failure]:
    """Every row of the manifest in order. Blank lines are skipped; nothing is raised for what the file holds."""
    empty = True
    try:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                if text.strip():
                    empty = False
                    yield _row(path, number, text)
    except OSError as error:
        yield input_failure(path, system_problem(error))
        return
    if empty:
        yield input_failure(path, "this manifest holds no rows")


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
    """The JSON object on one line of a manifest, or of results. Raises ManifestError for anything else."""
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


def row_source(manifest: str, number: int, fields: Mapping[str, Any]) -> Source:
    """What parse_row's fields say is to be read. Raises ManifestError where they name no recording or no length of time."""
    path = fields.get("audio_filepath")
    if not isinstance(path, str) or not path:
        raise ManifestError(manifest, number, "no audio_filepath")
    offset_s = _seconds(manifest, number, fields, "offset")
    duration_s = _seconds(manifest, number, fields, "duration")
    suffix = f"@{round(offset_s * 1000)}" if offset_s else ""
    return Source(
        path=path,
        file=os.path.join(os.path.dirname(manifest), path),
        id=relative_id(path) + suffix,
        row=fields,
        offset_s=offset_s,
        duration_s=duration_s or None,  # NeMo takes 0 for "to the end"
    )


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
        raise ManifestError(manifest, number, f"{key} is {seconds}, not a length of time")
    return seconds
