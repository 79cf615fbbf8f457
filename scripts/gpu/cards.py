"""The GPUs of this machine, by name: what CUDA's driver sees, which needs neither torch nor nvidia-smi."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

INFORMATION = Path("/proc/driver/nvidia/gpus")
_ROOT = Path(__file__).resolve().parents[2]
# In a process of its own: a driver that hangs costs no more than the time limit.
_ASK_DRIVER = """
from fastscribe._system.gpus import gpu_name, num_gpus
print(*map(gpu_name, range(num_gpus())), sep="\\n")
"""
_TIMEOUT_S = 20.0


def names() -> list[str]:
    """Return the names of the GPUs that are visible; of all that the kernel's module lists if the driver says nothing."""
    with suppress(OSError, subprocess.SubprocessError):
        command = [sys.executable, "-c", _ASK_DRIVER]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, cwd=_ROOT)
        if found := done.stdout.strip().splitlines():
            return found
    found = []
    for path in sorted(INFORMATION.glob("*/information")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found
