"""Memory that a measurement holds: a GPU's as torch's allocator counts it, else the process's as Linux does, or None."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from contextlib import suppress
from pathlib import Path

import torch

from fastscribe._system.memory import available_bytes


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return device.free_bytes(device)
    return available_bytes()


def release(device: torch.device) -> None:
    """Return freed memory to the system; reused memory would not be counted."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        _trim()


def resident_bytes(device: torch.device) -> int | None:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _kilobytes("/proc/self/status", "VmRSS")


def reset_peak(device: torch.device) -> None:
    """Start a new peak. On a system that cannot, the old peak stays."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    _trim()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(device: torch.device) -> int | None:
    """Peak in bytes since reset_peak; None if the system cannot reset it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _kilobytes("/proc/self/status", "VmHWM") if os.access("/proc/self/clear_refs", os.W_OK) else None


def _trim() -> None:
    """Freed memory is kept (_system/malloc_tuning.py), and would count."""
    with suppress(AttributeError, TypeError):  # not glibc; Windows
        ctypes.CDLL(None).malloc_trim(0)


def _kilobytes(path: str, field: str) -> int | None:
    """A field of a file in /proc, in bytes; None if it is not there."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(path).read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None
