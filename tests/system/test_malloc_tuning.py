"""Freed memory is reused rather than mapped and cleared again, unless the user has set malloc's thresholds."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Page faults of twenty allocations of 8 MB and 32 MB, each written and freed. In a separate process: the setting is permanent.
SCRIPT = """
import ctypes, resource
from fastscribe._system.malloc_tuning import disable_malloc_trim
disable_malloc_trim()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
size = 8 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = ctypes.c_void_p(c.malloc(ctypes.c_size_t(size)))
    other = ctypes.c_void_p(c.malloc(ctypes.c_size_t(4 * size)))
    ctypes.memset(block, 1, size)
    ctypes.memset(other, 1, 4 * size)
    c.free(other)
    c.free(block)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() // (5 * size))
"""


def rounds_with_fresh_pages(**environment: str) -> int:
    """Return how many of twenty rounds got new pages."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")
def test_pages_reused() -> None:
    assert rounds_with_fresh_pages() <= 2
    assert rounds_with_fresh_pages(MALLOC_TRIM_THRESHOLD_="131072") > 10
