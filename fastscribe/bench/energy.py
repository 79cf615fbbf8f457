"""Energy that a piece of work took, from the counters that count it: NVML's of a GPU, RAPL's of the processors (Linux).

The counters are of whole devices: what else ran on them is in the sums. NVML's (Volta and later; not of a part of a GPU)
moves in steps, so the work should last seconds. RAPL is hidden from most virtual machines, and on most systems from all but
root. What cannot be had is None, and nothing is estimated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_RAPL = Path("/sys/class/powercap")
_MAX_WATTS = 1000.0  # of one processor: how soon its counter may have started from 0 a second time
_J_PER_KWH = 3.6e6


@dataclass
class Energy:
    """Joules of the block, known when it has ended. `gpu_j` is the one device's, `cpu_j` that of all processors' packages."""

    gpu_j: float | None = None
    cpu_j: float | None = None


@contextmanager
def energy(device: torch.device, rapl: Path = _RAPL) -> Iterator[Energy | None]:
    """Counts over the block. Yields None where neither counter is there."""
    read_gpu_j = _gpu_counter(device)
    gpu_start_j = None if read_gpu_j is None else read_gpu_j()
    packages = _packages(rapl)
    start_s, packages_start_uj = perf_counter(), _read_packages(packages)
    found = Energy() if gpu_start_j is not None or packages_start_uj else None
    yield found
    if found is None:
        return
    if read_gpu_j is not None and gpu_start_j is not None:
        end_j = read_gpu_j()
        found.gpu_j = None if end_j is None else end_j - gpu_start_j
    if packages_start_uj:
        found.cpu_j = _packages_j(packages, packages_start_uj, perf_counter() - start_s)


def row(found: Energy | None, audio_s: float) -> dict[str, float | None]:
    """Measurements for a benchmark's row: of `audio_s` seconds of audio; None where no counter was there.

    The last two are of the counters that were there: of a GPU's run without RAPL they are without the processors' part.
    """
    parts = [] if found is None else [part for part in (found.gpu_j, found.cpu_j) if part is not None]
    per_hour = sum(parts) / (audio_s / 3600.0) if parts and audio_s > 0 else None
    return {
        "energy_gpu_j": None if found is None else found.gpu_j,
        "energy_cpu_j": None if found is None else found.cpu_j,
        "energy_j_per_audio_hour": per_hour,
        "energy_kwh_per_1000_audio_hours": None if per_hour is None else 1000.0 * per_hour / _J_PER_KWH,
    }


def _gpu_counter(device: torch.device) -> Callable[[], float | None] | None:
    """Reads joules since the driver was loaded; None for what is no GPU of NVIDIA's or has no driver library."""
    if device.type != "cuda":
        return None
    try:
        return nvml_counter(ctypes.CDLL("libnvidia-ml.so.1"), nvidia_id(device))
    except OSError:
        return None


def nvidia_id(device: torch.device) -> str:
    """What NVML and nvidia-smi know a GPU by: their numbers are others where CUDA_VISIBLE_DEVICES hides some."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def nvml_counter(library: Any, uuid: str) -> Callable[[], float | None] | None:
    """`library` is NVML, loaded. None where it knows no such GPU."""
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
        return None

    def read_j() -> float | None:
        millijoules = ctypes.c_ulonglong()
        failed = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        return None if failed else millijoules.value / 1e3

    return read_j


def _packages(rapl: Path) -> dict[Path, float]:
    """The processors' packages, with the value after which each counter starts from 0, in microjoules."""
    found = {}
    for folder in sorted(rapl.glob("intel-rapl:*")):  # AMD's too; parts of a package are "package:part"
        try:
            if (folder / "name").read_text().startswith("package"):
                found[folder] = float((folder / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            continue
    return found


def _read_packages(packages: Mapping[Path, float]) -> dict[Path, float]:
    """Microjoules by package; empty where one cannot be read, for a part of the processors would be a wrong number."""
    try:
        return {folder: float((folder / "energy_uj").read_text()) for folder in packages}
    except (OSError, ValueError):
        return {}


def _packages_j(packages: Mapping[Path, float], start_uj: Mapping[Path, float], seconds: float) -> float | None:
    end_uj = _read_packages(packages)
    if not end_uj or any(seconds * _MAX_WATTS > range_uj / 1e6 for range_uj in packages.values()):
        return None
    return sum((end_uj[folder] - start_uj[folder]) % packages[folder] for folder in packages) / 1e6
