"""The end of a process when its parent ends, however that ended and whatever the process does then."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from threading import Thread

_INTERVAL_S = 1.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """End this process when its parent ends. Call this first; stdin is a pipe of the parent.

    Linux ends it even in a call that keeps Python's lock. It does so when the thread ends that started this process.
    """
    if os.name == "nt":  # the end of the pipe has to do
        return
    parent = os.getppid()
    if not _is_ended_by_kernel():
        Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    pipe = select.poll()
    pipe.register(0, 0)
    if pipe.poll(0):  # its other end is closed: the parent has ended before the kernel knew
        os._exit(0)


def _is_ended_by_kernel() -> bool:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library without it
            return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_INTERVAL_S)
    os._exit(0)
