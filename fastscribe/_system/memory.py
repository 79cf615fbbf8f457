"""Memory of the machine and of this process."""

from __future__ import annotations

import sys

from fastscribe._system.cgroups import settings


def total_bytes() -> int:
    """Memory of the machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def usable_bytes() -> int:
    """Memory of the machine, or of this process's control group or one above it if that has less."""
    names = "memory.max", "memory.limit_in_bytes"  # version 2, version 1
    limits = (limit for name in names for [limit] in settings("memory", name))
    return min([total_bytes(), *(int(limit) for limit in limits if limit != "max")])


def available_bytes() -> int:
    """Memory that new allocations can take without swapping, as the system estimates it."""
    import psutil

    return int(psutil.virtual_memory().available)


def peak_process_bytes() -> int:
    """Largest resident size of this process so far."""
    if sys.platform == "win32":  # a check that mypy knows: the other branch has no resource there
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
