"""The write-ahead block of an output folder. Neither a kill nor a power cut loses a finished recording.

A recording's files are written under temporary names; its row and its journal line wait in memory. A commit takes all that
wait and

1. writes their rows and journal lines into `.block`, and waits until the block and the temporary files are durable;
2. renames the files and appends the rows, and waits until both are durable;
3. appends the journal lines, and waits until they are durable.

So the journal lists durable results only. If the process or the machine stops in between, the next run repeats steps 2 and 3
of a whole block (`redo`). If the block is torn, no file has been renamed yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from fastscribe._system.file_kinds import InTheWay, check_regular, is_regular, status_of
from fastscribe._system.safe_files import Barrier, open_append, remove, rename, replace, sync, sync_folder, with_path
from fastscribe._system.safe_open import safe_open
from fastscribe.results.entries import rename_line
from fastscribe.results.items import Item, StagedFile
from fastscribe.results.paths import BLOCK_START, Paths

_STORED_FIELDS = 5  # of a file, in the block


@dataclass(frozen=True)
class Block:
    """Items to commit together, with the offsets in rows and journal at which theirs begin."""

    rows_begin: int
    journal_begin: int
    rows: bytes
    lines: bytes
    files: list[StagedFile] = field(default_factory=list)
    obsolete: list[str] = field(default_factory=list)
    moves: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, items: Sequence[Item], rows_begin: int, journal_begin: int) -> Block:
        rows = [item.row for item in items if item.has_new_row]
        return cls(
            rows_begin,
            journal_begin,
            b"".join(rows),
            b"".join(_lines(items, rows_begin)),
            [file for item in items for file in item.files],
            [name for item in items for name in item.obsolete],
            [move for item in items for move in item.moves],
        )

    def to_bytes(self) -> bytes:
        """Return a header line with a digest, followed by rows and lines."""
        content = self.rows + self.lines
        header = {
            "fastscribe_block": 1,
            "rows": [self.rows_begin, len(self.rows)],
            "lines": [self.journal_begin, len(self.lines)],
            "files": [file[:_STORED_FIELDS] for file in self.files],
            "obsolete": self.obsolete,
            "moves": self.moves,
        }
        text = json.dumps(header)
        digest = hashlib.blake2b(text.encode() + content, digest_size=16).hexdigest()
        return f'{text[:-1]}, "digest": "{digest}"}}\n'.encode() + content

    @classmethod
    def from_bytes(cls, stored: bytes) -> Block | None:
        """Parse what `to_bytes` returned. Return None for anything else, and for a torn file."""
        head, _, content = stored.partition(b"\n")
        try:
            header: Mapping[str, Any] = json.loads(head)
            text = head[: head.rindex(b', "digest"')] + b"}"
            if header["digest"] != hashlib.blake2b(text + content, digest_size=16).hexdigest():
                return None
        except (ValueError, TypeError, KeyError):
            return None
        (rows_begin, num_rows), (journal_begin, _) = header["rows"], header["lines"]
        files = [StagedFile(*fields) for fields in header["files"]]
        moves = [(old, new) for old, new in header["moves"]]
        rows, lines = content[:num_rows], content[num_rows:]
        return cls(rows_begin, journal_begin, rows, lines, files, header["obsolete"], moves)

    def temp_paths(self, directory: Path) -> Iterator[Path]:
        return (directory / file.temp for file in self.files)

    def folders(self, directory: Path) -> Iterator[Path]:
        """Yield the folders in which this changes names. May repeat one."""
        yield from {directory, *((directory / file.name).parent for file in self.files)}
        yield from {
            (directory / name).parent for name in (*self.obsolete, *(name for move in self.moves for name in move))
        }


def _lines(items: Sequence[Item], rows_begin: int) -> Iterator[bytes]:
    """Yield the journal lines of items. New rows follow each other from offset `rows_begin`."""
    begin = rows_begin
    for item in items:
        if item.rename is not None:
            yield rename_line(item.rename)
        if item.entry is None:
            continue
        if not item.has_new_row:
            yield item.entry.line()
            continue
        end = begin + len(item.row)
        yield item.entry._replace(begin=begin, end=end).line()
        begin = end


class Appender:
    """A file that only this process appends to, in whole lines."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self.path = file, path
        self.end = file.seek(0, os.SEEK_END)
        self._identity = _identity(os.fstat(file.fileno()))

    def append(self, lines: bytes) -> None:
        """Append lines. If the disk is full, truncate the file to whole lines.

        Raises:
            OSError: The lines cannot be written, or another process changed the file (see `check`).
        """
        self.check()
        try:
            written = self._file.write(lines) or 0
            while written < len(lines):
                written += self._file.write(lines[written:]) or 0
        except OSError as error:
            self._file.truncate(self.end)
            raise with_path(error, self.path) from error
        except BaseException:
            self._file.truncate(self.end)
            raise
        self.end += len(lines)

    def check(self) -> None:
        """Raise OSError if another file has the name now, or if the size changed: appended lines would be lost."""
        status = status_of(self.path)
        if status is None or self._identity != _identity(status) or status.st_size != self.end:
            raise OSError(None, "it was changed by someone else while the run was writing to it", str(self.path))

    def sync(self) -> None:
        try:
            sync(self._file)
        except OSError as error:
            raise with_path(error, self.path) from error

    def close(self) -> None:
        self._file.close()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def commit(block: Block, paths: Paths, barrier: Barrier, rows: Appender | None, journal: Appender) -> None:
    """Carry out the three steps. Raise OSError with the file's name."""
    try:
        for file in (rows, journal):
            if file is not None:
                file.check()
        _write_block(paths.block, block.to_bytes())
        _wait_for_block(block, paths, barrier)
    except OSError:
        discard_temps(paths.directory, block.files)
        raise
    _complete(block, paths, barrier, rows, journal)


def _wait_for_block(block: Block, paths: Paths, barrier: Barrier) -> None:
    barrier.wait(chain([paths.block], block.temp_paths(paths.directory)), block.folders(paths.directory))


def _complete(block: Block, paths: Paths, barrier: Barrier, rows: Appender | None, journal: Appender) -> None:
    """Carry out steps 2 and 3."""
    _rename_files(block, paths.directory)
    if rows is not None and block.rows:
        rows.append(block.rows)
    barrier.wait([rows.path] if rows is not None else [], block.folders(paths.directory))
    journal.append(block.lines)
    journal.sync()


def _write_block(path: Path, content: bytes) -> None:
    """Write the block in place: the journal has the last block, and a torn block is ignored."""
    check_regular(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
            file.write(content)
    except OSError as error:
        raise with_path(error, path) from error


def _rename_files(block: Block, directory: Path) -> None:
    """Rename and remove files. Idempotent, so that it can be repeated after a kill."""
    for old, new in block.moves:
        if is_regular(directory / old):
            if status_of(directory / new) is not None:
                raise InTheWay(directory / new)
            rename(directory / old, directory / new)
    for file in block.files:
        path, temp = os.path.join(directory, file.name), os.path.join(directory, file.temp)
        status = status_of(path)
        if status is not None and not (file.is_replacing and stat.S_ISREG(status.st_mode)):
            if status_of(temp) is None:  # an earlier attempt renamed it
                continue
            raise InTheWay(path)
        with suppress(FileNotFoundError) if status is not None else nullcontext():
            replace(temp, path)
    for name in block.obsolete:
        if is_regular(directory / name):
            remove(directory / name)


def discard_temps(directory: Path, files: Iterable[StagedFile]) -> None:
    for file in files:
        with suppress(OSError):
            remove(directory / file.temp)


# --- after a kill or a power cut -------------------------------------------------------------------------------------


def redo(paths: Paths) -> None:
    """Complete or undo the block that the last run had begun when it stopped. Raises OSError, InTheWay.

    The block is completed if it is whole, its files exist, and rows and journal end where it begins or within it.
    """
    block = _read_block(paths.block)
    if block is not None and not _is_in_journal(block, paths.journal):
        rows_fit = not block.rows or _fits(paths.rows, block.rows_begin, block.rows)
        if rows_fit and _fits(paths.journal, block.journal_begin, block.lines) and _has_files(block, paths.directory):
            _redo_block(block, paths)
        else:
            _undo(block, paths.directory)
    if status_of(paths.block) is not None:
        remove(paths.block)
        sync_folder(paths.directory)


def _read_block(path: Path) -> Block | None:
    if not is_regular(path):
        return None
    with safe_open(path) as file:
        stored = file.read()
    return Block.from_bytes(stored) if stored.startswith(BLOCK_START) else None


def _tail(path: Path, begin: int, size: int) -> bytes | None:
    """Return up to `size` + 1 bytes from offset `begin`; None if the file is shorter than `begin`."""
    status = status_of(path)
    if status is None:
        return b"" if begin == 0 else None
    if status.st_size < begin:
        return None
    with safe_open(path) as file:
        file.seek(begin)
        return file.read(size + 1)


def _is_in_journal(block: Block, path: Path) -> bool:
    tail = _tail(path, block.journal_begin, len(block.lines))
    return tail is not None and tail[: len(block.lines)] == block.lines


def _fits(path: Path, begin: int, added: bytes) -> bool:
    """Return True if nothing but a beginning of `added` follows offset `begin`. A power cut may leave zeros in it."""
    tail = _tail(path, begin, len(added))
    if tail is None or len(tail) > len(added):
        return False
    written = tail.rstrip(b"\0")
    return added.startswith(written)


def _has_files(block: Block, directory: Path) -> bool:
    """Return True if each file is whole, under its temporary name or, once renamed, under its own."""
    for file in block.files:
        temp = directory / file.temp
        if not _matches(temp if status_of(temp) is not None else directory / file.name, file):
            return False
    return True


def _matches(path: Path, file: StagedFile) -> bool:
    if not is_regular(path) or os.lstat(path).st_size != file.size:
        return False
    with safe_open(path) as opened:
        return crc32(opened.read()) == file.crc


def _redo_block(block: Block, paths: Paths) -> None:
    """Carry out steps 2 and 3 again. The block stays until they are done."""
    with closing(Barrier()) as barrier, ExitStack() as files:
        for folder in block.folders(paths.directory):
            barrier.watch(folder)
        _wait_for_block(block, paths, barrier)
        rows = files.enter_context(closing(_reopened(paths.rows, block.rows_begin))) if block.rows else None
        journal = files.enter_context(closing(_reopened(paths.journal, block.journal_begin)))
        _complete(block, paths, barrier, rows, journal)


def _reopened(path: Path, end: int) -> Appender:
    file = open_append(path)
    file.truncate(end)
    return Appender(file, path)


def _undo(block: Block, directory: Path) -> None:
    """Remove the block's files: temporary ones, and unchanged renamed ones."""
    for file in block.files:
        path, temp = directory / file.name, directory / file.temp
        if is_regular(temp):
            remove(temp)
        elif not file.is_replacing and _matches(path, file):
            remove(path)
