"""Where results go: a folder with a file a format, or a stream. The only output code that touches files.

A folder holds `transcripts.jsonl`, which grows by a row a file, and for each other format a file an input, whole or not
there at all. The row is written after an input's other files, so whoever has the row has the rest. Nothing here catches
a full disk: the OSError is the run loop's, and writing the same input again afterwards is allowed.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path
from typing import TextIO

from fastscribe.output_names import OutputNames, Rename
from fastscribe.types import Failure, Transcript
from fastscribe.writers import render

ROWS_NAME = "transcripts.jsonl"
_RESERVED = {"json": "report"}  # report.json is the run's own


class FolderOutput:
    """Writes results below `directory`, which is made if need be.

    A `transcripts.jsonl` from an earlier run is moved out of the way, never written over.
    """

    def __init__(self, directory: Path, formats: tuple[str, ...], tokens: bool = False) -> None:
        self._directory = Path(directory)
        self._formats = tuple(format for format in dict.fromkeys(formats) if format != "jsonl")
        self._tokens = tokens
        self._names = OutputNames(_RESERVED[format] for format in self._formats if format in _RESERVED)
        self._unwritten: dict[str, str] = {}  # id -> name, of inputs whose writing failed and may be tried again
        self._textless: set[str] = set()  # names whose input failed: a file there is an earlier run's
        self._directory.mkdir(parents=True, exist_ok=True)
        self._rows: _Rows | None = None
        if "jsonl" in formats:
            rows_path = self._directory / ROWS_NAME
            _keep_previous(rows_path)
            self._rows = _Rows(rows_path.open("ab", buffering=0))

    def __enter__(self) -> FolderOutput:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()

    def _claim(self, id: str) -> str:
        """The name of this input's files below the folder, without a format's extension. May rename earlier files."""
        if not self._formats:
            return ""
        name, renames = self._names.claim(id)
        for rename in renames:
            self._rename(rename)
        return name

    def write(self, result: Transcript | Failure) -> None:
        """All formats of one result. On return they are with the operating system. Raises OSError where that fails."""
        id = result.id if isinstance(result, Failure) else result.audio.id
        name = self._unwritten.pop(id, None) or self._claim(id)
        try:
            self._write_files(name, result)
            if self._rows is not None:
                self._rows.append(render(result, "jsonl", self._tokens).encode())
        except OSError:
            self._unwritten[id] = name
            raise

    def _write_files(self, name: str, result: Transcript | Failure) -> None:
        if self._formats:
            (self._textless.add if isinstance(result, Failure) else self._textless.discard)(name)
        for format in self._formats:
            text = render(result, format, self._tokens)
            if text or isinstance(result, Transcript):
                _write_whole(self._path(name, format), text.encode())

    def _rename(self, rename: Rename) -> None:
        for format in self._formats:
            old = self._path(rename.old, format)
            if old.exists() and (format == "json" or rename.old not in self._textless):
                old.replace(self._path(rename.new, format))
        if rename.old in self._textless:
            self._textless.remove(rename.old)
            self._textless.add(rename.new)

    def _path(self, name: str, format: str) -> Path:
        return self._directory / f"{name}.{format}"


class StreamOutput:
    """Writes results in one format to a text stream such as stdout: UTF-8 whatever the locale, flushed each time.

    BrokenPipeError is left to the caller, and so is the stream: it is not closed.
    """

    def __init__(self, stream: TextIO, format: str = "jsonl", tokens: bool = False) -> None:
        self._stream = stream
        self._format = format
        self._tokens = tokens

    def __enter__(self) -> StreamOutput:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held back, so nothing is left to do."""

    def write(self, result: Transcript | Failure) -> None:
        text = render(result, self._format, self._tokens)
        raw = getattr(self._stream, "buffer", None)  # StringIO has none
        if raw is None:
            self._stream.write(text)
        else:
            self._stream.flush()
            raw.write(text.encode())
            raw.flush()
        self._stream.flush()


def _write_whole(path: Path, content: bytes) -> None:
    """Under a temporary name in the same folder first: a reader sees the old file, the new one, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class _Rows:
    """A file that only this process appends to, a whole row at a time."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._end = file.seek(0, os.SEEK_END)

    def append(self, row: bytes) -> None:
        """A row that did not fit on the disk is taken back, so that the next one starts on a line of its own."""
        try:
            written = self._file.write(row) or 0
            while written < len(row):
                written += self._file.write(row[written:]) or 0
        except BaseException:
            self._file.truncate(self._end)
            raise
        self._end += len(row)

    def close(self) -> None:
        self._file.close()


def _keep_previous(path: Path) -> None:
    """Moves a file that has content to the first free name of x.previous.jsonl, x.previous.2.jsonl .."""
    if not path.exists() or path.stat().st_size == 0:
        return
    number, previous = 1, path.with_suffix(".previous" + path.suffix)
    while previous.exists():
        number += 1
        previous = path.with_suffix(f".previous.{number}{path.suffix}")
    path.rename(previous)
