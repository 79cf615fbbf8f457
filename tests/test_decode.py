"""Label-looping equals the definition of right on random tiny transducers; CTC collapsing equals its own definition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.config import JointConfig, PredictorConfig
from fastscribe.decode import ctc, label_looping
from fastscribe.decode.greedy import greedy
from fastscribe.model.transducer import Transducer
from fastscribe.types import Frames, Hypothesis

DURATIONS = ((), (0, 1, 2, 3, 4), (1, 2, 3), (0, 1), (2, 0, 8), (0,))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Thousands of operations on a handful of numbers: a second thread only gets in the way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny_transducer(seed: int, durations: tuple[int, ...], max_symbols: int | None, blank_bias: float) -> Transducer:
    """Random weights, large enough that the predictor's state matters; the blank's bias sets how much is emitted."""
    torch.manual_seed(seed)
    num_labels = int(torch.randint(1, 9, ()))
    layers = int(torch.randint(1, 3, ()))
    config = JointConfig(hidden=6, activation="tanh", max_symbols=max_symbols)
    transducer = Transducer(
        PredictorConfig(hidden=5, num_layers=layers), config, durations, d_model=7, blank_id=num_labels
    )
    with torch.no_grad():
        for parameter in transducer.parameters():
            parameter.normal_()
        transducer.joint.output.bias[num_labels] += blank_bias
    return transducer.eval()


def steps(hypothesis: Hypothesis) -> tuple:
    return hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    durations=st.sampled_from(DURATIONS),
    max_symbols=st.integers(1, 10),
    blank_bias=st.floats(-4, 4),
    lengths=st.lists(st.integers(0, 21), min_size=1, max_size=6),
    window=st.sampled_from((1, 2, 3, 4, 8, 16)),
)
def test_label_looping_is_greedy(seed, durations, max_symbols, blank_bias, lengths, window) -> None:
    transducer = tiny_transducer(seed, durations, max_symbols, blank_bias)
    frames_BTD = torch.randn(len(lengths), max(1, *lengths, 1), 7)
    fast = label_looping.decode(transducer, Frames(frames_BTD, torch.tensor(lengths)), window)
    for row, length in enumerate(lengths):
        slow = greedy(transducer, frames_BTD[row, :length])
        assert steps(fast[row]) == steps(slow)
        torch.testing.assert_close(torch.tensor(fast[row].logprobs), torch.tensor(slow.logprobs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_unlimited_symbols_end(durations) -> None:
    """With max_symbols null and a blank that never wins, a frame must end all the same."""
    transducer = tiny_transducer(3, durations, None, -100.0)
    with torch.no_grad():
        transducer.joint.output.bias[transducer.blank_id + 1 :] += torch.tensor([50.0, 0, 0][: len(durations)])
    frames_BTD = torch.randn(2, 3, 7)
    for row, hypothesis in enumerate(label_looping.decode(transducer, Frames(frames_BTD, torch.tensor([3, 2])))):
        slow = greedy(transducer, frames_BTD[row, : 3 - row])
        assert steps(hypothesis) == steps(slow)
        assert len(slow.token_ids) == 1000 * (3 - row)


def test_no_rows_have_frames() -> None:
    transducer = tiny_transducer(1, (), 10, 0.0)
    frames = Frames(torch.randn(2, 1, 7), torch.tensor([0, 0]))
    assert label_looping.decode(transducer, frames) == [Hypothesis(), Hypothesis()]


@given(st.lists(st.integers(0, 3), max_size=30))
def test_ctc_collapse(labels: list[int]) -> None:
    blank = 3
    hypothesis = ctc.collapse(labels, [0.5] * len(labels), blank)
    runs = [(label, len(list(run))) for label, run in groupby(labels)]
    assert [(i, n) for i, n in runs if i != blank] == list(
        zip(hypothesis.token_ids, hypothesis.token_durations, strict=True)
    )
    for label, start, length in zip(
        hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations, strict=True
    ):
        assert labels[start : start + length] == [label] * length
        assert start == 0 or labels[start - 1] != label
