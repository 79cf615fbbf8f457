"""What is finished in an output folder: one line an input in `journal.jsonl`, written after the input's outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import FileIO
from typing import Any

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.resume.entries import (
    ENTRY,
    HEADER_KEY,
    HEADER_START,
    VERSION,
    Earlier,
    Entry,
    Paths,
    first_line,
    read_header,
)
from fastscribe.resume.repair import repair, sound_entries
from fastscribe.resume.tidy import sync
from fastscribe.unfinished import part_of


class Journal:
    """Appends entries. Made by `begin` or `resume`, below."""

    def __init__(self, paths: Paths, file: FileIO, earlier: Earlier) -> None:
        self.paths = paths
        self.earlier = earlier
        self._file = Appender(file)

    def append(self, entry: Entry) -> None:
        self._file.append(entry.line())

    def close(self) -> None:
        self._file.close()


class Appender:
    """A file that only this process appends to, a whole line at a time."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.end = file.seek(0, os.SEEK_END)
        self._identity = _identity(os.fstat(file.fileno()))

    def append(self, line: bytes) -> None:
        """A line that did not fit on the disk is taken back, so that the next one starts on a line of its own.

        Raises OSError, too, where the file is no longer there under its name, or not as long as it was left: writing on
        would lose everything.
        """
        status = os.stat(self._file.name)
        if self._identity != _identity(status) or status.st_size != self.end:
            raise OSError(None, "it was changed by someone else while the run was writing to it", self._file.name)
        try:
            written = self._file.write(line) or 0
            while written < len(line):
                written += self._file.write(line[written:]) or 0
        except BaseException:
            self.take_back(self.end)
            raise
        self.end += len(line)

    def take_back(self, end: int) -> None:
        self._file.truncate(end)
        self.end = end

    def close(self) -> None:
        """With all of it on the disk."""
        try:
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def begin(paths: Paths, fingerprint: Mapping[str, Any]) -> Journal:
    """An empty journal; there must be none."""
    header = json.dumps({HEADER_KEY: VERSION, "fingerprint": fingerprint}, ensure_ascii=False) + "\n"
    part = part_of(paths.journal)
    with part.open("w", encoding="utf-8") as file:
        file.write(header)
        sync(file)
    os.replace(part, paths.journal)
    return Journal(paths, paths.journal.open("ab", buffering=0), Earlier(np.zeros(0, ENTRY)))


def resume(paths: Paths, fingerprint: Mapping[str, Any]) -> Journal:
    """The journal that is there, repaired, after finish_tidying. Raises UsageError where it is another kind of run's."""
    _check_fingerprint(paths, fingerprint)
    entries = repair(paths)
    return Journal(paths, paths.journal.open("ab", buffering=0), Earlier(entries))


def peek(paths: Paths, fingerprint: Mapping[str, Any]) -> Earlier:
    """What is finished, as `resume` would find it, from files that are left as they are."""
    _check_fingerprint(paths, fingerprint)
    entries, num_kept = sound_entries(paths)
    return Earlier(entries[:num_kept])


def has_begun(paths: Paths) -> bool:
    """There is a journal. One whose first line a power failure left half written, or empty, holds nothing and is none."""
    if not paths.journal.exists():
        return False
    line = first_line(paths.journal)
    start = line.rstrip(b"\0")
    return line.endswith(b"\n") or not (start.startswith(HEADER_START) or HEADER_START.startswith(start))


def _check_fingerprint(paths: Paths, fingerprint: Mapping[str, Any]) -> None:
    before, now = read_header(paths.journal), json.loads(json.dumps(fingerprint))
    if before == now:
        return
    names = [name for name in [*before, *(set(now) - set(before))] if _shown(before, name) != _shown(now, name)]
    differences = "; ".join(f"{name} was {_shown(before, name)}, is {_shown(now, name)}" for name in names)
    raise UsageError(
        f"{paths.directory}: holds results of a run with other settings ({differences}): use another folder, or "
        "--overwrite to start over"
    )


def _shown(fingerprint: Mapping[str, Any], name: str) -> str:
    return json.dumps(fingerprint[name], ensure_ascii=False) if name in fingerprint else "not there"
