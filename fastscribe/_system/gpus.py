"""Which GPUs torch can use here, without the import of torch, which takes seconds, and without a context on any of them."""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_MAX_NAME_BYTES = 256
_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}
_CUDA = re.compile(r"^cuda\s*(?::[^=]*)?=\s*['\"]", re.MULTILINE)  # in torch/version.py; None in a build for CPUs


@cache
def num_gpus() -> int:
    """Return the number of CUDA devices that are visible; 0 without a driver, or with a torch without CUDA."""
    cuda, count = _driver(), ctypes.c_int(0)
    return count.value if cuda is not None and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def gpu_name(number: int) -> str:
    """Return the name of a visible GPU, as torch has it; "" if the driver does not say."""
    cuda, device, name = _driver(), ctypes.c_int(0), ctypes.create_string_buffer(_MAX_NAME_BYTES)
    if cuda is None or cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetName(name, len(name), device):
        return ""
    return name.value.decode()


@cache
def _driver() -> Any:
    """Return the driver's library, which is ready; None: there is none, or torch cannot use it."""
    name = _DRIVERS.get(sys.platform)
    if name is None or not _has_cuda():
        return None
    try:
        cuda = ctypes.CDLL(name)
        return cuda if cuda.cuInit(0) == 0 else None  # cuInit makes no context
    except (OSError, AttributeError):
        return None


def _has_cuda() -> bool:
    """Return True if torch was built with CUDA."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            return _CUDA.search((Path(folder) / "version.py").read_text(encoding="utf-8")) is not None
        except OSError:
            continue
    return False
