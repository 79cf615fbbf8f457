"""The rows of a manifest file: NeMo's (audio_filepath, duration, text, optionally offset), or Lhotse's cuts.

A wrong row (no JSON, no duration) is an error that names the line. So is a missing recording, which the first rows and a sample
of the others are checked for: on a network file system a look at each of millions takes hours. The loader leaves out those that
are found missing later.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, cast

from fastscribe._system.urls import is_url
from fastscribe.audio.failures import system_problem
from fastscribe.audio.json_lines import NotJsonLines, numbered_rows
from fastscribe.audio.manifest import parse_row, row_span
from fastscribe.errors import ManifestError, UsageError
from fastscribe.training.archives import Member
from fastscribe.training.bpe import clean_text
from fastscribe.training.corpus import Example, ManifestPart, Request
from fastscribe.training.cuts import fields_of_cut, is_cut, read_cut

# What a row asks an attention decoder for; None for other models. Raises ValueError that says what is wrong with the row.
ReadRequest = Callable[[Mapping[str, Any]], Request | None]
FindMember = Callable[[str, int | None], Member]  # of a name and a shard_id; raises KeyError that says what is wrong
_FIRST_ROWS, _SAMPLE_GROWTH = 100, 1.01  # rows whose recording has to exist: the first, then each 1 % further down


class RowReader:
    """Reads one file of a manifest.

    Args:
        number: of the manifest.
        path: the file; compressed if its name ends with .gz.
        read_request: reads what a row asks an attention decoder for.
        find_member: finds recordings in tar archives; None: they are files.
        in_shar: the recordings of a Shar manifest by the id of their cut.
        ignores_texts: take every row as one without text, whatever it says.
    """

    def __init__(
        self,
        part: ManifestPart,
        number: int,
        path: str,
        read_request: ReadRequest,
        find_member: FindMember | None = None,
        in_shar: Mapping[str, Member] | None = None,
        ignores_texts: bool = False,
    ) -> None:
        self._part, self._number, self._path, self._read_request = part, number, path, read_request
        self._find_member, self._in_shar, self._ignores_texts = find_member, in_shar, ignores_texts
        self._folder = os.path.dirname(path)

    def examples(self) -> Iterator[Example]:
        """Yield the rows in order. Raises UsageError for the file, ManifestError for a row."""
        next_checked = 1
        try:
            with self._open() as lines:
                for line_number, line in numbered_rows(lines):
                    example = self._example(line_number, line)
                    if line_number >= next_checked and not example.num_bytes:
                        self._check_exists(line_number, example.path)
                        is_first = line_number < _FIRST_ROWS
                        next_checked = line_number + 1 if is_first else math.ceil(line_number * _SAMPLE_GROWTH)
                    yield example
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{self._path}: damaged or cut off: not all of it can be unpacked") from error
        except OSError as error:
            raise UsageError(f"{self._path}: {system_problem(error)}") from error
        except NotJsonLines as error:
            raise UsageError(f"{self._path}: {error}") from None

    def _open(self) -> BinaryIO:
        if self._path.endswith(".gz"):
            return cast(BinaryIO, gzip.open(self._path, "rb"))
        return open(self._path, "rb")

    def _example(self, line_number: int, line: bytes) -> Example:
        row = parse_row(self._path, line_number, line)
        is_of_lhotse = is_cut(row)
        example = self._of_cut(line_number, row) if is_of_lhotse else self._of_row(line_number, row)
        try:
            request = self._read_request(fields_of_cut(row) if is_of_lhotse else row)
        except ValueError as error:
            raise ManifestError(self._path, line_number, str(error)) from error
        return example if request is None else replace(example, request=request)

    def _of_row(self, line_number: int, row: Mapping[str, Any]) -> Example:
        span = row_span(self._path, line_number, row)
        text = self._text(line_number, row.get("text"))
        if span.track:
            problem = f"audio_track {span.track}: training reads the first track: extract this one"
            raise ManifestError(self._path, line_number, problem)
        if span.duration_s is None:
            raise ManifestError(self._path, line_number, "no duration (0 is none), which planning batches needs")
        member = None if self._find_member is None else self._member(line_number, span.path, row, self._find_member)
        return self._made(line_number, span.path, text, span.duration_s, span.offset_s or 0.0, member)

    def _of_cut(self, line_number: int, row: Mapping[str, Any]) -> Example:
        if self._find_member is not None:
            raise ManifestError(self._path, line_number, "a cut names its recording itself: leave tar out")
        cut, member = read_cut(self._path, line_number, row), None
        text = self._text(line_number, cut.text)
        if self._in_shar is not None:
            member = self._in_shar.get(str(row["id"]))
            if member is None:
                raise ManifestError(self._path, line_number, f"no recording of cut {row['id']!r} in the tar beside it")
            if not member.size:
                problem = f"the recording of cut {row['id']!r} in {member.path} is empty (0 bytes)"
                raise ManifestError(self._path, line_number, problem)
        elif not cut.path:
            raise ManifestError(self._path, line_number, "a cut of a Shar folder: give the folder, not its manifest")
        return self._made(line_number, cut.path, text, cut.duration_s, cut.offset_s, member, cut.channel)

    def _made(
        self,
        line_number: int,
        path: str,
        text: str,
        duration_s: float,
        offset_s: float,
        member: Member | None,
        channel: int | None = None,
    ) -> Example:
        non_speech = self._part.non_speech
        if member is not None:
            file, start, size = member
            return Example(file, text, duration_s, offset_s, (), self._number, non_speech, start, size, channel)
        if is_url(path):
            raise ManifestError(self._path, line_number, f"{path}: training reads files, not addresses: download it")
        path = os.path.join(self._folder, path)
        return Example(path, text, duration_s, offset_s, (), self._number, non_speech, channel=channel)

    def _text(self, line_number: int, text: Any) -> str:
        if self._ignores_texts or (self._part.non_speech and text is None):
            return ""
        if not isinstance(text, str):
            problem = "no text" if text is None else f"text is {text!r:.40}, not a string"
            raise ManifestError(self._path, line_number, problem)
        cleaned = clean_text(text)
        if self._part.non_speech and cleaned:
            raise ManifestError(self._path, line_number, f"text {cleaned!r:.40} in a manifest of non_speech")
        return cleaned

    def _member(self, line_number: int, name: str, row: Mapping[str, Any], find: FindMember) -> Member:
        shard = row.get("shard_id")
        if shard is not None and type(shard) is not int:
            raise ManifestError(self._path, line_number, f"shard_id is {shard!r:.40}, not a number")
        try:
            return find(name, shard)
        except KeyError as error:
            raise ManifestError(self._path, line_number, str(error.args[0])) from error

    def _check_exists(self, line_number: int, path: str) -> None:
        try:
            if os.path.isfile(path):
                return
        except ValueError:  # a null character in it
            pass
        raise ManifestError(self._path, line_number, f"no such recording: {path!r}")
