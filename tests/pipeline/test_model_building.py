"""Which device a run gets. No GPU is needed: torch's answers are a test's."""

from __future__ import annotations

import warnings
from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("auto", "the GPU: cannot be used here (all CUDA-capable devices are busy)"),
        ("cuda", "--device cuda: cannot be used here (all CUDA-capable devices are busy)"),
        ("cuda:1", "--device cuda:1: cannot be used here (all CUDA-capable devices are busy)"),
    ],
)
def test_a_gpu_that_refuses_is_named_as_the_user_did(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("all CUDA-capable devices are busy\nand advice")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(DeviceUnusable) as caught:
        choose_device(name)
    assert str(caught.value) == message
    assert caught.value.problem == message.partition(": ")[2]


def test_names_of_no_device() -> None:
    with pytest.raises(UsageError, match=r"^--device gpu: not auto, cpu, cuda or cuda:N"):
        choose_device("gpu")
