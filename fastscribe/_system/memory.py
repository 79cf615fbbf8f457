"""Memory of the machine and of this process."""

from __future__ import annotations

import sys


def total_bytes() -> int:
    """Memory of the machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def usable_bytes() -> int:
    """Memory of the machine, or of the container if it has less."""
    found = total_bytes()
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):  # version 2, version 1
        try:
            with open(path, encoding="ascii") as file:
                found = min(found, int(file.read()))
        except (OSError, ValueError):  # "max": there is no limit
            continue
    return found


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
