"""Opening an ordinary file by a path that may name anything: reading a FIFO would hang, /dev/zero would never end, and the
mere opening of some devices does something.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def safe_open(path: Path) -> BinaryIO:
    """The file, links followed. Raises OSError where it cannot be opened or is not a regular file."""
    _check(path, os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    try:
        _check(path, os.fstat(descriptor))  # it may have been changed for another since
    except OSError:
        file.close()
        raise
    return file


def _check(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def safe_read(path: Path, max_bytes: int) -> bytes:
    """The file's bytes. Raises OSError as safe_open does, ValueError where there are more than `max_bytes`."""
    with safe_open(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > max_bytes:
            raise ValueError(f"refused: {num_bytes} bytes, where at most {max_bytes} make sense")
        return file.read(num_bytes)
