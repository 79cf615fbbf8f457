"""Which device a run gets. No GPU is needed: torch's answers are a test's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from fastscribe.errors import DeviceUnusable, UsageError
from fastscribe.pipeline.model_building import choose_device
from tests.fakes.cuda import forbid_contexts

OLD = "The NVIDIA driver on your system is too old (found version 11040)"
ADVICE = f"CUDA initialization: {OLD}. Please update your GPU driver.\nAlternatively, go to: https://pytorch.org"


def warns() -> bool:
    warnings.warn(ADVICE, UserWarning, stacklevel=1)
    return False


def raises() -> bool:
    raise RuntimeError(ADVICE)


@pytest.mark.parametrize("is_available", [warns, raises])
def test_a_driver_that_torch_cannot_use_leaves_the_cpu(
    is_available: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says so. Nothing makes a context."""
    forbid_contexts(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    lines: list[str] = []
    assert choose_device("auto", lines.append) == torch.device("cpu")
    assert lines == [f"the CPU is used, because torch cannot use the GPU: CUDA initialization: {OLD}"]


def test_a_machine_without_a_gpu_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines: list[str] = []
    assert choose_device("auto", lines.append) == torch.device("cpu") and not lines


BUSY = "cannot be used here (all CUDA-capable devices are busy)"


@pytest.fixture(params=["memory", "kernel"])
def refusing_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is counted, but gives no memory, or for which torch has no kernels."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("all CUDA-capable devices are busy\nand advice")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    empty = SimpleNamespace(fill_=refuse)
    monkeypatch.setattr(torch, "empty", refuse if request.param == "memory" else lambda *_, **__: empty)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_named_gpu_that_refuses_is_an_error(name: str, refusing_gpu: None) -> None:
    with pytest.raises(DeviceUnusable) as caught:
        choose_device(name)
    assert str(caught.value) == f"--device {name}: {BUSY}"
    assert caught.value.problem == BUSY


def test_a_gpu_that_refuses_leaves_the_cpu_to_auto(refusing_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    """No command takes it in silence."""
    assert choose_device("auto") == torch.device("cpu")
    assert capsys.readouterr().err == f"fastscribe: the CPU is used, because the GPU {BUSY}\n"


def test_names_of_no_device() -> None:
    with pytest.raises(UsageError, match=r"^--device gpu: not auto, cpu, cuda or cuda:N"):
        choose_device("gpu")
