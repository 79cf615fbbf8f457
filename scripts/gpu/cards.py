"""The GPUs of this machine, by name: what CUDA's driver sees, which needs neither torch nor nvidia-smi."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

INFORMATION = Path("/proc/driver/nvidia/gpus")
# In a process of its own: a driver that hangs costs no more than the time limit.
_ASK_DRIVER = """
import ctypes
cuda, count, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0), ctypes.c_int(0)
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for number in range(count.value):
    name = ctypes.create_string_buffer(256)
    assert cuda.cuDeviceGet(ctypes.byref(device), number) == 0 and cuda.cuDeviceGetName(name, 256, device) == 0
    print(name.value.decode())
"""
_TIMEOUT_S = 20.0


def names() -> list[str]:
    """Return the names of the GPUs that are visible; of all that the kernel's module lists if the driver says nothing."""
    with suppress(OSError, subprocess.SubprocessError):
        command = [sys.executable, "-c", _ASK_DRIVER]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        if found := done.stdout.splitlines():
            return found
    found = []
    for path in sorted(INFORMATION.glob("*/information")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found
