"""Lock of an output folder: one run at a time. The system releases the lock when the process ends.

filelock takes the lock: flock, or on Windows a lock on the file's first byte, which no other process can read meanwhile. So
the holder's name begins behind that byte.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from datetime import datetime
from pathlib import Path

from filelock import lock_descriptor

from fastscribe._system.file_kinds import is_regular, status_of
from fastscribe._system.positioned_read import BINARY, pread
from fastscribe.errors import PlaceInUse, UsageError

_MAX_BYTES = 1000
_HOLDER = re.compile(rb"\0*\n?(process \d+ on [^\n]* since [^\n]*\n)?\0*")


class FolderLock:
    """A lock that is held from construction to close().

    The file stays, because after a removal two processes could lock two files of the same name.

    Args:
        path: The lock file.

    Raises:
        PlaceInUse: Another process holds the lock.
        UsageError: `path` is a file with other content.
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = _open_lock_file(path)
        try:
            self._lock(path)
        except BaseException:
            self.close()
            raise

    def _lock(self, path: Path) -> None:
        try:
            is_free = lock_descriptor(self._descriptor, blocking=False)
        except OSError:  # the file system has no locks; run without one
            is_free = True
        if not is_free:
            raise PlaceInUse(
                f"{path.parent}: another run is writing here ({_holder(self._descriptor)}): wait for it or choose another "
                "output folder"
            )
        if not _HOLDER.fullmatch(pread(self._descriptor, _MAX_BYTES, 0)):
            raise _not_a_lock(path)
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        started = datetime.now().isoformat(" ", "seconds")
        os.write(self._descriptor, f"\nprocess {os.getpid()} on {socket.gethostname()} since {started}\n".encode())

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _holder(descriptor: int) -> str:
    try:
        content = pread(descriptor, _MAX_BYTES, 0)
    except PermissionError:  # Windows, where the first byte is locked
        content = pread(descriptor, _MAX_BYTES, 1)
    return content.decode("utf-8", "replace").strip("\0\n") or "unknown"


def _open_lock_file(path: Path) -> int:
    """Open or create the file. Raise UsageError for anything but a regular file, such as a link."""
    if status_of(path) is not None and not is_regular(path):
        raise _not_a_lock(path)
    flags = os.O_RDWR | os.O_CREAT | BINARY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise _not_a_lock(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_lock(path)
    return descriptor


def _not_a_lock(path: Path) -> UsageError:
    return UsageError(
        f"{path}: is not a lock of fastscribe's, which needs this name: move it away, or choose another output folder"
    )
