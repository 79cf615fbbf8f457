"""Parts that measure training: its losses."""

from __future__ import annotations

from functools import partial
from typing import Any

from scripts.benchmarks import (
    loss_cases,
)
from scripts.gpu.part import QUICK, Part


def loss(part: Part) -> None:
    """Measure memory and time of the training losses, as `python -m scripts.benchmarks.loss`, a row per case."""
    part.notes.measure({"what": "bench_loss"}, partial(_losses, part), needs_s=10.0)


def _losses(part: Part) -> dict[str, Any]:
    others, notes = loss_cases.libraries(), part.notes
    usable = [name for name, problem in others.items() if problem is None]
    if part.sizes is QUICK:
        cases, most_s = loss_cases.cases([1], ["fp32", "bf16"], usable, [100]), 1.0
    else:
        cases, most_s = loss_cases.cases([8, 32, 64], ["fp32", "bf16", "fp16"], usable), 10.0
    num_rows = 0
    for num_rows, row in enumerate(loss_cases.table(part.device, list(cases), most_s), 1):
        notes.write({"what": "loss", **row})
        if notes.seconds_left <= 0:
            return {"cases": num_rows, "error": "stopped: out of time", "other_libraries": others}
    batch_size = 1 if part.sizes is QUICK else 1024
    notes.write({"what": "loss_headline", **loss_cases.headline(part.device, "bf16", batch_size, most_s)})
    return {"cases": num_rows, "other_libraries": others}
