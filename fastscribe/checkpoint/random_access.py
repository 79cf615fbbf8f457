"""Random access to bytes of a file or of memory, for lazily read tensors.

A file is opened once and read through its descriptor, so that replacing the file at its path does not mix two checkpoints.
"""

from __future__ import annotations

import io
import mmap
import os
import sys
import weakref
from typing import IO, Protocol

from fastscribe._system.positioned_read import PositionedFile, pread_into

_POPULATE_READ = 22  # madvise of Linux 5.14: touch pages, and say what cannot be read, which else ends the process
_ALIGNMENT = 8  # bytes; the largest type's


class RandomAccess(Protocol):
    @property
    def num_bytes(self) -> int: ...

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer with the bytes from `offset` on. Raises EOFError if there are too few, and OSError like pread."""


class FileBytes:
    """`num_bytes` of a file from `start` on. The descriptor closes with the last object that uses it."""

    def __init__(self, descriptor: Descriptor, start: int, num_bytes: int) -> None:
        self._descriptor, self._start, self.num_bytes = descriptor, start, num_bytes

    @classmethod
    def of(cls, file: IO[bytes]) -> FileBytes:
        """Return all bytes of an open file. The caller may close the file."""
        return cls(Descriptor(os.dup(file.fileno())), 0, os.fstat(file.fileno()).st_size)

    def part(self, start: int, num_bytes: int) -> FileBytes:
        assert 0 <= start <= start + num_bytes <= self.num_bytes
        return FileBytes(self._descriptor, self._start + start, num_bytes)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        if offset + len(buffer) > self.num_bytes:
            raise EOFError("the file is cut short")
        position = self._start + offset
        while len(buffer):
            count = pread_into(self._descriptor.number, buffer, position)
            if count == 0:
                raise EOFError("the file is cut short")
            buffer, position = buffer[count:], position + count

    def mapped(self, offset: int, num_bytes: int) -> memoryview | None:
        """Return bytes of the file without a copy of them; None where only read_into() can read them, or can say why not.

        Pages that are written become the process's own. Others change with the file, and if it is cut short, the next touch
        ends the process; so nothing should keep this memory.
        """
        position = self._start + offset
        first = position % mmap.ALLOCATIONGRANULARITY
        if sys.platform != "linux" or position % _ALIGNMENT or offset + num_bytes > self.num_bytes:
            return None
        try:
            pages = mmap.mmap(
                self._descriptor.number, first + num_bytes, offset=position - first, access=mmap.ACCESS_COPY
            )
            pages.madvise(_POPULATE_READ)
        except (OSError, ValueError):
            return None
        return memoryview(pages)[first:]


class Descriptor:
    """A file descriptor that closes when nothing refers to this object."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class MemoryBytes:
    def __init__(self, content: bytes) -> None:
        self._content, self.num_bytes = content, len(content)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        part = memoryview(self._content)[offset : offset + len(buffer)]
        if len(part) < len(buffer):
            raise EOFError("the file is cut short")
        buffer[:] = part


def read(source: RandomAccess, offset: int, num_bytes: int) -> bytes:
    content = bytearray(num_bytes)
    source.read_into(memoryview(content), offset)
    return bytes(content)


def as_file(source: RandomAccess) -> IO[bytes]:
    """Return a seekable binary file with these bytes."""
    return io.BufferedReader(_Reader(source))


class _Reader(PositionedFile):
    def __init__(self, source: RandomAccess) -> None:
        self._source = source

    def num_bytes(self) -> int:
        return self._source.num_bytes

    def read_at(self, position: int, buffer: memoryview) -> int:
        count = max(0, min(len(buffer), self._source.num_bytes - position))
        self._source.read_into(buffer[:count], position)
        return count
