"""What this machine and this installation can do, and what would add what is missing, for `fastscribe doctor`.

Each fact comes from the function that a run asks. A part that fails in any way is a line of its own and stops no other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

from fastscribe.doctor import gpu_paths, hardware, packages
from fastscribe.doctor.check import Check
from fastscribe.errors import first_line

__all__ = ["Check", "examine"]

_PARTS: dict[str, Callable[[], Check]] = {
    "python": packages.python,
    "packages": packages.required,
    "torch": packages.torch_build,
    "processor": hardware.processor,
    "memory": hardware.memory,
    "torch kernels": hardware.torch_kernels,
    "cpu loops": hardware.cpu_loops,
    "bf16": hardware.bf16,
    "int8": hardware.int8,
    "dtypes": hardware.dtypes,
    "gpu": hardware.gpu,
    "gpu run": gpu_paths.gpu_run,
    "cuda graphs": partial(gpu_paths.fast_path, "cuda graphs", "graphs"),
    "gpu kernels": partial(gpu_paths.fast_path, "gpu kernels", "triton"),
    "pinned memory": partial(gpu_paths.fast_path, "pinned memory", "pinning"),
    "helpers": partial(gpu_paths.fast_path, "helpers", "helpers"),
    "fp8": hardware.fp8,
    "audio files": packages.libsndfile,
    "video and m4a": packages.containers,
    "packaged model": hardware.packaged_model,
    "model cache": hardware.model_cache,
    "free disk": hardware.free_disk,
}
_ON_GPU = ("gpu", "gpu run", "cuda graphs", "gpu kernels", "pinned memory", "helpers", "fp8")
_NEED_TORCH = ("torch kernels", "bf16", "int8", "dtypes", *_ON_GPU)


def examine() -> Iterator[Check]:
    """Yield what each part can do, and then each extra."""
    has_torch = has_gpu = True
    for name, part in _PARTS.items():
        if name in _NEED_TORCH and not has_torch:
            yield Check(name, "missing", "not known while torch cannot be imported")
            continue
        if name in _ON_GPU and not has_gpu:
            yield Check(name, "missing", "needs a GPU that torch can use")
            continue
        check = _guarded(name, part)
        has_torch = has_torch and not (name == "torch" and check.status == "problem")
        has_gpu = has_gpu and not (name == "gpu" and check.status != "ok")
        yield check
    try:
        yield from packages.extras()
    except Exception as error:
        yield _failed("extras", error)


def _guarded(name: str, part: Callable[[], Check]) -> Check:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return part()
    except Exception as error:  # a broken installation fails in any way; its line says how
        return _failed(name, error)


def _failed(name: str, error: Exception) -> Check:
    return Check(name, "problem", f"{type(error).__name__}: {first_line(error)}")
