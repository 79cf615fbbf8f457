"""Keep freed memory in the process: a setting of the C library's malloc.

An operation on a batch allocates tens of megabytes. By default glibc maps such blocks anew each time and unmaps them when
freed, and the system clears every page at its first touch: 200,000 page faults a pass in the 0.6B shape, a tenth of the
processor's time (docs/log.md). With this setting the same few hundred megabytes serve every batch. The peak is the same.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_THRESHOLD_BYTES = 2**30


def disable_malloc_trim() -> None:
    """Apply the setting to the whole process. No effect without glibc or if the user has set malloc's thresholds."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for threshold in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(threshold, _THRESHOLD_BYTES)
