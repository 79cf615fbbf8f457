"""How many processors this process may use."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """By its affinity, where the system has such a thing, and by a container's share."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:  # "max 100000" for no limit
            quota, period = file.read().split()
        return known if quota == "max" else max(1, min(known, int(quota) // int(period)))
    except (OSError, ValueError):
        return known
