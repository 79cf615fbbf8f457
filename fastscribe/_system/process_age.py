"""The time since this process started."""

from __future__ import annotations

import os
import time
from pathlib import Path

_START_FIELD = 22  # of /proc/self/stat, in clock ticks since the system's start


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
