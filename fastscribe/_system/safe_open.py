"""Open a regular file by an untrusted path: reading a FIFO would hang, /dev/zero would never end, and merely opening some
devices has an effect.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def safe_open(path: Path) -> BinaryIO:
    """Open a regular file; links are followed. Raises OSError if it cannot be opened or is not regular."""
    _check(path, os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    try:
        _check(path, os.fstat(descriptor))  # another file may have taken its name since
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
    """Return the file's bytes. Raises OSError as safe_open does, ValueError for more than `max_bytes`."""
    with safe_open(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > max_bytes:
            raise ValueError(f"refused: {num_bytes} bytes, more than the limit of {max_bytes}")
        return file.read(num_bytes)
