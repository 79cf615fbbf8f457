"""An operation's error is small in its own form and large in any other."""

from __future__ import annotations

import pytest
import torch

from fastscribe.families.conformer.operations import TORCH
from scripts.benchmarks import operation_speed

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", operation_speed.NAMES)
def test_kernel_error_detects_wrong_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = operation_speed.measure("torch", name, 3, 20, 64, 4, CPU)
    assert good["relative_error"] < 0.02 and good["gb_per_s"] > 0
    wrong = type(TORCH)(
        **{each: lambda *given, each=each: 1.1 * getattr(TORCH, each)(*given) for each in operation_speed.NAMES}
    )
    monkeypatch.setattr(operation_speed, "operations", lambda form: wrong)
    assert operation_speed.measure("torch", name, 3, 20, 64, 4, CPU)["relative_error"] > 0.05
