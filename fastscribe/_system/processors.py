"""The processors: how many this process may use, their name, and what they multiply natively; and how many GPUs torch can use.

GPUs are counted without the import of torch, which takes seconds, and without a context on any of them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastscribe._system.limits import settings

# What instructions() tells, and its name for people. Those of ARM come last.
INSTRUCTIONS = {
    "avx512f": "AVX-512",
    "avx2": "AVX2",
    "avx512_vnni": "AVX512-VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "AVX512-BF16",
    "amx_int8": "AMX-INT8",
    "amx_bf16": "AMX-BF16",
    "asimddp": "dot products (ARM)",
    "i8mm": "I8MM (ARM)",
    "bf16": "BF16 (ARM)",
}
_BF16 = frozenset(("avx512_bf16", "amx_bf16"))  # of x86
_OF_DTYPE = {"bf16": _BF16 | {"bf16"}, "int8": frozenset(("avx512_vnni", "avx_vnni", "amx_int8"))}
NO_BF16 = "this processor has none of AVX512-BF16, AMX-BF16 and ARM's BF16"
_SAME = {"avx512_f": "avx512f", "dot": "asimddp"}  # torch's names
_AVX512 = frozenset(("avx2", "avx512f"))
# What the values of ONEDNN_MAX_CPU_ISA leave. Values that are not here leave all that matters.
_ONEDNN_LIMITS = {
    "SSE41": frozenset[str](),
    "AVX": frozenset[str](),
    "AVX2": frozenset(("avx2",)),
    "AVX2_VNNI": frozenset(("avx2", "avx_vnni")),
    "AVX2_VNNI_2": frozenset(("avx2", "avx_vnni")),
    "AVX512_CORE": _AVX512,
    "AVX512_CORE_VNNI": _AVX512 | {"avx512_vnni"},
    "AVX512_CORE_BF16": _AVX512 | {"avx512_vnni", "avx512_bf16"},
    "AVX512_CORE_FP16": _AVX512 | {"avx512_vnni", "avx512_bf16"},
    "AVX10_1_512": _AVX512 | {"avx512_vnni", "avx512_bf16"},
}
_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}
_CUDA = re.compile(r"^cuda\s*(?::[^=]*)?=\s*['\"]", re.MULTILINE)  # in torch/version.py; None in a build for CPUs


def usable_processors() -> int:
    """Return the number by CPU affinity, if the system has it, by quotas of control groups, and by what SLURM gives a task."""
    found = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    quotas = [tuple(limit.split()) for [limit] in settings("cpu", "cpu.max")]  # version 2: "max 100000" for no limit
    quotas += settings("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")  # version 1: -1 for no limit
    found += [int(quota) // int(period) for quota, period in quotas if quota not in ("max", "-1")]
    # Not every cluster binds tasks to processors.
    given = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or ""
    found += [int(given)] if given.isdecimal() else []
    return max(1, min(found))


def cpu_name() -> str:
    """Return the processor's model name."""
    return _cpuinfo("model name") or platform.processor() or "CPU"


def instructions() -> frozenset[str]:
    """Return the instruction sets for matrix products, by Linux's names, that the processor has and oneDNN may use.

    Those of INSTRUCTIONS. Linux tells them itself; elsewhere torch does. ONEDNN_MAX_CPU_ISA takes some away from oneDNN.
    """
    found = {_SAME.get(name, name) for name in _listed()}
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")).upper()
    return frozenset(found & _ONEDNN_LIMITS.get(limit, INSTRUCTIONS.keys()))


def instruction_names(dtype: str | None = None) -> str:
    """Return in words the instruction sets that instructions() tells; of them, those that multiply "bf16" or "int8"."""
    wanted = instructions() & _OF_DTYPE.get(dtype or "", INSTRUCTIONS.keys())
    return (
        ", ".join(text for name, text in INSTRUCTIONS.items() if name in wanted) or "no instruction sets for products"
    )


def has_native_bf16() -> bool:
    """Return True if the processor is an x86 one that multiplies bf16 natively."""
    return bool(instructions() & _BF16)


def is_amd() -> bool:
    """Return True for a processor of AMD."""
    return "AuthenticAMD" in (_cpuinfo("vendor_id") or platform.processor())


def may_gain_from_bf16() -> bool:
    """Return True if the processor has any bf16 instructions; what they gain on ARM was not measured."""
    return bool(instructions() & _OF_DTYPE["bf16"])


def has_native_int8() -> bool:
    """Return True if the processor adds products of unsigned and signed bytes without overflow (VNNI or AMX)."""
    return bool(instructions() & _OF_DTYPE["int8"])


def has_avx2() -> bool:
    """Return True if the processor multiplies 16-bit numbers and adds neighbours, 16 pairs at once."""
    return "avx2" in instructions()


def _listed() -> set[str]:
    """Return the names of the processor's features."""
    lines = _cpuinfo("flags") or _cpuinfo("Features")
    if lines:
        return set(lines.split())
    import torch

    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return {name for name, value in capabilities.items() if value is True}


@cache
def _cpuinfo(field: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo; empty if it is missing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(field)), "")
    except OSError:
        return ""


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
