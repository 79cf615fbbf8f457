"""Let libsndfile read a file by its path, or a file object.

A C library would print a file object's errors and see the end of the file. So they are kept, for FFmpeg's libraries too, which
read recordings so that are no local files (containers.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, BinaryIO

import soundfile


class Sound(soundfile.SoundFile):  # type: ignore[misc]  # it has no types
    """A SoundFile whose reads do nothing else.

    SoundFile seeks before and after each read of a file that can seek, to where it is already. Decoders of FLAC and MP3 decode
    again for that.
    """

    def seekable(self) -> bool:
        """Return False, which SoundFile asks before these seeks. seek() works."""
        return False


class GuardedFile:
    """A file object whose first error is kept. After it the file looks as if it ended."""

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


class SoundObject(Sound):
    """A Sound of a file object, which it closes. Its methods raise the errors of the file object."""

    def __init__(self, file: BinaryIO) -> None:
        self._guard = GuardedFile(file)
        try:
            super().__init__(self._guard)
        except BaseException:
            file.close()
            self._guard.check()
            raise
        self._guard.check()

    def seek(self, frames: int, whence: int = os.SEEK_SET) -> int:
        try:
            return int(super().seek(frames, whence))
        finally:
            self._guard.check()

    def buffer_read_into(self, buffer: Any, dtype: str) -> int:
        try:
            return int(super().buffer_read_into(buffer, dtype))
        finally:
            self._guard.check()

    def close(self) -> None:
        super().close()
        self._guard.close()
