"""Read bytes of an open file at a position.

Windows has no call for that. There a seek and a read follow each other under one lock.
"""

from __future__ import annotations

import io
import os
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BINARY = getattr(os, "O_BINARY", 0)  # for os.open; without it Windows changes line ends
_SEEK_AND_READ = Lock()
_BLOCK_BYTES = 1 << 24  # copied at once without preadv


def pread(descriptor: int, num_bytes: int, position: int) -> bytes:
    """Return at most `num_bytes` from `position` on. Raises OSError."""
    if hasattr(os, "pread"):
        content: bytes = os.pread(descriptor, num_bytes, position)
        return content
    with _SEEK_AND_READ:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.read(descriptor, num_bytes)


def pread_into(descriptor: int, buffer: memoryview, position: int) -> int:
    """Fill the start of the buffer, without a copy where the system can. Return the number of bytes, 0 at the end."""
    if hasattr(os, "preadv"):
        count: int = os.preadv(descriptor, [buffer], position)  # at most 2 GB a call
        return count
    content = pread(descriptor, min(len(buffer), _BLOCK_BYTES), position)
    buffer[: len(content)] = content
    return len(content)


class PositionedFile(io.RawIOBase):
    """A file that can seek, of bytes that can be read from any position. Subclasses say how many there are, and read them."""

    _position = 0

    def num_bytes(self) -> int:
        raise NotImplementedError

    def read_at(self, position: int, buffer: memoryview) -> int:
        """Fill the front of the buffer. Return the number of bytes, 0 at the end."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = max(0, offset + (self.num_bytes() if begin is None else begin))
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self.read_at(self._position, memoryview(buffer).cast("B"))
        self._position += count
        return count
