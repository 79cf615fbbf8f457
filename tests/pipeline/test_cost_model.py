from __future__ import annotations

import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.cost_model import (
    MIN_FRAMES,
    SHAPES,
    CostModel,
    DecoderMemory,
    Pass,
    budget,
    budget_after_out_of_memory,
    fit,
)

positive = st.floats(1e-9, 1e-5)


def cost(model: CostModel, rows: int, frames: int, factor: float = 1.0) -> Pass:
    """Return the pass that the formulas give."""
    seconds = model.overhead_s + rows * (model.frame_s * frames + model.frame2_s * frames**2)
    return Pass(
        rows, frames, factor * seconds, factor * rows * (model.frame_bytes + model.frame2_bytes * frames) * frames
    )


def measured(model: CostModel, noise: float = 0.0) -> list[Pass]:
    return [cost(model, *shape, 1 + noise * (-1) ** index) for index, shape in enumerate(SHAPES)]


@given(st.floats(1e-4, 1e-2), positive, st.floats(0, 1e-8), st.floats(100, 1e5), st.floats(0, 100))
def test_fit_recovers_the_model(overhead, frame, frame2, frame_bytes, frame2_bytes) -> None:
    model = CostModel(overhead, frame, frame2, frame_bytes, frame2_bytes)
    found = fit(measured(model))
    for rows, frames in ((1, 64), (64, 256), (16, 1000)):
        assert astuple(cost(found, rows, frames)) == pytest.approx(astuple(cost(model, rows, frames)), rel=1e-3)


def test_coefficients_are_never_negative() -> None:
    found = fit(measured(CostModel(2e-3, 1e-6, 0.0, 5e3, 0.0), noise=0.2))
    assert min(found.overhead_s, found.frame_s, found.frame2_s, found.frame_bytes, found.frame2_bytes) >= 0


@given(
    st.floats(1e6, 2e11),
    st.floats(1e3, 1e6),
    st.floats(0, 1e3),
    st.integers(1, 4000),
    st.floats(0, 1e6),
    st.floats(0, 1e9),
)
def test_a_batch_within_the_budget_fits_in_memory(
    free, frame_bytes, frame2_bytes, longest, held_frame, held_row
) -> None:
    model = CostModel(3e-3, 1.6e-6, 0.0, frame_bytes, frame2_bytes)
    chosen = budget(model, free, DecoderMemory(held_frame, held_row))
    rows = 1
    while chosen.cost(rows + 1, longest) <= chosen.frames:
        rows += 1
    held = rows * (held_frame * longest + held_row)
    assert rows == 1 or cost(model, rows, longest).bytes + held <= 0.71 * free


def test_overhead_limits_the_budget_if_memory_is_plenty() -> None:
    quick = budget(CostModel(2e-4, 2e-6, 0, 5e3, 0), 1e12)
    slow_to_start = budget(CostModel(4e-4, 2e-6, 0, 5e3, 0), 1e12)
    assert quick.frames == pytest.approx(2e-4 / (0.02 * 2e-6))
    assert slow_to_start.frames == pytest.approx(2 * quick.frames)
    assert quick.quadratic_at_frames == math.inf
    assert budget(CostModel(1.0, 1e-9, 0, 1, 0), 1e12).frames == 32_768


def test_attention_decoder_gets_large_batches() -> None:
    model = CostModel(2e-4, 2e-6, 0, 5e3, 0)
    assert budget(model, 1e12, DecoderMemory(2e5, 5e6)).frames == 32_768 > budget(model, 1e12).frames
    assert budget(model, 1e9, DecoderMemory(2e5, 5e6)).frames == pytest.approx(0.7e9 / 205e3)


def test_budget_after_out_of_memory_leaves_decoder_share() -> None:
    passes = [Pass(8, 128, 1.0, 1e6), Pass(32, 128, 1.0, 4e6)]
    assert budget_after_out_of_memory(passes, DecoderMemory()) == Budget(4096)
    chosen = budget_after_out_of_memory(passes, DecoderMemory(3e3, 6e3))
    assert chosen == Budget(pytest.approx(4096 * 4e6 / (4e6 + 3e3 * 4096)), overhead_frames_per_row=2.0)
    assert budget_after_out_of_memory([], DecoderMemory(3e3, 6e3)) == Budget(MIN_FRAMES, overhead_frames_per_row=2.0)
