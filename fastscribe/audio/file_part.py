"""A recording that is a part of a file, such as a member of a tar archive, as a medium (media.py)."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

from fastscribe._system.positioned_read import PositionedFile

_SMALL_BYTES = 16 << 20  # read at once


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
