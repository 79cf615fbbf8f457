"""Parts that measure training: memory and time of its losses, and its speed by how batches are made."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from fastscribe.bench.machine import free_bytes
from fastscribe.errors import is_out_of_memory
from scripts.benchmarks import loss_cases, training_batches
from scripts.benchmarks.loss_cases import Case, LossDtypeName
from scripts.benchmarks.loss_memory import LossShape, materialised_memory
from scripts.gpu.part import Part
from scripts.shapes import SHAPES

_SMALLER = 0.85  # the next batch size, if one does not fit
_TRIES = 6
_COMPARED = ("audio_s_per_s", "batch_audio_s", "batch_rows", "steps_of_epoch")  # ways to make batches


def loss(part: Part) -> None:
    """Measure the grid of NVIDIA's article on its fp16 loss, in every form and library, a row per case."""
    problem = loss_cases.problem_of_nemo()
    part.notes.measure({"what": "other_libraries"}, lambda: {"nemo": problem})
    usable = [] if problem else ["nemo"]
    some = list(loss_cases.grid(part.sizes.loss_batches, part.sizes.loss_labels, usable))
    _warm_up(part, some)
    for case in some:
        _measure(part, "loss", case)


def samplewise(part: Part) -> None:
    """Measure the loss sample by sample where a joint at once cannot be held: the headline and its curve.

    Beside it the materialised joint with batches that fit. All TDT, with fastscribe's loss.
    """
    sizes = part.sizes
    whole = [replace(sizes.samplewise, num_tokens=num_tokens) for num_tokens in sizes.samplewise_tokens]
    dtypes: tuple[LossDtypeName, ...] = ("bf16", "fp16")
    some = [_case("joint", dtype, shape) for dtype in dtypes for shape in whole]
    _warm_up(part, [*some, _case("materialised", "bf16", whole[0])])
    for case in some:
        _measure(part, "samplewise", case)
    for shape in whole:
        key = {"what": "samplewise_largest", "form": "materialised", "dtype": "bf16", "num_tokens": shape.num_tokens}
        part.notes.measure(key, partial(_largest_materialised, part, shape))
    smaller = [replace(shape, batch_size=n) for shape in whole for n in sizes.samplewise_batches]
    for form in ("joint", "materialised"):
        for shape in smaller:
            _measure(part, "samplewise", _case(form, "bf16", shape))


def _case(form: str, dtype: LossDtypeName, shape: LossShape) -> Case:
    return Case(form, "fastscribe", dtype, shape)


def _warm_up(part: Part, some: list[Case]) -> None:
    part.notes.make({"what": "warm_up"}, lambda: loss_cases.warm_up(part.device, some))


def _measure(part: Part, what: str, case: Case) -> None:
    key = {"what": what, **loss_cases.key(case), "num_durations": case.shape.num_durations}
    part.notes.measure(key, partial(_row, part, case))


def _row(part: Part, case: Case) -> dict[str, Any]:
    """Return peak and time. A case that does not fit is a result too: no later run tries it again."""
    formula = {"formula_bytes": case.expected_bytes(part.device.type)}
    try:
        return formula | loss_cases.peak_and_time(case, part.device, part.sizes.loss_s)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    return formula | {"fits": False}


def _largest_materialised(part: Part, shape: LossShape) -> dict[str, Any]:
    """Return peak and time of the largest batch that fits, as the formula of its minimum has it or a little smaller."""
    one = sum(materialised_memory(replace(shape, batch_size=1), shape.item_bytes).values())
    rows = min(shape.batch_size, free_bytes(part.device) // one)
    for _ in range(_TRIES):
        if rows < 1:
            break
        case = _case("materialised", "bf16", replace(shape, batch_size=rows))
        found = _row(part, case)
        if "ms" in found:
            return loss_cases.key(case) | {"num_durations": shape.num_durations} | found
        rows = int(rows * _SMALLER)
    return {"fits": False}


def training_speed(part: Part) -> None:
    """Measure random batches, two kinds of buckets, and batch sizes that are searched, with one model in one process."""
    sizes, dtype = part.sizes, "bf16" if part.device.type == "cuda" else "fp32"
    key = {"what": "training_batches", "shape": sizes.trained, "dtype": dtype}
    build = partial(training_batches.Trainee, SHAPES[sizes.trained], part.device, dtype)
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
