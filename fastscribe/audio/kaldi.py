"""Kaldi's wav.scp: `id path` a line. With `segments` beside it (`id recording start end [channel]`), its rows are these.

A line whose recording a command would write, or that points into an archive, is refused: nothing is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from fastscribe._system.urls import is_url
from fastscribe.audio.manifest import opened_lines
from fastscribe.errors import ManifestError

_IN_ARCHIVE = re.compile(r".*\.(ark|scp)(:\d+)?(\[.*\])?", re.IGNORECASE)
_Row = tuple[str, int, dict[str, Any] | ManifestError]  # the file, and the line in it


def scp_rows(path: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[_Row]:
    """Yield the rows of a wav.scp, or of the segments beside one on this machine. Raises OSError, NotAList."""
    segments = os.path.join(os.path.dirname(path), "segments")
    recordings = (_read(path, number, line, _recording) for number, line in lines)
    if is_url(path) or os.path.basename(path) != "wav.scp" or not os.path.isfile(segments):
        yield from recordings
        return
    paths: dict[str, str] = {}
    for row in recordings:
        if isinstance(row[2], ManifestError):
            yield row
        else:
            paths[row[2]["id"]] = row[2]["audio_filepath"]
    with opened_lines(segments) as rows:
        for number, line in enumerate(rows, start=1):
            if line.strip():
                yield _read(segments, number, line, partial(_segment, paths))


def _read(path: str, number: int, line: bytes, fields_of: Callable[[str], dict[str, Any]]) -> _Row:
    try:
        return path, number, fields_of(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return path, number, ManifestError(path, number, f"not valid UTF-8 at byte {error.start}")
    except ValueError as error:
        return path, number, ManifestError(path, number, str(error))


def _recording(line: str) -> dict[str, Any]:
    """Return the fields of a line. Raises ValueError."""
    name, *rest = line.split(None, 1)
    given = rest[0].strip() if rest else ""
    if not given:
        raise ValueError(f"no path after the id {name!r}")
    if given.endswith("|") or given.startswith("|"):
        raise ValueError(
            "a command writes this recording, and none is run: write it to a file (Kaldi: wav-copy), and its path here"
        )
    if _IN_ARCHIVE.fullmatch(given):
        raise ValueError(
            f"a place in a Kaldi archive ({given}), which is not read: write its recordings to files (wav-copy)"
        )
    return {"audio_filepath": given, "id": name}


def _segment(paths: dict[str, str], line: str) -> dict[str, Any]:
    """Return the fields of a line of `segments`; `paths` has the recordings by id. Raises ValueError."""
    try:
        name, recording, *times = line.split()
        start_s, end_s = (float(time) for time in times[:2])
        channel = int(times[2]) if times[2:] else None
    except ValueError:
        raise ValueError("not id, recording, start and end in seconds (and channel)") from None
    if recording not in paths:
        raise ValueError(f"its recording {recording!r} has no usable line in wav.scp")
    if not (0 <= start_s < float("inf") and (start_s < end_s < float("inf") or end_s == -1)):
        raise ValueError(f"start {start_s:g}, end {end_s:g}: not seconds in order")
    fields: dict[str, Any] = {
        "audio_filepath": paths[recording],
        "id": name,
        "recording_id": recording,
        "offset": start_s,
    }
    fields |= {} if end_s == -1 else {"duration": round(end_s - start_s, 6)}
    return fields if channel is None else {**fields, "audio_channel": channel}
