"""Pieces of a pass: an encoder's rates are of its shape's work, and busy time of a GPU counts once, however kernels overlap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.bench.work import encoder_gflop_per_audio_s
from fastscribe.pipeline.recognizer import Recognizer
from scripts.gpu.parts import pieces
from tests.helpers import random_models

CPU = torch.device("cpu")

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=12)


@given(spans)
def test_covered_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    assert pieces.covered(spans) == len({instant for begin, end in spans for instant in range(begin, end)})


def test_busy_share_counts_no_time_twice() -> None:
    found = pieces.summary([("a", 0.0, 400.0), ("b", 300.0, 500.0), ("a", 900.0, 1000.0)], wall_s=0.002)
    assert found["busy_share_of_wall"] == pytest.approx(0.3)
    assert found["busy_share_first_to_last"] == pytest.approx(0.6)
    assert found["top_kernels"][0] == {"name": "a", "count": 2, "ms": 0.5}
    assert pieces.summary([], wall_s=1.0)["busy_share_of_wall"] == 0.0


def test_encoder_rates_are_the_counted_work_over_the_time() -> None:
    checkpoint = random_models.checkpoint("tiny")
    config = checkpoint.config
    row = pieces.measure_encoder(Recognizer.build(checkpoint, "cpu", "bf16").encode, config, [1.5, 1.0], CPU)
    work_tflop = encoder_gflop_per_audio_s(config, [1.5, 1.0]) * 2.5 / 1000
    assert row["tflop_per_s"] == pytest.approx(work_tflop / (row["ms"] / 1000))
    assert row["rtfx"] == pytest.approx(2.5 / (row["ms"] / 1000))
