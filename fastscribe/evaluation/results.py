"""Rows that `transcribe` wrote, as pairs of reference and hypothesis.

Rows of a manifest carry their reference in `text` and the hypothesis in `pred_text`. Rows of plain files hold the hypothesis
in `text`, and References finds the reference in a manifest. Files are read line by line; a line that cannot be used is
yielded as a ManifestError, and the rest goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fastscribe.audio.failures import printable, system_problem
from fastscribe.audio.manifest import BYTE_ORDER_MARK, parse_row
from fastscribe.errors import ManifestError, UsageError
from fastscribe.evaluation.scores import Pair

_ROWS_NAME, _SHARD_ROWS = "transcripts.jsonl", "transcripts.shard-*-of-*.jsonl"  # as output folders have them


@dataclass(frozen=True)
class Fields:
    """Names of a row's fields. hypothesis None: pred_text, or text where a row without pred_text meets a manifest."""

    reference: str = "text"
    hypothesis: str | None = None
    group_by: tuple[str, ...] = ()


class Row(NamedTuple):
    file: str
    line: int
    fields: Mapping[str, Any]

    def problem(self, text: str) -> ManifestError:
        return ManifestError(self.file, self.line, text)


class References:
    """The references of one manifest, all in memory, by audio path and offset.

    A result's is that of the same file: manifests name files from their own folder, results from the current one. Where
    that finds none (both were written elsewhere), it is that of the row with the very same audio_filepath.
    """

    def __init__(self, manifest: str, fields: Fields) -> None:
        """Raises UsageError where the manifest cannot be read."""
        self.manifest = manifest
        self.problems: list[ManifestError] = []
        self._rows: list[dict[str, Any]] = []  # only what is needed of each
        self._by_file: dict[tuple[str, int], int] = {}
        self._by_name: dict[tuple[str, int], int] = {}
        self._found: set[int] = set()
        kept = (fields.reference, *fields.group_by)
        for row in read_rows([manifest]):
            if isinstance(row, ManifestError):
                self.problems.append(row)
            else:
                self._add(row, {name: row.fields[name] for name in kept if name in row.fields})

    def _add(self, row: Row, kept: dict[str, Any]) -> None:
        path = row.fields.get("audio_filepath")
        if not isinstance(path, str) or not path:
            self.problems.append(row.problem("no audio_filepath"))
            return
        offset_ms = _offset_ms(row.fields)
        file = os.path.abspath(os.path.join(os.path.dirname(self.manifest), path)), offset_ms
        if file in self._by_file:
            self.problems.append(row.problem("an earlier row has this audio_filepath and offset, and is used"))
            return
        self._by_file[file] = len(self._rows)
        self._by_name.setdefault((path, offset_ms), len(self._rows))
        self._rows.append(kept)

    def find(self, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The manifest's row for a result."""
        path, offset_ms = fields.get("audio_filepath"), _offset_ms(fields)
        if not isinstance(path, str):
            return None
        index = self._by_file.get((os.path.abspath(path), offset_ms), self._by_name.get((path, offset_ms)))
        if index is None:
            return None
        self._found.add(index)
        return self._rows[index]

    @property
    def num_unused(self) -> int:
        """Rows that no result was found for so far."""
        return len(self._rows) - len(self._found)


def _offset_ms(fields: Mapping[str, Any]) -> int:
    offset_s = fields.get("offset")
    return round(offset_s * 1000) if isinstance(offset_s, (int, float)) and 0 <= offset_s < 1e9 else 0


def read_rows(inputs: Iterable[str]) -> Iterator[Row | ManifestError]:
    """JSONL files, output folders, or "-" for stdin. Blank lines are skipped. Raises UsageError for what cannot be read."""
    for given in inputs:
        for file in _files(given):
            for number, line in enumerate(_lines(file), start=1):
                text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                if text.strip():
                    try:
                        yield Row(file, number, parse_row(file, number, text))
                    except ManifestError as error:
                        yield error


def _files(given: str) -> list[str]:
    folder = Path(given)
    if given == "-" or not folder.is_dir():
        return [given]
    files = [folder / _ROWS_NAME] if (folder / _ROWS_NAME).exists() else sorted(folder.glob(_SHARD_ROWS))
    if not files:
        raise UsageError(f"{given}: no {_ROWS_NAME} in this folder")
    return [str(file) for file in files]


def _lines(file: str) -> Iterator[bytes]:
    try:
        if file != "-":
            with open(file, "rb") as lines:
                yield from lines
        elif sys.stdin is None:
            raise UsageError("-: stdin is closed")
        else:
            yield from sys.stdin.buffer
    except OSError as error:
        raise UsageError(f"{printable(file)}: {system_problem(error)}") from error


def read_pairs(
    inputs: Iterable[str], fields: Fields, normalize: Callable[[str], str], references: References | None = None
) -> Iterator[Pair | ManifestError]:
    """Every row as a pair of normalised texts, or why there is none. A row with an `error` is a failed recording."""
    for row in read_rows(inputs):
        if isinstance(row, ManifestError):
            yield row
            continue
        try:
            yield _pair(row, fields, normalize, references)
        except ManifestError as error:
            yield error


def _pair(row: Row, fields: Fields, normalize: Callable[[str], str], references: References | None) -> Pair:
    found = row.fields if references is None else references.find(row.fields)
    if found is None:
        raise row.problem(f"{references.manifest if references else ''} has no row for this audio_filepath and offset")
    if fields.reference not in found:
        raise row.problem(f"no reference: there is no {fields.reference}")
    reference = _text(row, fields.reference, found[fields.reference], normalize)
    groups = tuple(_label(row.fields.get(name, found.get(name))) for name in fields.group_by)
    hypothesis = None if isinstance(row.fields.get("error"), dict) else _hypothesis(row, fields, normalize, references)
    path = row.fields.get("audio_filepath")
    return Pair(reference, hypothesis, groups, path if isinstance(path, str) else "", f"{row.file}: line {row.line}")


def _hypothesis(row: Row, fields: Fields, normalize: Callable[[str], str], references: References | None) -> str:
    name = fields.hypothesis or "pred_text"
    if fields.hypothesis is None and references is not None and name not in row.fields:
        name = "text"
    if name not in row.fields:
        hint = "" if references or fields.hypothesis else " (of plain files? give their references with --manifest)"
        raise row.problem(f"no hypothesis: there is no {name}{hint}")
    return _text(row, name, row.fields[name], normalize)


def _text(row: Row, name: str, value: object, normalize: Callable[[str], str]) -> str:
    if not isinstance(value, str):
        raise row.problem(f"{name} is {value!r:.40}, not text")
    try:
        return normalize(value)
    except (AssertionError, ValueError) as error:  # numbers of thousands of digits
        raise row.problem(f"{name} cannot be normalised: {type(error).__name__} {value!r:.40}") from error


def _label(value: object) -> str | None:
    """A group's name: numbers, booleans and lists as JSON writes them."""
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
