"""Let libsndfile read a file by its path, or a file object with the file's errors."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

import soundfile

from fastscribe.audio.guarded_file import GuardedFile


class Sound(soundfile.SoundFile):  # type: ignore[misc]  # it has no types
    """A SoundFile whose reads do nothing else.

    SoundFile seeks before and after each read of a file that can seek, to where it is already. Decoders of FLAC and MP3 decode
    again for that.
    """

    def seekable(self) -> bool:
        """Return False, which SoundFile asks before these seeks. seek() works."""
        return False


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
