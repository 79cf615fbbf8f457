"""The rows of a manifest, or of another list, as examples. audio/list_rows.py reads them, for `transcribe` too.

A wrong row (no JSON, no duration) is an error that names the line. So is a missing recording, which the first rows and a sample
of the others are checked for: on a network file system a look at each of millions takes hours. The loader leaves out those that
are found missing later.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastscribe._system.urls import is_url
from fastscribe.audio.failures import system_problem
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.list_rows import BadRow, FindMember, ListRow, list_rows
from fastscribe.errors import FastscribeError, ManifestError, UsageError
from fastscribe.training.bpe import clean_text
from fastscribe.training.corpus import Example, ManifestPart, Request

# What a row asks an attention decoder for; None for other models. Raises ValueError that says what is wrong with the row.
ReadRequest = Callable[[Mapping[str, Any]], Request | None]
_MAX_NAMED = 5  # wrong rows in a message
_FIRST_ROWS, _SAMPLE_GROWTH = 100, 1.01  # rows whose recording has to exist: the first, then each 1 % further down


class RowReader:
    """Reads the files of a manifest.

    Args:
        number: of the manifest.
        read_request: reads what a row asks an attention decoder for.
        ignores_texts: take every row as one without text, whatever it says.
    """

    def __init__(self, part: ManifestPart, number: int, read_request: ReadRequest, ignores_texts: bool) -> None:
        self._part, self._number, self._read_request = part, number, read_request
        self._ignores_texts, self._next_checked = ignores_texts, 1

    def examples(self, path: str, find_member: FindMember | None = None) -> Iterator[Example]:
        """Yield the rows of a file in order.

        Args:
            path: the file.
            find_member: finds recordings in tar archives; None: they are files, or in archives beside the manifest.

        Raises:
            UsageError: the file cannot be read; or, at its end, rows of it are wrong, of which it names the first.
        """
        num_wrong, first_wrong, self._next_checked = 0, list[str](), 1
        try:
            for row in list_rows(path, find=find_member):
                try:
                    yield self._example(row)
                except FastscribeError as error:
                    num_wrong += 1
                    if num_wrong <= _MAX_NAMED:
                        first_wrong.append(str(error).removeprefix(f"{path}: "))
        except (OSError, NotAList) as error:
            raise UsageError(f"{path}: {system_problem(error)}") from error
        if first_wrong:
            count = f"; {num_wrong:,} wrong rows in all" if num_wrong > 1 else ""
            raise UsageError(f"{path}: {'; '.join(first_wrong)}{count}")

    def _example(self, row: ListRow | BadRow) -> Example:
        if isinstance(row, BadRow):
            raise row.error
        fields, span = row.fields or {}, row.span
        text = self._text(row)
        if span.track:
            raise _wrong(row, f"audio_track {span.track}: training reads the first track: extract this one")
        if span.duration_s is None:
            raise _wrong(row, "no duration (0 is none), which planning batches needs")
        if isinstance(row.file, str) and is_url(row.file):
            raise _wrong(row, f"{row.file}: training reads files, not addresses: download it")
        path, start, size = (
            (row.file, 0, 0) if isinstance(row.file, str) else (row.file.path, row.file.start, row.file.size)
        )
        if row.number >= self._next_checked and not size:
            if not _is_file(path):
                raise _wrong(row, f"no such recording: {os.path.abspath(path)!r}")
            is_first = row.number < _FIRST_ROWS
            self._next_checked = row.number + 1 if is_first else math.ceil(row.number * _SAMPLE_GROWTH)
        try:
            request = self._read_request(fields)
        except ValueError as error:
            raise _wrong(row, str(error)) from error
        place = (self._number, self._part.non_speech, start, size, span.channel)
        return Example(path, text, span.duration_s, span.offset_s or 0.0, (), *place, request, row.number)

    def _text(self, row: ListRow) -> str:
        fields = row.fields or {}
        text = fields.get("text")
        if self._ignores_texts or (self._part.non_speech and text is None):
            return ""
        if text is None:
            held = ", ".join(name for name, value in fields.items() if value is not None) or "none"
            raise _wrong(row, f"no text: a field of this name has to have it; there are {held:.100}")
        if not isinstance(text, str):
            raise _wrong(row, f"text is {text!r:.40}, not a string")
        cleaned = clean_text(text)
        if self._part.non_speech and cleaned:
            raise _wrong(row, f"text {cleaned!r:.40} in a manifest of non_speech")
        return cleaned


def _wrong(row: ListRow, problem: str) -> ManifestError:
    return ManifestError(row.where, row.number, problem)


def _is_file(path: str) -> bool:
    try:
        return os.path.isfile(path)
    except ValueError:  # a null character in it
        return False
