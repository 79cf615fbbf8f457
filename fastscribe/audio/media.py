"""Where a recording's bytes are: a local file or a part of one, encoded bytes in memory, a caller's file object. URLs
are in remote_file.py.
Samples in memory are not bytes (types.Samples).

A local file is named by its path in a Source, because there are millions. libsndfile and FFmpeg open local files by
themselves; they read the other media through open(). Every medium reports its problems as an OSError of one line, which the
probe and the readers turn into an AudioError.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, BinaryIO, ClassVar, TypeAlias, cast, overload
from weakref import WeakValueDictionary

from fastscribe._system.positioned_read import PositionedFile
from fastscribe.types import File, Medium, Samples

_FIND_BYTES = 1 << 16  # searched at a time
_file_locks: WeakValueDictionary[int, Lock] = WeakValueDictionary()  # by id of a caller's file
_locks_lock = Lock()
_SMALL_BYTES = 16 << 20  # read at once


class LocalFile:
    """A file that has a path."""

    def __init__(self, path: str) -> None:
        self.local_path: str | None = path

    @property
    def identity(self) -> str:
        return os.path.abspath(self.local_path or "")

    def version(self) -> str:
        status = os.stat(self.local_path or "")
        return f"{status.st_size} {status.st_mtime_ns}"

    def num_bytes(self) -> int:
        status = os.stat(self.local_path or "")
        if stat.S_ISDIR(status.st_mode):
            raise OSError("is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            raise OSError("is a pipe or device, not a file; a pipe goes to stdin: fastscribe transcribe - < PIPE")
        return status.st_size

    def open(self) -> BinaryIO:
        return cast(BinaryIO, open(self.local_path or "", "rb", buffering=0))


class EncodedBytes:
    """A whole encoded file in memory.

    Args:
        content: The file.
        identity: Names it in a journal.
    """

    local_path: str | None = None

    def __init__(self, content: bytes, identity: str) -> None:
        self.content, self.identity = content, identity

    @cached_property
    def _digest(self) -> str:
        return hashlib.blake2b(self.content, digest_size=16).hexdigest()

    def version(self) -> str:
        return self._digest

    def num_bytes(self) -> int:
        return len(self.content)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content)  # shares the memory


class RemoteMedium:
    """A recording at a URL (remote_file.py), which tells one from others without the code that talks to stores."""

    def share(self) -> None:
        """Let a copy of this file that another process sends back find what is known of the object, and its bytes."""
        raise NotImplementedError

    def drop(self) -> None:
        """Free the bytes once no other recording needs them. They are fetched again if they are read again."""
        raise NotImplementedError


class FileObject:
    """A caller's file that can seek: all of it, wherever it stands. Each open() has a position of its own.

    The caller may not use the file before the recording has its result. To close it is to cancel the recording: what is read
    after that is an OSError, in any thread.

    Args:
        file: The file, opened in binary mode.
        identity: Names it in a journal.
    """

    local_path: str | None = None

    def __init__(self, file: BinaryIO, identity: str) -> None:
        self._file, self.identity = file, identity
        self._lock = _lock_of(file)

    def version(self) -> str:
        return str(self.num_bytes())

    def num_bytes(self) -> int:
        with self._position(0, os.SEEK_END) as size:
            return size

    def held_memory(self) -> tuple[int, int]:
        """See held_memory()."""
        with suppress(ValueError), self._lock:  # of one that is closed, perhaps a moment ago
            if isinstance(self._file, io.BytesIO):
                return id(self._file), io.BytesIO.seek(self._file, 0, os.SEEK_END)
        return id(self._file), 0

    def read_at(self, position: int, num_bytes: int) -> bytes:
        """Return the bytes from a position on, fewer at the end."""
        with self._position(position):
            return self._file.read(num_bytes)

    @contextmanager
    def _position(self, offset: int, whence: int = os.SEEK_SET) -> Iterator[int]:
        """Move the caller's file. Raises OSError for a closed one too."""
        try:
            with self._lock:
                yield self._file.seek(offset, whence)
        except ValueError as error:  # Python's for a closed file
            raise OSError(str(error)) from error

    def open(self) -> BinaryIO:
        return io.BufferedReader(_View(self))


def _lock_of(file: BinaryIO) -> Lock:
    """Return the one lock of a caller's file, which may be given several times. Each FileObject keeps both alive."""
    with _locks_lock:
        return _file_locks.setdefault(id(file), Lock())


class _View(PositionedFile):
    """A FileObject with a position."""

    def __init__(self, medium: FileObject) -> None:
        self._medium = medium

    def num_bytes(self) -> int:
        return self._medium.num_bytes()

    def read_at(self, position: int, buffer: memoryview) -> int:
        content = self._medium.read_at(position, len(buffer))
        buffer[: len(content)] = content
        return len(content)


def medium_of(file: str | Medium) -> Medium:
    return LocalFile(file) if isinstance(file, str) else file


def forget_media() -> None:
    """Free what is kept of the media of a run that has ended."""
    if (remote_files := sys.modules.get("fastscribe.audio.remote_file")) is not None:
        remote_files.forget_objects()


def is_held(file: File) -> bool:
    """Return True if the caller's data or objects would stay in memory with `file`."""
    return isinstance(file, (Samples, EncodedBytes, FileObject))


def held_memory(file: File) -> tuple[int, int]:
    """Return which data of the caller's `file` keeps alive, as an id, and the bytes of memory; (0, 0) for none."""
    if isinstance(file, Samples):
        return id(file.samples_SC), file.samples_SC.nbytes
    if isinstance(file, EncodedBytes):
        return id(file.content), len(file.content)
    return file.held_memory() if isinstance(file, FileObject) else (0, 0)


class LazyBytes:
    """The bytes of an open file, read as they are asked for: as much of a bytes object as header readers use."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file, file.seek(0, os.SEEK_END)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytes: ...
    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, slice):
            begin, end, _ = key.indices(self._size)
            return self._read(begin, end)
        if not 0 <= key < self._size:
            raise IndexError(key)
        return self._read(key, key + 1)[0]

    def find(self, part: bytes, begin: int = 0, end: int | None = None) -> int:
        """Return the first position of a part in a range of bytes; -1 if there is none."""
        end = self._size if end is None else min(end, self._size)
        while begin + len(part) <= end:
            piece = self._read(begin, min(end, begin + _FIND_BYTES))
            if (at := piece.find(part)) >= 0:
                return begin + at
            begin += len(piece) - len(part) + 1
        return -1

    def _read(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        return self._file.read(max(0, end - begin))


Content: TypeAlias = bytes | mmap.mmap | LazyBytes


@contextmanager
def whole_content(file: BinaryIO) -> Iterator[Content]:
    """Give all bytes of an open file, of one that is not in memory without reading them."""
    if isinstance(file, io.BytesIO):
        yield file.getvalue()  # shares the memory
        return
    try:
        descriptor = file.fileno()
    except OSError:
        yield LazyBytes(file)
    else:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            yield content


@dataclass(frozen=True)
class FilePart:
    """The bytes [start, start + size) of a local file."""

    path: str
    start: int
    size: int
    local_path: ClassVar[str | None] = None

    @property
    def identity(self) -> str:
        return f"{os.path.abspath(self.path)}@{self.start}+{self.size}"

    def version(self) -> str:
        status = os.stat(self.path)
        return f"{status.st_size} {status.st_mtime_ns}"

    def num_bytes(self) -> int:
        return self.size

    def open(self) -> BinaryIO:
        """Return a file that can seek; a small part is in memory."""
        if os.stat(self.path).st_size < self.start + self.size:
            raise OSError(f"{self.path} ends before its byte {self.start + self.size}: it has changed or is cut off")
        if self.size > _SMALL_BYTES:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - the range closes it
            return io.BufferedReader(FileRange(file, self.start, self.size))
        with open(self.path, "rb") as whole:  # buffered: a read of a network's file may take several calls
            whole.seek(self.start)
            return io.BytesIO(whole.read(self.size))


class GuardedFile:
    """A file object whose first error is kept. After it the file looks as if it ended.

    A C library would print the error and see the end of the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._error: Exception | None = None

    def check(self) -> None:
        """Raise the error, if there was one."""
        if self._error is not None:
            raise self._error

    def read(self, num_bytes: int = -1) -> bytes:
        content: bytes = self._attempt(b"", self.file.read, num_bytes)
        return content

    def readinto(self, buffer: Any) -> int:
        return int(self._attempt(0, self.file.readinto, buffer))  # type: ignore[attr-defined]  # every medium's file has it

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._attempt(0, self.file.seek, offset, whence))

    def _attempt(self, otherwise: Any, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._error is None:
            try:
                return call(*arguments)
            except Exception as error:  # any that a caller's object raises
                self._error = error
        return otherwise

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


class FileRange(PositionedFile):
    """A range of an open file, as a file. It closes the file.

    Args:
        file: A file that can seek.
        start: Offset of the first byte.
        size: In bytes.
    """

    def __init__(self, file: io.RawIOBase | BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size = file, start, size

    def num_bytes(self) -> int:
        return self._size

    def read_at(self, position: int, buffer: memoryview) -> int:
        self._file.seek(self._start + position)
        content = self._file.read(max(0, min(len(buffer), self._size - position))) or b""
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()
