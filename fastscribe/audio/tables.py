"""Rows of a table in text, CSV or TSV, as Common Voice, Hugging Face's audio folders and spreadsheets have them.

The first line names the columns. One of PATH_NAMES, in any case, has the recordings.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastscribe.audio.failures import is_utf8
from fastscribe.audio.formats import is_audio_name
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.manifest import NUMBERS, PATH_NAMES, read_numbers
from fastscribe.errors import ManifestError

_DELIMITERS = {"csv": ",;\t|", "tsv": "\t,;|"}
_DECIMAL_COMMA = re.compile(r"\A\s*(\d+),(\d+)\s*\Z", re.ASCII)  # where semicolons separate cells: a German Excel's
_SEPARATOR = re.compile(r"\"?sep=([^\w\s\"']|\t)\"?\s*", re.IGNORECASE)


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
