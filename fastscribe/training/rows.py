"""The rows of a manifest, or of another list, as examples. audio/list_rows.py reads them, for `transcribe` too.

A wrong row (no JSON, no duration) is an error that names the line. So is a missing recording, which the first rows and a sample
of the others are checked for: on a network file system a look at each of millions takes hours. The loader leaves out those that
are found missing later.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
    """Reads one file of a manifest.

    Args:
        number: of the manifest.
        path: the file.
        read_request: reads what a row asks an attention decoder for.
        find_member: finds recordings in tar archives; None: they are files, or in archives beside the manifest.
        ignores_texts: take every row as one without text, whatever it says.
    """

    def __init__(
        self,
        part: ManifestPart,
        number: int,
        path: str,
        read_request: ReadRequest,
        find_member: FindMember | None = None,
        ignores_texts: bool = False,
    ) -> None:
        self._part, self._number, self._path, self._read_request = part, number, path, read_request
        self._find_member, self._ignores_texts, self._next_checked = find_member, ignores_texts, 1

    def examples(self) -> Iterator[Example]:
        """Yield the rows in order.

        Raises:
            UsageError: the file cannot be read; or, at its end, rows of it are wrong, of which it names the first.
        """
        num_wrong, first_wrong = 0, list[str]()
        try:
            for row in list_rows(self._path, find=self._find_member):
                try:
                    yield self._example(row)
                except FastscribeError as error:
                    num_wrong += 1
                    if num_wrong <= _MAX_NAMED:
                        first_wrong.append(str(error).removeprefix(f"{self._path}: "))
        except (OSError, NotAList) as error:
            raise UsageError(f"{self._path}: {system_problem(error)}") from error
        if first_wrong:
            count = f"; {num_wrong:,} wrong rows in all" if num_wrong > 1 else ""
            raise UsageError(f"{self._path}: {'; '.join(first_wrong)}{count}")

    def _example(self, row: ListRow | BadRow) -> Example:
        if isinstance(row, BadRow):
            raise row.error
        number, fields, span = row.number, row.fields or {}, row.span
        text = self._text(number, fields)
        if span.track:
            problem = f"audio_track {span.track}: training reads the first track: extract this one"
            raise ManifestError(row.where, number, problem)
        if span.duration_s is None:
            raise ManifestError(row.where, number, "no duration (0 is none), which planning batches needs")
        if isinstance(row.file, str) and is_url(row.file):
            raise ManifestError(row.where, number, f"{row.file}: training reads files, not addresses: download it")
        path, start, size = (
            (row.file, 0, 0) if isinstance(row.file, str) else (row.file.path, row.file.start, row.file.size)
        )
        place = (self._number, self._part.non_speech, start, size, span.channel)
        example = Example(path, text, span.duration_s, span.offset_s or 0.0, (), *place, line=number)
        if number >= self._next_checked and not size:
            self._check_exists(number, path)
            is_first = number < _FIRST_ROWS
            self._next_checked = number + 1 if is_first else math.ceil(number * _SAMPLE_GROWTH)
        try:
            request = self._read_request(fields)
        except ValueError as error:
            raise ManifestError(row.where, number, str(error)) from error
        return example if request is None else replace(example, request=request)

    def _text(self, line_number: int, fields: Mapping[str, Any]) -> str:
        text = fields.get("text")
        if self._ignores_texts or (self._part.non_speech and text is None):
            return ""
        if not isinstance(text, str):
            held = ", ".join(name for name, value in fields.items() if value is not None) or "none"
            problem = (
                f"no text: a field of this name has to have it; there are {held:.100}"
                if text is None
                else f"text is {text!r:.40}, not a string"
            )
            raise ManifestError(self._path, line_number, problem)
        cleaned = clean_text(text)
        if self._part.non_speech and cleaned:
            raise ManifestError(self._path, line_number, f"text {cleaned!r:.40} in a manifest of non_speech")
        return cleaned

    def _check_exists(self, line_number: int, path: str) -> None:
        try:
            if os.path.isfile(path):
                return
        except ValueError:  # a null character in it
            pass
        raise ManifestError(self._path, line_number, f"no such recording: {os.path.abspath(path)!r}")
