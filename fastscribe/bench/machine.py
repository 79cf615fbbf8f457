"""What a measurement was made on. Reads and never sets anything; what cannot be had is None or says why not.

The memory that a measurement holds is a GPU's as torch's allocator counts it, else the process's as Linux does, or None.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fastscribe._system.limits import available_bytes, total_bytes
from fastscribe._system.processors import cpu_name, usable_processors
from fastscribe.cuda.device import free_bytes as free_gpu_bytes

_PACKAGES = (
    "torch", "triton", "numpy", "cuda-bindings", "nvidia-cudnn-cu13", "nvidia-cublas", "numba", "numba-cuda", "soundfile",
    "soxr", "safetensors", "sentencepiece", "typer", "rich", "pytest", "hypothesis", "nemo_toolkit", "transformers",
)  # fmt: skip
_GPU_FACTS = (
    "name", "driver_version", "memory.total", "power.limit", "clocks.sm", "clocks.mem", "clocks.max.sm",
    "clocks.max.mem", "temperature.gpu", "persistence_mode", "pcie.link.gen.current", "pcie.link.width.current",
)  # fmt: skip
_SAMPLED = ("utilization.gpu", "clocks.sm", "power.draw", "temperature.gpu")


def facts(device: torch.device, root: Path) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": cpu_name(),
        "cpu_cores": usable_processors(),
        "memory_gib": round(total_bytes() / 2**30, 1),
        "disk_free_gib": round(shutil.disk_usage(root).free / 2**30, 1),
        "shared_memory_free_gib": round(shutil.disk_usage("/dev/shm").free / 2**30, 1)
        if Path("/dev/shm").exists()
        else None,
        "load_average_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": versions(),
        "gpu": gpu_facts(device) if device.type == "cuda" else None,
        "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
    }


def versions() -> dict[str, str | None]:
    """Installed versions; None for what is not there."""
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """Facts about one of the machine's GPUs."""
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "torch_name": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(total / 2**30, 1),
        "memory_free_gib": round(free / 2**30, 1),
        "nvidia_smi": _nvidia_smi(device),
    }


def _query(device: torch.device, names: Sequence[str], form: str) -> list[str]:
    """The command that asks for one GPU: without its name nvidia-smi answers for all, those that are hidden from us too.

    Its numbers are others where CUDA_VISIBLE_DEVICES hides some.
    """
    uuid = torch.cuda.get_device_properties(device).uuid
    return ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(names)}", f"--format={form}"]


def _nvidia_smi(device: torch.device) -> dict[str, str] | str:
    try:
        values = subprocess.run(
            _query(device, _GPU_FACTS, "csv,noheader"),
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout.strip().split("\n")[0].split(", ")  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return dict(zip(_GPU_FACTS, values, strict=False))


def commit(root: Path) -> str:
    """FASTSCRIBE_COMMIT, or the checkout's commit, with "+" if files changed, or what the file COMMIT says."""
    if given := os.environ.get("FASTSCRIBE_COMMIT"):
        return given
    try:
        said = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", root, "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        said = ""
    stored = root / "COMMIT"
    return said or (stored.read_text(encoding="utf-8").strip() if stored.exists() else "unknown")


@contextmanager
def gpu_samples(device: torch.device) -> Iterator[dict[str, Any]]:
    """Fills the mapping, when the block ends, with means over it: the device's utilisation, clocks, power, as nvidia-smi
    samples them."""
    found: dict[str, Any] = {}
    process = None
    if device.type == "cuda" and shutil.which("nvidia-smi"):
        query = [*_query(device, _SAMPLED, "csv,noheader,nounits"), "-lms", "200"]
        process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield found
    finally:
        if process is not None:
            process.terminate()
            found.update(_means(process.communicate(timeout=20)[0]))


def _means(listing: str) -> dict[str, float]:
    rows = []
    for line in listing.splitlines():
        try:
            rows.append([float(value) for value in line.split(",")])
        except ValueError:
            continue  # a line cut short, or a value the driver does not give
    whole = [row for row in rows if len(row) == len(_SAMPLED)]
    keys = ("smi_utilization_percent", "smi_sm_clock_mhz", "smi_power_w", "smi_temperature_c")
    return {key: sum(row[i] for row in whole) / len(whole) for i, key in enumerate(keys)} if whole else {}


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return free_gpu_bytes(device)
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
    """Freed memory is kept (_system/process_settings.py), and would count."""
    with suppress(AttributeError, TypeError):  # not glibc; Windows
        ctypes.CDLL(None).malloc_trim(0)


def _kilobytes(path: str, field: str) -> int | None:
    """A field of a file in /proc, in bytes; None if it is not there."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(path).read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None
