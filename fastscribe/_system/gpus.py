"""Which GPUs torch can use here, without the import of torch, which takes seconds, and without a context on any of them."""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}
_CUDA = re.compile(r"^cuda\s*(?::[^=]*)?=\s*['\"]", re.MULTILINE)  # in torch/version.py; None in a build for CPUs


@cache
def num_gpus() -> int:
    """Return the number of CUDA devices that are visible; 0 without a driver, or with a torch without CUDA."""
    name = _DRIVERS.get(sys.platform)
    if name is None or not _has_cuda():
        return 0
    count = ctypes.c_int(0)
    try:
        cuda = ctypes.CDLL(name)
        # cuInit makes no context.
        return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
    except (OSError, AttributeError):
        return 0


def _has_cuda() -> bool:
    """Return True if torch was built with CUDA."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            return _CUDA.search((Path(folder) / "version.py").read_text(encoding="utf-8")) is not None
        except OSError:
            continue
    return False
