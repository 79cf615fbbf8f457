"""Read the rows that `transcribe` wrote: files, output folders, stdin, or URLs of files and folders. Line by line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from fastscribe._system.remote import RemoteNotFound, list_objects, read_lines, read_object, stat_object, store_for
from fastscribe._system.urls import is_url
from fastscribe.audio.failures import printable, system_problem
from fastscribe.audio.formats import MANIFEST_EXTENSIONS, extension
from fastscribe.audio.json_lines import NotJsonLines, numbered_rows
from fastscribe.audio.manifest import parse_row
from fastscribe.config import FILE_FORMATS
from fastscribe.errors import ManifestError, UsageError

_REPORT_NAME = re.compile(r"report(\.shard-\d+-of-\d+)?\.json", re.ASCII)
_ROWS_NAME, _SHARD_ROWS = "transcripts.jsonl", "transcripts.shard-*-of-*.jsonl"  # the names in output folders


class ResultRow(NamedTuple):
    file: str
    line: int
    fields: Mapping[str, Any]

    def problem(self, text: str) -> ManifestError:
        return ManifestError(self.file, self.line, text)


def read_rows(inputs: Iterable[str]) -> Iterator[ResultRow | ManifestError]:
    """Yield the rows of JSONL files, output folders, URLs of either, or "-" for stdin.

    Blank lines are skipped; a broken line is yielded as a ManifestError.

    Raises:
        UsageError: a file cannot be read, or holds no JSON lines.
    """
    for given in inputs:
        for file in _files(given):
            yield from _rows(file)


def _rows(file: str) -> Iterator[ResultRow | ManifestError]:
    if _REPORT_NAME.fullmatch(os.path.basename(file)):
        raise UsageError(f"{printable(file)}: is the report of a run: give its folder, or the {_ROWS_NAME} beside it")
    try:
        for number, line in numbered_rows(_lines(file)):
            try:
                yield ResultRow(file, number, parse_row(file, number, line))
            except ManifestError as error:
                if number == 1 and extension(file) in FILE_FORMATS:
                    raise UsageError(
                        f"{printable(file)}: holds no rows: give its run's folder or {_ROWS_NAME}; of a corrected text, "
                        "fastscribe align --text makes other formats"
                    ) from None
                yield error
    except NotJsonLines as error:
        raise UsageError(f"{printable(file)}: {error}") from None


def _files(given: str) -> list[str]:
    if is_url(given):
        return _files_at(given)
    folder = Path(given)
    if given == "-" or not folder.is_dir():
        return [given]
    files = [folder / _ROWS_NAME] if (folder / _ROWS_NAME).exists() else sorted(folder.glob(_SHARD_ROWS))
    if not files:
        raise UsageError(f"{given}: no {_ROWS_NAME} in this folder")
    return [str(file) for file in files]


def _files_at(url: str) -> list[str]:
    """Return the URLs of a file, or of the rows in an output folder."""
    try:
        if not store_for(url).lists or extension(url) in MANIFEST_EXTENSIONS:
            return [url]
        return _rows_below(url.rstrip("/"))
    except OSError as error:
        raise UsageError(f"{url}: {system_problem(error)}") from error
    except UsageError as error:
        raise UsageError(f"{url}: {error}") from error


def _rows_below(folder: str) -> list[str]:
    try:
        return [stat_object(f"{folder}/{_ROWS_NAME}").url]
    except RemoteNotFound:
        files = [found.url for found in list_objects(folder) if fnmatchcase(found.url, f"*/{_SHARD_ROWS}")]
        files = [file for file in files if file.rpartition("/")[0] == folder]
    if not files:
        raise UsageError(f"no {_ROWS_NAME} in this folder")
    return files


def _lines(file: str) -> Iterator[bytes]:
    try:
        if is_url(file):
            yield from read_lines(file)
        elif file != "-":
            with open(file, "rb") as lines:
                yield from lines
        elif sys.stdin is None:
            raise UsageError("-: stdin is closed")
        else:
            yield from sys.stdin.buffer
    except OSError as error:
        raise UsageError(f"{printable(file)}: {system_problem(error)}") from error


def missing_shards(given: str) -> list[int]:
    """Return the numbers of the shards that a merged output folder lacks or has in part. Other inputs lack none."""
    try:
        if is_url(given):
            is_folder = store_for(given).lists and extension(given) not in MANIFEST_EXTENSIONS
            text = read_object(f"{given.rstrip('/')}/report.json").data if is_folder else b"{}"
        else:
            text = Path(given, "report.json").read_bytes()
        report = json.loads(text)
        return sorted({*report.get("shards_missing", ()), *report.get("shards_incomplete", ())})
    except (OSError, ValueError, AttributeError, TypeError):  # no report, or not one of ours
        return []
