"""Energy counters: simulated NVML and kernel files."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastscribe.bench import energy as measuring
from fastscribe.bench.energy import Energy, energy, nvml_counter, row

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
UUID = "12345678-1234"


class FakeNvml:
    """The three functions that are called of libnvidia-ml.so.1; `millijoules` are the successive readings."""

    def __init__(self, millijoules: Iterator[int | None], known: str = f"GPU-{UUID}") -> None:
        self._millijoules, self._known = millijoules, known

    def nvmlInit_v2(self) -> int:  # noqa: N802 - NVML's name
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 7
        return 0 if uuid.decode() == self._known else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, found: Any) -> int:  # noqa: N802
        value = next(self._millijoules)
        assert handle.value == 7
        if value is None:
            return 3
        found._obj.value = value
        return 0


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> None:
    def load(name: str) -> FakeNvml:
        assert name == "libnvidia-ml.so.1"
        if nvml is None:
            raise OSError(name)
        return nvml

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=UUID))
    monkeypatch.setattr(measuring.ctypes, "CDLL", load)


def package(
    folder: Path, number: int, energy_uj: int, range_uj: int = 262_143_000_000, name: str = "package-0"
) -> Path:
    found = folder / f"intel-rapl:{number}"
    found.mkdir(parents=True)
    for file, value in (("name", name), ("max_energy_range_uj", range_uj), ("energy_uj", energy_uj)):
        (found / file).write_text(f"{value}\n")
    return found / "energy_uj"


def test_a_machine_without_counters_yields_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with energy(CPU, tmp_path) as found:
        assert found is None
    pretend_gpu(monkeypatch, None)
    with energy(GPU, tmp_path / "none") as found:
        assert found is None
    assert set(row(None, 60.0).values()) == {None}


def test_a_gpus_joules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, FakeNvml(iter([5_000, 12_500])))
    with energy(GPU, tmp_path) as found:
        pass
    assert found == Energy(gpu_j=7.5, cpu_j=None)


def test_gpu_without_energy_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, FakeNvml(iter([None])))
    with energy(GPU, tmp_path) as found:
        assert found is None
    pretend_gpu(monkeypatch, FakeNvml(iter([5, None])))
    with energy(GPU, tmp_path) as found:
        pass
    assert found == Energy()
    assert nvml_counter(FakeNvml(iter([]), known="GPU-of-others"), f"GPU-{UUID}") is None


def test_processor_energy_counter_wraps(tmp_path: Path) -> None:
    first, second = package(tmp_path, 0, 1_000_000), package(tmp_path, 1, 262_142_000_000, name="package-1")
    whole_system = package(tmp_path, 2, 0, name="psys")  # has the packages in it
    with energy(CPU, tmp_path) as found:
        first.write_text("4000000")
        second.write_text("1000000")
        whole_system.write_text("9000000")
    assert found is not None and found.gpu_j is None
    assert found.cpu_j == pytest.approx(3.0 + 2.0)


def test_counter_that_may_wrap_twice_is_ignored(tmp_path: Path) -> None:
    package(tmp_path, 0, 1, range_uj=1)
    with energy(CPU, tmp_path) as found:
        pass
    assert found == Energy()


def test_unreadable_processor_gives_no_total(tmp_path: Path) -> None:
    package(tmp_path, 0, 1)
    package(tmp_path, 1, 1, name="package-1").unlink()
    with energy(CPU, tmp_path) as found:
        assert found is None


def test_a_block_that_fails_keeps_its_error(tmp_path: Path) -> None:
    package(tmp_path, 0, 1)
    with pytest.raises(KeyError), energy(CPU, tmp_path):
        raise KeyError


def test_joules_by_audio() -> None:
    found = row(Energy(gpu_j=3000.0, cpu_j=600.0), 1800.0)
    assert found["energy_j_per_audio_hour"] == pytest.approx(7200.0)
    assert found["energy_kwh_per_1000_audio_hours"] == pytest.approx(2.0)  # 7.2 MJ
    assert row(Energy(gpu_j=3600.0), 3600.0)["energy_j_per_audio_hour"] == pytest.approx(3600.0)
    assert row(Energy(), 60.0)["energy_j_per_audio_hour"] is None
    assert row(Energy(gpu_j=1.0), 0.0)["energy_j_per_audio_hour"] is None
