"""One run at a time in an output folder. The system lets go of the lock when its process ends, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
from datetime import datetime
from pathlib import Path

from fastscribe.errors import UsageError

_MAX_BYTES = 1000
_HOLDER = re.compile(rb"\0*(process \d+ on [^\n]* since [^\n]*\n)?\0*")


class FolderLock:
    """Held from construction to close(). Raises UsageError where another process holds it, or `path` is not our lock.

    The file stays behind: deleting it would let two processes lock two files of the same name.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = _open_lock_file(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 1000).decode("utf-8", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise UsageError(f"{path.parent}: another run is writing here ({holder}): wait for it or choose another "
                             "output folder") from None  # fmt: skip
        except OSError:  # a file system without locks: better without one than not at all
            pass
        os.ftruncate(self._descriptor, 0)
        started = datetime.now().isoformat(" ", "seconds")
        os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()} since {started}\n".encode(), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open_lock_file(path: Path) -> int:
    """The file, made if need be. Raises UsageError for a link, and for a file with anything but a lock's content."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise _not_a_lock(path) from None
        raise
    is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    if not is_regular or not _HOLDER.fullmatch(os.pread(descriptor, _MAX_BYTES, 0)):
        os.close(descriptor)
        raise _not_a_lock(path)
    return descriptor


def _not_a_lock(path: Path) -> UsageError:
    return UsageError(
        f"{path}: is not a lock of fastscribe's, which needs this name: move it away, or choose another output folder"
    )
