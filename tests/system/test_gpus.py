"""GPUs are counted without torch: by its build, and by the driver."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from fastscribe._system import processors


class Driver:
    """Stands in for the driver's library."""

    def __init__(self, count: int, error: int = 0) -> None:
        self._count, self._error = count, error

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's name
        return self._error

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 - the driver's name
        count._obj.value = self._count
        return 0


@pytest.fixture(autouse=True)
def _not_cached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "platform", "linux")
    processors.num_gpus.cache_clear()
    yield
    processors.num_gpus.cache_clear()


def with_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    (folder / "version.py").write_text(version, encoding="utf-8")
    spec = ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(processors, "find_spec", lambda name: spec)


@pytest.mark.parametrize(
    ("version", "driver", "number"),
    [
        ("cuda: Optional[str] = '13.0'\n", Driver(2), 2),
        ('cuda = "12.8"\n', Driver(1), 1),
        ("cuda: Optional[str] = None\n", Driver(2), 0),
        ("cuda: Optional[str] = '13.0'\n", Driver(2, error=100), 0),  # CUDA_ERROR_NO_DEVICE
    ],
)
def test_gpus_count_if_torch_and_the_driver_have_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, driver: Driver, number: int
) -> None:
    with_torch(monkeypatch, tmp_path, version)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert processors.num_gpus() == number


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    with_torch(monkeypatch, tmp_path, "cuda = '13.0'\n")
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert processors.num_gpus() == 0


def test_this_machine_has_as_many_as_torch_says() -> None:
    import torch

    assert processors.num_gpus() == (torch.cuda.device_count() if torch.backends.cuda.is_built() else 0)
