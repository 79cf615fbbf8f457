"""Memory in huge pages, for a process that forks often.

A fork copies the table of its parent's pages, and its end takes it apart again: 40 ms for a process that has imported torch,
which is more than most commands take. With huge pages it is 15 ms.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1
_HUGE = 2 << 20


def collapse() -> None:
    """Put the memory that this process has allocated into huge pages, where the system can."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, kind, *_, name = f"{line} -".split(maxsplit=5)
        if kind == "rw-p" and name.split()[0] in ("-", "[heap]"):
            begin, end = (int(one, 16) // _HUGE * _HUGE for one in span.split("-"))
            if begin + _HUGE < end:
                advise(begin + _HUGE, end - begin - _HUGE, _COLLAPSE)  # what it refuses stays as it is
