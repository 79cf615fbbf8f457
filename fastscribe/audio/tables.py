"""Rows of a table in text, CSV or TSV, as Common Voice, Hugging Face's audio folders and spreadsheets have them, and Kaldi's.

The first line names the columns. One of PATH_NAMES, in any case, has the recordings.

Kaldi's wav.scp has `id path` a line. With `segments` beside it (`id recording start end [channel]`), its rows are these. A line
whose recording a command would write, or that points into an archive, is refused: nothing is run.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from fastscribe._system.urls import is_url
from fastscribe.audio.failures import is_utf8
from fastscribe.audio.formats import is_audio_name
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.manifest import NUMBERS, PATH_NAMES, opened_lines, read_numbers
from fastscribe.errors import ManifestError

_DELIMITERS = {"csv": ",;\t|", "tsv": "\t,;|"}
_DECIMAL_COMMA = re.compile(r"\A\s*(\d+),(\d+)\s*\Z", re.ASCII)  # where semicolons separate cells: a German Excel's
_SEPARATOR = re.compile(r"\"?sep=([^\w\s\"']|\t)\"?\s*", re.IGNORECASE)
_IN_ARCHIVE = re.compile(r".*\.(ark|scp)(:\d+)?(\[.*\])?", re.IGNORECASE)
_KaldiRow = tuple[str, int, dict[str, Any] | ManifestError]  # the file, and the line in it


def table_rows(
    path: str, kind: str, lines: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[int, dict[str, Any] | ManifestError]]:
    """Yield the rows of a table, with their lines' numbers: fields by column, audio_filepath first.

    Args:
        path: The table's.
        kind: "csv" or "tsv", which decides between delimiters.
        lines: The lines that are not blank.

    Raises:
        NotAList: The first line names no column of recordings.
    """
    numbers: list[int] = []
    text = _decoded(lines, numbers)
    first = next(text, "")
    stated = _SEPARATOR.fullmatch(first)  # Excel's
    header, delimiter = _header(next(text, ""), stated[1]) if stated else _header(first, _DELIMITERS[kind])
    columns = [_column(name, position) for position, name in enumerate(header, start=1)]
    spelt = {name.lower(): name for name in columns}
    column = next(spelt[name] for name in PATH_NAMES if name in spelt)
    # In a table with tabs quotes are part of the text: Common Voice has sentences with a single one.
    quotes = delimiter != "\t"
    reader = csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE, strict=True)
    while True:
        numbers.clear()
        try:
            cells = next(reader, None)
            if cells is None:
                return
            yield numbers[0], _row(columns, column, cells, delimiter)
        except (csv.Error, ValueError) as error:
            problem = str(error) if isinstance(error, ValueError) else f"not a row of a table: {error}"
            yield numbers[0], ManifestError(path, numbers[0], problem)


def _decoded(lines: Iterable[tuple[int, bytes]], numbers: list[int]) -> Iterator[str]:
    """Yield lines as text, and add their numbers to `numbers`. A row may have several lines."""
    for number, line in lines:
        numbers.append(number)
        yield line.decode("utf-8", "surrogateescape")


def _header(line: str, delimiters: str) -> tuple[list[str], str]:
    """Return the names of the columns and the delimiter, the first that fits. Raises NotAList."""
    for delimiter in delimiters:
        names = next(csv.reader([line], delimiter=delimiter), [])
        if any(name.strip().lower() in PATH_NAMES for name in names):
            return names, delimiter
    problem = f"its first line names no column of recordings ({', '.join(PATH_NAMES[:3])} ..)"
    cells = next(csv.reader([line], delimiter=delimiters[0]), [])
    if any(is_audio_name(cell) for cell in cells):
        raise NotAList(f"{problem}: write a line with the columns' names above its rows, such as path,text")
    raise NotAList(f"{problem}: name it so there")


def _column(name: str, position: int) -> str:
    name = name.strip()
    lower = name.lower()
    return lower if lower in ("audio_filepath", *NUMBERS) else name or f"column_{position}"


def _row(columns: Sequence[str], column: str, cells: Sequence[str], delimiter: str) -> dict[str, Any]:
    """Return a row's fields. Raises ValueError."""
    if not is_utf8("".join(cells)):
        raise ValueError("not valid UTF-8")
    if len(cells) > len(columns):
        raise ValueError(f"{len(cells)} columns, and the first line names {len(columns)}: {','.join(cells):.60}")
    fields: dict[str, Any] = dict(zip(columns, cells, strict=False))
    for name in fields.keys() & NUMBERS.keys():
        if not fields[name].strip():
            del fields[name]
        elif delimiter == ";":
            fields[name] = _DECIMAL_COMMA.sub(r"\1.\2", fields[name])
    read_numbers(fields)
    given = fields.get(column, "").strip()
    is_quoted = len(given) > 1 and given[0] == given[-1] == '"'
    return {
        "audio_filepath": given[1:-1] if is_quoted else given,
        **{key: fields[key] for key in fields if key != "audio_filepath"},
    }


def scp_rows(path: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[_KaldiRow]:
    """Yield the rows of a wav.scp, or of the segments beside one on this machine. Raises OSError, NotAList."""
    segments = os.path.join(os.path.dirname(path), "segments")
    recordings = (_kaldi_row(path, number, line, _recording) for number, line in lines)
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
                yield _kaldi_row(segments, number, line, partial(_segment, paths))


def _kaldi_row(path: str, number: int, line: bytes, fields_of: Callable[[str], dict[str, Any]]) -> _KaldiRow:
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
