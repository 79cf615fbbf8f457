"""Part training_speed: training with several ways to make batches."""

from __future__ import annotations

from functools import partial
from typing import Any

from scripts.benchmarks import training_batches
from scripts.benchmarks.training_speed import Trainee
from scripts.gpu.part import Part
from scripts.shapes import SHAPES

_COMPARED = ("audio_s_per_s", "batch_audio_s", "batch_rows", "steps_of_epoch")


def training_speed(part: Part) -> None:
    """Measure random batches, two kinds of buckets, and batch sizes that are searched, with one model in one process."""
    sizes, dtype = part.sizes, "bf16" if part.device.type == "cuda" else "fp32"
    key = {"what": "training_batches", "shape": sizes.trained, "dtype": dtype}
    build = partial(Trainee, SHAPES[sizes.trained], part.device, dtype)
    trainee = part.notes.make(key | {"step": "build"}, build)
    if trainee is None:
        return
    corpus = training_batches.Corpus.of(sizes.training_corpus)
    found = training_batches.Comparison(
        trainee, part.device, corpus, sizes.training_buckets, sizes.training_steps, sizes.training_most_rows
    )
    plans = {
        way: part.notes.make(key | {"step": "plan", "batches": way}, partial(found.plan, way), needs_s=5.0)
        for way in training_batches.WAYS
    }
    first: dict[str, Any] | None = None
    for way, plan in plans.items():
        row = part.notes.measure(key | {"batches": way}, partial(found.row, plan), needs_s=3.0) if plan else None
        if row is not None and first is not None:
            ratio = {f"{name}_ratio": row[name] / first[name] for name in _COMPARED}
            part.notes.write(
                {"what": "ratio", "shape": sizes.trained, "batches": way, "over": first["batches"]} | ratio
            )
        first = first or row
