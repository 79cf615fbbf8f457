"""The memory of a loss is what the formula predicts, and its cases are those of the article."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
import torch

from scripts.benchmarks import loss_cases as measuring
from scripts.benchmarks.loss_memory import LossShape
from tests.helpers.warm_process import LIBRARIES_ALONE

CPU = torch.device("cpu")
MB = 1_000_000


MEASURED = [
    measuring.Case(form, "fastscribe", dtype, replace(shape, item_bytes=measuring.DTYPES[dtype].itemsize))
    for form, shape in (
        ("logits", LossShape(3, 120, 60, 64, 300)),
        ("joint", LossShape(3, 100, 50, 320, 300)),
        ("joint", LossShape(240, 40, 5, 320, 40)),  # mostly its inputs
        ("materialised", LossShape(3, 120, 60, 64, 600)),  # mostly its logits
    )
    for dtype in ("fp32", "bf16")
    if form != "materialised" or dtype == "fp32"  # torch's own sums of bf16 on a CPU make copies in float32
]


@pytest.mark.skipif(measuring.peak_bytes(CPU) is None, reason="the system does not say a process's peak memory")
def test_the_peak_on_a_cpu_is_the_formulas() -> None:
    """A new process has no memory of other tests. The first call of a shape also holds what oneDNN makes for it."""
    program = (
        "import json, torch; from scripts.benchmarks import loss_cases as loss;"
        "from tests.scripts.benchmarks.test_loss import CPU, MEASURED;"
        "loss.warm_up(CPU, MEASURED);"
        "print(json.dumps([[loss.peak_and_time(case, CPU, 0.0) for _ in range(2)][1] for case in MEASURED]))"
    )
    done = LIBRARIES_ALONE.python(program)
    for case, row in zip(MEASURED, json.loads(done.stdout), strict=True):
        expected = case.expected_bytes("cpu")
        assert expected > 20 * MB
        assert 0.9 * expected - 2 * MB < row["peak_bytes"] < 1.15 * expected + 4 * MB, case


def test_grid_has_every_library_in_every_form() -> None:
    found = list(measuring.grid((8, 32, 64), (100, 150, 200), ["nemo"]))
    assert len(found) == len(set(found)) == 2 * 3 * 3 * (3 + 2 * 2 * 2)
    assert {case.dtype for case in found if case.form != "joint"} == {"fp32", "fp16"}
    assert {(case.form, case.library) for case in found} == {
        ("joint", "fastscribe"),
        *((form, name) for form in ("logits", "materialised") for name in ("fastscribe", "nemo")),
    }


def test_the_loss_is_measured_in_every_dtype() -> None:
    assert tuple(measuring.DTYPES) == get_args(measuring.LossDtypeName)
