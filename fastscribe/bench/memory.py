"""Memory that a measurement holds: a GPU's as torch's allocator counts it, else the process's as Linux does, or None."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from contextlib import suppress
from pathlib import Path

import torch

from fastscribe.cuda import device as devices


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return devices.free_bytes(device)
    return _kilobytes("/proc/meminfo", "MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def release(device: torch.device) -> None:
    """Gives back what earlier cases freed, which would else be used again without being counted."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        _trim()


def resident_bytes(device: torch.device) -> int | None:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _kilobytes("/proc/self/status", "VmRSS")


def reset_peak(device: torch.device) -> None:
    """From now on the peak is counted anew; where a system cannot do that, it stays what it was."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    _trim()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(device: torch.device) -> int | None:
    """Since reset_peak; None where that could not be."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _kilobytes("/proc/self/status", "VmHWM") if os.access("/proc/self/clear_refs", os.W_OK) else None


def _trim() -> None:
    """Freed memory is kept (_system/malloc_tuning.py), and would count."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _kilobytes(path: str, field: str) -> int | None:
    """In bytes."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(path).read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None
