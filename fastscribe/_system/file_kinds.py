"""What lies under a name: nothing, a file of ours, somebody else's, a link or a device. Only regular files are opened.

Reading a FIFO would hang, /dev/zero would never end, and merely opening some devices has an effect. safe_files.py writes files.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES = 1 << 24
_START_BYTES = 4096


class InTheWay(FileExistsError):
    """A file that this run did not write has the name that an output needs."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(errno.EEXIST, "no run of fastscribe wrote this file: move it away", str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def status_of(path: Path | str) -> os.stat_result | None:
    """Status of whatever has this name, a link itself included; None if nothing does."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_regular(path: Path) -> bool:
    """Return True if the name is a regular file and no link."""
    status = status_of(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def check_regular(*paths: Path) -> None:
    """Raise InTheWay if a folder, link, pipe or device has one of these names."""
    for path in paths:
        if status_of(path) is not None and not is_regular(path):
            raise InTheWay(path)


def is_device(path: Path) -> bool:
    """Return True if the path leads to a pipe, terminal or the like, where nothing can be overwritten."""
    return path.exists() and not path.is_file() and not path.is_dir()


def starts_with(path: Path, start: re.Pattern[bytes]) -> bool:
    """Return True if the file is missing, empty, no regular file, or begins as our own files do."""
    if not path.is_file():
        return True
    with path.open("rb") as file:
        beginning = file.read(_START_BYTES)
        if start.match(beginning) is not None:
            return True
        while beginning and not beginning.strip(b"\0"):  # a power cut leaves zeros
            beginning = file.read(_BLOCK_BYTES)
    return not beginning


def safe_open(path: Path) -> BinaryIO:
    """Open a regular file by an untrusted path; links are followed. Raises OSError if it cannot be opened or is not regular."""
    _check_regular_status(path, os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    try:
        _check_regular_status(path, os.fstat(descriptor))  # another file may have taken its name since
    except OSError:
        file.close()
        raise
    return file


def _check_regular_status(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def safe_read(path: Path, max_bytes: int) -> bytes:
    """Return the file's bytes. Raises OSError as safe_open does, ValueError for more than `max_bytes`."""
    with safe_open(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > max_bytes:
            raise ValueError(f"refused: {num_bytes} bytes, more than the limit of {max_bytes}")
        return file.read(num_bytes)
