"""Settings of a process that uses torch: OpenMP's spinning, the memory that malloc keeps, the garbage collector at the start.

Between two parallel regions OpenMP's threads wait by spinning, by default for milliseconds. A decoder is thousands of
small operations, so on a busy machine the spinning takes the cores from the thread that all the others wait for: the sample
recordings took 0.4 s on an idle two-core machine and 4 to 16 s beside one busy process. With a short spin it is 0.4 s and
about 1 s (docs/log.md, 2026-11-21).

An operation on a batch allocates tens of megabytes. By default glibc maps such blocks anew each time and unmaps them when
freed, and the system clears every page at its first touch: 200,000 page faults a pass in the 0.6B shape, a tenth of the
processor's time (docs/log.md). If malloc keeps freed memory, the same few hundred megabytes serve every batch. The peak is the
same.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SPINS = "1000"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_THRESHOLD_BYTES = 2**30
_START_FIELD = 22  # of /proc/self/stat, in clock ticks since the system's start


def limit_openmp_spin() -> None:
    """Set the spin count. No effect if the user has chosen a policy, or once torch has loaded its OpenMP library."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def disable_malloc_trim() -> None:
    """Keep freed memory in the process. No effect without glibc or if the user has set malloc's thresholds."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for threshold in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(threshold, _THRESHOLD_BYTES)


@contextmanager
def quick_start() -> Iterator[None]:
    """Import torch and load a model without garbage collection. For a process of fastscribe's own.

    No effect once torch is imported. The collector leaves out what that makes, then and later. It would take a seventh of the
    import's time and 0.25 s of a large model's. torch is imported whole: a part that is left out may be one that a function
    sets up for others.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def process_age_s() -> float | None:
    """Return the age of this process in seconds, with the start of the interpreter; None where the system does not tell."""
    try:
        # The second field, the program's name in brackets, may contain spaces and brackets.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        started_s = int(fields[_START_FIELD - 3]) / os.sysconf("SC_CLK_TCK")
        if not started_s:  # some sandboxes
            return None
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, AttributeError, ValueError, IndexError):  # no /proc: macOS, Windows
        return None
