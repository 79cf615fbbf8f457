"""Decoding of random frames gives labels at the rate of speech, equal to greedy decoding's."""

from __future__ import annotations

import pytest
import torch

from fastscribe.decode.families import build_greedy
from scripts.benchmarks import decoding_speed
from scripts.shapes import SHAPES
from tests.helpers import random_models

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", ["tiny", "tiny-rnnt"])
def test_decoding_random_frames_equals_greedy(shape: str) -> None:
    transducer = random_models.transducer(SHAPES[shape], CPU)
    frames = decoding_speed.random_frames([60, 58, 56, 54], SHAPES[shape].encoder.d_model, CPU, seed=2)
    built = build_greedy(transducer, CPU, "off", print)
    row = decoding_speed.measure(built, frames, CPU)
    assert 4 < row["labels_of_longest_row"] < 60
    assert (
        row["labels_of_longest_row"]
        <= decoding_speed.num_turns(transducer, frames)
        <= 2 * row["labels_of_longest_row"] + 16
    )
    found, _ = decoding_speed.greedy_rate(transducer, frames, CPU)
    assert decoding_speed.equal_share(decoding_speed.decode(built, frames)[:1], [found]) == 1.0
