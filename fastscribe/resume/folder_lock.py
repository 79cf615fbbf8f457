"""One run at a time in an output folder. The system lets go of the lock when its process ends, however that ends."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import datetime
from pathlib import Path

from fastscribe.errors import UsageError


class FolderLock:
    """Held from construction to close(). Raises UsageError where another process holds it.

    The file stays behind: deleting it would let two processes lock two files of the same name.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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
