"""The rows of a list as recordings to transcribe. A row that names none is a Failure that says where it is.

The recordings of a tar archive are rows too. As in WebDataset, `a.json` has the fields of `a.flac`, and `a.txt` its text. The
whole recording is read, where it lies. A field that says where it came from (a path, an offset) gets `original_` before its
name, or readers of the results would look there.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastscribe._system.urls import is_url
from fastscribe.audio.archives import iter_members
from fastscribe.audio.failures import input_failure, is_utf8, not_utf8, printable, relative_id, system_problem
from fastscribe.audio.formats import (
    MANIFEST_EXTENSIONS,
    NOT_OPENED,
    count_left_out,
    is_audio_name,
    is_other_name,
    list_kind,
)
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.list_rows import BadRow, ListRow, Row, list_rows
from fastscribe.audio.list_rows import manifest_rows as rows_of_manifest
from fastscribe.audio.manifest import Span, line_of, opened, read_numbers, row_span, source_of
from fastscribe.audio.media import FilePart
from fastscribe.errors import ManifestError, UsageError
from fastscribe.types import Failure, File, Source

_OF_THE_ORIGINAL = ("audio_filepath", "offset", "audio_track", "audio_channel")
_MAX_BYTES = 1 << 20  # of a .json or .txt


def read_list(path: str, left_out: Counter[str]) -> Iterator[Source | Failure]:
    """Yield every row of a list in order, a broken one as a Failure.

    Args:
        path: Path or URL of the list.
        left_out: Counts the files of an archive that are not taken for audio, by kind.
    """
    return _sources(path, _tar_rows(path, left_out) if list_kind(path) == "tar" else list_rows(path))


def manifest_rows(path: str, lines: Iterable[bytes]) -> Iterator[Source | Failure]:
    """Yield the rows in a manifest's lines; if these are no JSON lines at all, one Failure."""
    return _sources(path, rows_of_manifest(path, lines))


def _sources(path: str, rows: Iterator[Row]) -> Iterator[Source | Failure]:
    empty = True
    try:
        for row in rows:
            empty = False
            yield _source(row)
    except (OSError, NotAList) as error:
        yield input_failure(path, system_problem(error))
        return
    if empty:
        yield input_failure(
            path, f"this {'manifest' if list_kind(path) in MANIFEST_EXTENSIONS else 'list'} holds no rows"
        )


def _source(row: Row) -> Source | Failure:
    if isinstance(row, BadRow):
        return _failure(row)
    file: File = opened(row.file) if isinstance(row.file, str) else row.file
    try:
        if row.fields is None and not is_utf8(row.span.path):
            is_there = isinstance(row.file, str) and os.path.lexists(row.file)
            remedy = "rename the file" if is_there else "save the list as UTF-8"
            raise ManifestError(row.where, row.number, f"a path that is {not_utf8(row.span.path, remedy)}")
        source = source_of(row.where, row.number, row.fields or {}, row.span, file)
    except ManifestError as error:
        return _failure(BadRow(row.where, row.number, error, row.fields))
    if row.id is None:
        return source if row.fields is not None else replace(source, row=None)
    listed = "" if list_kind(row.where) == "tar" else line_of(row.where, row.number, row.id)
    return replace(source, id=relative_id(row.id), row=row.fields, listed=listed)


def _failure(row: BadRow) -> Failure:
    given = row.fields.get("audio_filepath") if row.fields else None
    path = given if isinstance(given, str) and given else printable(row.where)
    row_id = f"{printable(relative_id(row.where))}:{row.number}"
    listed = "" if list_kind(row.where) == "tar" else line_of(row.where, row.number, (row.fields or {}).get("id"))
    failure = Failure(path, row_id, "input", type(row.error).__name__, printable(str(row.error)), row.fields)
    return replace(failure, listed=printable(listed))


def _tar_rows(path: str, left_out: Counter[str]) -> Iterator[Row]:
    """Yield the recordings of an archive in order; other files are counted. Raises NotAList behind what can be read."""
    if is_url(path):
        raise NotAList("a tar archive in a store is not read: download it, or give its recordings as objects")
    recordings: dict[str, FilePart] = {}
    others: dict[str, FilePart] = {}
    problem: NotAList | None = None
    try:
        for name, part in iter_members(path, left_out):
            if not any(one.startswith(".") for one in name.split("/")):  # as in folders
                (recordings if is_audio_name(name) else others)[name] = part
    except NotAList as error:
        problem = error
    used: set[str] = set()
    for number, (name, part) in enumerate(recordings.items(), start=1):
        beside = [one for kind in ("json", "txt") if (one := _beside(name, kind, others)) is not None]
        used.update(beside)
        yield _row(path, number, name, part, [(one, others[one]) for one in beside])
    for name in others.keys() - used:
        count_left_out(left_out, name, "" if is_other_name(name) else NOT_OPENED)
    if problem is not None or not recordings:
        raise problem or NotAList("no audio in this archive")


def _beside(name: str, kind: str, others: Mapping[str, FilePart]) -> str | None:
    """Return the file with the fields of a recording: of its name, or of what stands before the first dot in it."""
    folder, slash, last = name.rpartition("/")
    names = (f"{os.path.splitext(name)[0]}.{kind}", f"{folder}{slash}{last.partition('.')[0]}.{kind}")
    return next((one for one in names if one in others), None)


def _row(path: str, number: int, name: str, part: FilePart, beside: Sequence[tuple[str, FilePart]]) -> Row:
    shown, fields = f"{path}/{name}", None
    try:
        for other, place in beside:
            found = _fields(other, place)
            fields = {"audio_filepath": shown, **found, **(fields or {})}
        if fields is not None:
            read_numbers(fields)
            row_span(path, number, fields)
    except ManifestError as error:
        return BadRow(path, number, error, {"audio_filepath": shown})
    except (OSError, ValueError) as error:
        return BadRow(path, number, UsageError(f"{path}: {error}"), {"audio_filepath": shown})
    span = Span(shown, None, None, None, None)
    return ListRow(path, number, fields, span, part, f"{os.path.basename(path)}/{name}")


def _fields(name: str, place: FilePart) -> dict[str, Any]:
    """Return the fields that a file of an archive holds. Raises OSError, ValueError."""
    if place.size > _MAX_BYTES:
        raise ValueError(f"{name} is larger than 1 MiB")
    with place.open() as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
        fields = json.loads(text) if name.lower().endswith(".json") else {"text": text.strip()}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not {'UTF-8' if isinstance(error, UnicodeDecodeError) else 'JSON'}") from error
    if not isinstance(fields, dict) or not is_utf8(json.dumps(fields, ensure_ascii=False)):
        raise ValueError(f"{name}: not a JSON object of text")
    return {f"original_{key}" if key in _OF_THE_ORIGINAL else key: fields[key] for key in fields}
