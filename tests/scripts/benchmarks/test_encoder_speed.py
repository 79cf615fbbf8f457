"""An encoder's rates are the work of its shape divided by the time of a call."""

from __future__ import annotations

import pytest
import torch

from fastscribe.bench.work import encoder_gflop_per_audio_s
from scripts.benchmarks import encoder_speed
from tests.helpers import random_models

CPU = torch.device("cpu")


def test_encoder_rates_are_the_counted_work_over_the_time() -> None:
    checkpoint = random_models.checkpoint("tiny")
    config = checkpoint.config
    row = encoder_speed.measure(encoder_speed.build("shipped", checkpoint, CPU), config, [1.5, 1.0], CPU)
    work_tflop = encoder_gflop_per_audio_s(config, [1.5, 1.0]) * 2.5 / 1000
    assert row["tflop_per_s"] == pytest.approx(work_tflop / (row["ms"] / 1000))
    assert row["rtfx"] == pytest.approx(2.5 / (row["ms"] / 1000))
