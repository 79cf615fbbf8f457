"""The processors: how many this process may use, their name, and what they multiply natively."""

from __future__ import annotations

import os
import platform


def usable_processors() -> int:
    """Return the number by CPU affinity, if the system has it, and by a container's quota."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:  # "max 100000" for no limit
            quota, period = file.read().split()
        return known if quota == "max" else max(1, min(known, int(quota) // int(period)))
    except (OSError, ValueError):
        return known


def cpu_name() -> str:
    """Return the processor's model name."""
    return _cpuinfo("model name") or platform.processor() or "CPU"


def has_native_bf16() -> bool:
    """Return True if the processor multiplies bf16 natively. Only Linux tells."""
    flags = _cpuinfo("flags").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _cpuinfo(field: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo; empty if it is missing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(field)), "")
    except OSError:
        return ""
