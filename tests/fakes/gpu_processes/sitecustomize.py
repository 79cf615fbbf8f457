"""Gives every Python process a simulated GPU: with this folder on PYTHONPATH, Python runs this file when it starts.

The programs stay as they are. A module that they import is changed when its own import has ended (AFTER), so that mistakes in
how a program imports torch show as they would with a GPU. $SIMULATED_GPU says what the GPUs are like (whole_cuda.Settings).
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

FAKES = Path(__file__).resolve().parents[1]
SETTINGS = json.loads(os.environ.get("SIMULATED_GPU", "{}"))


def load(name: str) -> Any:
    """Return a module of tests/fakes. The checkout stays off sys.path: the program may be an installed one."""
    full = f"simulated_gpu.{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, FAKES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[full] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[full]
            raise
    return sys.modules[full]


class Importer:
    """Finds the modules of AFTER, and calls what belongs to one when its import has ended."""

    def __init__(self, after: dict[str, Callable[[ModuleType], None]]) -> None:
        self._after, self._looking = dict(after), ""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = self._after.get(fullname)
        if change is None or self._looking == fullname:
            return None
        self._looking, before = fullname, self._looking
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = before
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if self._after.pop(fullname, None) is not None:
                change(module)

        spec.loader.exec_module = exec_module
        return spec


def _has_cuda(gpus: Any) -> None:
    """Make fastscribe/_system/processors.py believe that this torch was built with CUDA."""
    assert callable(gpus._has_cuda)
    gpus._has_cuda = lambda: True


def _driver(name: str, *arguments: Any, **options: Any) -> Any:
    """Return the driver's library as ctypes would, with what tells how many GPUs there are."""
    if name != "libcuda.so.1":
        return real_library(name, *arguments, **options)
    return FakeLibrary()


def _whole_cuda() -> Any:
    """Return the simulation. torch comes first: its import ends with the simulation's."""
    import torch  # noqa: F401

    return load("whole_cuda")


def _replace_driver(driver: Any) -> None:
    """Replace the driver, unless torch's own import imports it: whole_cuda.install() does then."""
    if "simulated_gpu.whole_cuda" in sys.modules:
        load("whole_cuda").install_driver(driver)


class FakeLibrary:
    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = visible_gpus()
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = number
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = b"Simulated GPU"
        return 0


def visible_gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = int(SETTINGS.get("gpus", 1))
    return present if visible is None else sum(name.strip().isdigit() for name in visible.split(",") if name.strip())


real_library = ctypes.CDLL
ctypes.CDLL = _driver
sys.meta_path.insert(
    0,
    Importer(
        {
            "torch": lambda torch: load("whole_cuda").install(SETTINGS, visible_gpus()),
            "cuda.bindings.driver": _replace_driver,
            "triton.runtime.interpreter": lambda module: _whole_cuda().install_interpreter(module),
            "fastscribe._system.processors": _has_cuda,
            "fastscribe.families.conformer.gpu_operations": lambda module: _whole_cuda().shorten(module),
            "fastscribe.families.conformer.triton_kernels": lambda module: _whole_cuda().limit_interpreted(module),
            "fastscribe.pipeline.cost_model": lambda module: _whole_cuda().measure_little(module),
        }
    ),
)
