"""The processor, the memory and the GPU, asked by the functions that choose a run's device and dtype, and room on the disk.

A GPU's fast paths are found by such a run with many files: the packaged model in its own process, with helpers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastscribe._system.limits import available_bytes, total_bytes
from fastscribe._system.processors import (
    NO_BF16,
    cpu_name,
    has_native_bf16,
    has_native_int8,
    instruction_names,
    instructions,
    may_gain_from_bf16,
    usable_processors,
)
from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.doctor import Check
from fastscribe.doctor.packages import install_command
from fastscribe.errors import UsageError, first_line
from fastscribe.fast_paths import PathName, RefusedPaths
from fastscribe.types import Failure

if TYPE_CHECKING:
    import torch


_TORCH_INDEX = "https://download.pytorch.org/whl"
UPDATE_DRIVER = "install a newer NVIDIA driver: https://www.nvidia.com/drivers"
_REPAIR_DRIVER = "run nvidia-smi; if it fails, restart the machine, or install the driver again"
_FIRST_DRIVER_OF_CUDA_13 = 580
_TYPICAL_WIDTH = 1024  # of a 0.6B model
_TIMEOUT_S = 20.0  # of nvidia-smi, which wakes sleeping GPUs
_RUN_S, _RATE_HZ = 2.0, 16_000
_RUNS = 3  # the encoder's graphs are captured in the second
_WORKS: Mapping[PathName, str] = {
    "graphs": "full: loops on the GPU",
    "triton": "fused by Triton",
    "pinning": "copies to the GPU do not block the host",
    "helpers": "other processes read files and write rows",
}


def processor() -> Check:
    """The processor, and how much of it this process may use."""
    name, count = cpu_name(), usable_processors()
    finding = f"{name}, {count} usable; {instruction_names()}"
    return Check(
        "processor", "ok", finding, facts={"name": name, "usable": count, "instructions": sorted(instructions())}
    )


def memory() -> Check:
    """The memory of the machine."""
    total, available = total_bytes(), available_bytes()
    finding = f"{total / 2**30:.1f} GiB, {available / 2**30:.1f} GiB of it available"
    return Check("memory", "ok", finding, facts={"total_bytes": total, "available_bytes": available})


def torch_kernels() -> Check:
    """Whether torch computes with the processor's vectors, and multiplies packed matrices."""
    import torch

    from fastscribe.families.blocks.forms import can_pack, has_faster_mkl

    vectors = torch.backends.cpu.get_cpu_capability()
    if vectors == "DEFAULT" and "avx2" in instructions():
        finding = "torch's operators use no vector instructions, which is slow: ATEN_CPU_CAPABILITY in the environment?"
        return Check("torch kernels", "missing", finding)
    if not can_pack(torch.float32):
        finding = "this torch cannot pack matrices for oneDNN; products may take twice as long"
        return Check("torch kernels", "missing", finding)
    large = ", large ones of layers in fp32 left to MKL" if has_faster_mkl(torch.float32) else ""
    return Check("torch kernels", "ok", f"{vectors}; matrices are packed for oneDNN{large}", facts={"vectors": vectors})


def cpu_loops() -> Check:
    """For which processor numba compiles the loops of wide models (families/blocks/row_kernels.py and others)."""
    config: Any = import_module("numba").config
    if config.DISABLE_JIT:
        finding = "NUMBA_DISABLE_JIT is set: wide models run without their loops, at a fraction of the speed"
        return Check("cpu loops", "problem", finding, "unset NUMBA_DISABLE_JIT")
    forced = [name for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES") if os.environ.get(name)]
    if forced or config.OPT < 2:
        forced += ["NUMBA_OPT"] if config.OPT < 2 else []
        finding = (
            f"{' and '.join(forced)} set: the loops of wide models are not compiled for this processor, and may be slow"
        )
        return Check("cpu loops", "missing", finding, f"unset {' '.join(forced)}")
    host: str = import_module("llvmlite.binding").get_host_cpu_name()
    return Check("cpu loops", "ok", f"compiled for {host} by numba, for wide models", facts={"processor": host})


def bf16() -> Check:
    """Whether the processor multiplies bf16, and what transcribe does then."""
    from fastscribe.pipeline.dtype_choice import choose_on_cpu

    if has_native_bf16():
        auto, _ = choose_on_cpu("auto", _TYPICAL_WIDTH)
        finding = f"native ({instruction_names('bf16')}): --dtype auto takes {auto} for large models"
        return Check("bf16", "ok", finding)
    if may_gain_from_bf16():
        finding = f"{instruction_names('bf16')}: --dtype auto takes fp32, as no such machine was measured; compare --dtype bf16"
        return Check("bf16", "ok", finding)
    finding = f"emulated: {NO_BF16}; --dtype auto takes fp32 without a GPU, and --dtype bf16 is slow"
    return Check("bf16", "missing", finding)


def int8() -> Check:
    """Whether --dtype int8 works, and through what."""
    from fastscribe.families.blocks.int8 import int8_hardware_problem, int8_problem
    from fastscribe.families.model import torch_dtype

    if (problem := int8_problem()) is not None:
        return Check("int8", "missing", problem, refused={} if int8_hardware_problem() else {"int8": problem})
    rest = "bf16" if torch_dtype("int8").itemsize == 2 else "fp32"
    through = f"native ({instruction_names('int8')})" if has_native_int8() else "through AVX2"
    return Check("int8", "ok", f"{through}, with {rest} beside it: --dtype int8 works on the processor")


def dtypes() -> Check:
    """Which dtype transcribe takes for a large model, and why."""
    from fastscribe.pipeline.dtype_choice import choose_on_cpu

    auto, reason = choose_on_cpu("auto", _TYPICAL_WIDTH)
    fastest, _ = choose_on_cpu("fastest", _TYPICAL_WIDTH)
    model = f"a model {_TYPICAL_WIDTH} wide (Parakeet 0.6B)"
    finding = f"{model} without a GPU: --dtype auto takes {auto}, fastest {fastest}: {reason}"
    return Check("dtypes", "ok", finding, facts={"auto": auto, "fastest": fastest})


def gpu() -> Check:
    """The GPU that --device cuda takes, or why there is none."""
    import torch

    try:
        device = cuda()
    except UsageError as error:
        return _no_gpu(error)
    properties = torch.cuda.get_device_properties(device)
    free_bytes, all_bytes = torch.cuda.mem_get_info(device)
    capability = f"{properties.major}.{properties.minor}"
    driver = _driver().version
    finding = (
        f"{properties.name}, {all_bytes / 2**30:.1f} GiB ({free_bytes / 2**30:.1f} GiB free), compute capability {capability}"
        f"{f', driver {driver}' if driver else ''}"
    )
    facts = {
        "name": properties.name,
        "total_bytes": all_bytes,
        "free_bytes": free_bytes,
        "capability": capability,
        "driver": driver,
        "count": torch.cuda.device_count(),
    }
    return Check("gpu", "ok", finding, facts=facts)


def fp8() -> Check:
    """Whether --dtype fp8 works."""
    from fastscribe.families.blocks.fp8 import fp8_hardware_problem, fp8_problem

    device = cuda()
    if (problem := fp8_problem(device)) is None:
        return Check("fp8", "ok", "--dtype fp8 works on the GPU")
    return Check("fp8", "missing", problem, refused={} if fp8_hardware_problem(device) else {"fp8": problem})


def cuda() -> torch.device:
    """Return the device of --device cuda. Raises UsageError."""
    from fastscribe.pipeline.model_building import choose_device

    return choose_device("cuda")


def _no_gpu(error: UsageError) -> Check:
    """Tell apart a machine without a GPU, GPUs that are hidden, a torch without CUDA, and a driver that does not work."""
    import torch

    driver, reason = _driver(), str(error).removeprefix("--device cuda: ")
    if driver.problem is not None:
        return Check("gpu", "problem", f"the NVIDIA driver does not work: {driver.problem}", _REPAIR_DRIVER)
    if driver.version is None:
        return Check("gpu", "missing", "no NVIDIA driver here: runs use the processor", facts={"reason": reason})
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and _hides_all(visible, driver.gpus):
        finding = f"CUDA_VISIBLE_DEVICES={visible} in the environment hides the GPU (driver {driver.version})"
        return Check("gpu", "missing", finding, "unset CUDA_VISIBLE_DEVICES", {"reason": reason})
    if torch.version.cuda is None and sys.platform != "darwin":
        index = (
            f"{_TORCH_INDEX}/cu{'130' if int(driver.version.partition('.')[0]) >= _FIRST_DRIVER_OF_CUDA_13 else '126'}"
        )
        fix = install_command("--force-reinstall", "torch", "--index-url", index)
        finding = f"this torch is built without CUDA, and there is a GPU (driver {driver.version})"
        return Check("gpu", "problem", finding, fix)
    return Check("gpu", "problem", f"{reason}; driver {driver.version}", UPDATE_DRIVER)


def _hides_all(visible: str, num_gpus: int) -> bool:
    """Return True if CUDA_VISIBLE_DEVICES names no GPU first: CUDA takes those before the first name that it does not know."""
    first = visible.partition(",")[0].strip()
    return not (int(first) < num_gpus if first.isdecimal() else first.startswith(("GPU-", "MIG-")))


class _Driver(NamedTuple):
    """What nvidia-smi says of the driver: its version, or a problem, or neither if there is no driver."""

    version: str | None = None
    gpus: int = 0
    problem: str | None = None


def _driver() -> _Driver:
    program = shutil.which("nvidia-smi")
    if program is None:
        return _Driver()
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _Driver(problem=f"nvidia-smi did not answer within {_TIMEOUT_S:.0f} s")
    except OSError as error:
        return _Driver(problem=f"nvidia-smi cannot be started: {error.strerror or error}")
    lines = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()
    if done.returncode or not lines[0][:1].isdigit():
        return _Driver(problem=f"nvidia-smi ends with exit code {done.returncode}: {lines[0]}")
    return _Driver(lines[0], len(lines))


def packaged_model() -> Check:
    """The model that the wheel holds."""
    checkpoint = read_checkpoint(PACKAGED)
    num_bytes = sum(file.stat().st_size for file in PACKAGED.iterdir())
    finding = f"{checkpoint.num_parameters / 1e6:.1f} million parameters, English, {num_bytes / 1e6:.0f} MB"
    return Check("packaged model", "ok", finding, facts={"path": str(PACKAGED), "bytes": num_bytes})


def model_cache() -> Check:
    """The Hugging Face cache: whether a model can be stored there."""
    cache = _cache()
    existing = _existing(cache)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        finding = f"{cache} cannot be written ({error.strerror or error}): models cannot be downloaded"
        return Check("model cache", "problem", finding, "set HF_HUB_CACHE to a folder that can be written")
    models = len(list(cache.glob("models--*")))
    return Check("model cache", "ok", f"{cache}, {models} models", facts={"path": str(cache), "models": models})


def free_disk() -> Check:
    """Room for models in the cache."""
    cache = _cache()
    free = shutil.disk_usage(_existing(cache)).free
    return Check("free disk", "ok", f"{free / 1e9:.1f} GB for the model cache", facts={"free_bytes": free})


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _existing(folder: Path) -> Path:
    """Return the folder or the closest one above it that exists."""
    return next(one for one in (folder, *folder.parents) if one.is_dir())


def gpu_run() -> Check:
    """Whether a run on the GPU works."""
    _, problem = _outcome()
    if problem is not None:
        return Check("gpu run", "problem", f"a run on the GPU fails: {problem}")
    return Check("gpu run", "ok", "the packaged model transcribes on the GPU")


def fast_path(name: str, path: PathName) -> Check:
    """Whether that run had a fast path."""
    refused, problem = _outcome()
    if problem is not None:
        return Check(name, "missing", "not known while no run on the GPU works")
    reason = refused.get(path)
    if reason is None:
        return Check(name, "ok", _WORKS[path])
    return Check(name, "missing", f"refused, so runs are slower: {reason}", _fix(path, reason), refused={path: reason})


def refused_paths(devices: str) -> dict[str, str]:
    """Transcribe two seconds on devices a few times. Return the fast paths that were refused, with their reasons.

    Raises:
        FastscribeError: The devices cannot be used.
        RuntimeError: The recording fails.
    """
    import numpy as np

    from fastscribe.transcriber import Transcriber

    samples_S = np.random.default_rng(0).integers(-3000, 3000, int(_RUN_S * _RATE_HZ), np.int16)
    heard = RefusedPaths(lambda line: None)
    with Transcriber.load("default", say=heard, devices=devices) as transcriber:
        for _ in range(_RUNS):
            for result in transcriber.transcribe((samples_S, _RATE_HZ)):
                if isinstance(result, Failure):
                    raise RuntimeError(f"{result.stage}: {result.message}")
    return heard.reasons


@cache
def _outcome() -> tuple[Mapping[str, str], str | None]:
    """Return what a run on the first GPU was refused, and why it failed, if it did."""
    try:
        return refused_paths("0"), None
    except Exception as error:  # a driver or an installation fails in any way
        return {}, f"{type(error).__name__}: {first_line(error)}"


def _fix(path: PathName, reason: str) -> str | None:
    if path == "triton":
        return install_command("triton") if "cannot be imported" in reason else None
    if path == "graphs":
        return install_command("cuda-bindings") if "cuda.bindings" in reason else UPDATE_DRIVER
    return None
