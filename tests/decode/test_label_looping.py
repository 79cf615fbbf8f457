"""Label-looping equals greedy decoding on random tiny transducers; CTC batches equal the reference for one row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fastscribe.config import JointConfig, PredictorConfig
from fastscribe.decode import ctc, label_looping
from fastscribe.decode.cpu_looping import CpuLooping
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.greedy import greedy
from fastscribe.decode.label_looping import (
    LabelLooping,
    LoopState,
    Network,
    Slots,
    load_batch_,
    pack,
    slots_needed,
    step,
    unpack,
)
from fastscribe.families.blocks.heads import CtcHead, Transducer
from fastscribe.types import Frames, Hypothesis
from tests.helpers import greedy_ctc
from tests.helpers.drawn_rows import Lists, drawn

DURATIONS = ((), (0, 1, 2, 3, 4), (1, 2, 3), (0, 1), (2, 0, 8), (0,))


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny_transducer(seed: int, durations: tuple[int, ...], max_symbols: int | None, blank_bias: float) -> Transducer:
    """Random weights, large enough that the predictor's state matters; `blank_bias` controls how many labels are emitted."""
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


def random_frames(lengths: list[int], extra: int = 0) -> Frames:
    return Frames(torch.randn(len(lengths), max(1, *lengths, 1) + extra, 7), torch.tensor(lengths))


def steps(hypothesis: Hypothesis) -> tuple:
    return hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations


def assert_greedy(
    transducer: Transducer,
    frames: Frames,
    hypotheses: Sequence[Hypothesis],
    phrases: Sequence[Any] | None = None,
    excluded: Sequence[Collection[int]] | None = None,
) -> None:
    """Compare rows, which may have phrases and leave out tokens."""
    for row, (fast, length) in enumerate(zip(hypotheses, frames.lengths_B.tolist(), strict=True)):
        own = phrases and phrases[row], excluded[row] if excluded else ()
        slow = greedy(transducer, frames.frames_BTD[row, :length], *own)
        assert steps(fast) == steps(slow)
        torch.testing.assert_close(torch.tensor(fast.logprobs), torch.tensor(slow.logprobs), atol=1e-4, rtol=1e-4)


def allocate(network: Network, rows: int, num_slots: int) -> LoopState:
    return LoopState.allocate(network, rows, Slots.allocate(network, num_slots))


def run(decoder: Decoder, frames: Frames) -> list[Hypothesis]:
    return decoder.read(decoder.submit(frames).cpu().numpy(), frames)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    durations=st.sampled_from(DURATIONS),
    max_symbols=st.integers(1, 10),
    blank_bias=st.floats(-4, 4),
    lengths=st.lists(st.integers(0, 21), min_size=1, max_size=6),
    window=st.sampled_from((1, 2, 3, 4, 8, 16)),
    data=st.data(),
)
def test_loops_equal_greedy(seed, durations, max_symbols, blank_bias, lengths, window, data) -> None:
    """Rows may have phrases, and leave out tokens."""
    transducer = tiny_transducer(seed, durations, max_symbols, blank_bias)
    frames, *own = drawn(data, random_frames(lengths), transducer.blank_id)
    assert_greedy(transducer, frames, label_looping.decode(transducer, frames, window), *own)
    assert_greedy(transducer, frames, run(CpuLooping(Network.prepare(transducer), window), frames), *own)


@pytest.mark.parametrize("seed", range(3))
@torch.inference_mode()
def test_state_reuse_stale_values(seed: int) -> None:
    """Worst case: rows that write to the slots of row 0, and labels at every row's first frame."""
    transducer = tiny_transducer(seed, (), 2, -1.0)
    network = Network.prepare(transducer)
    frames = random_frames([3, 5, 4], extra=8)
    state = allocate(network, 8, 100)
    state.position_2B.zero_()
    state.slots.times_N.copy_(torch.arange(101) + 1)
    load_batch_(network, state, frames)
    for _ in range(30):
        step(network, state)
    packed = pack(state, 3, 14).numpy()
    hypotheses = unpack(packed, frames, ())
    packed[:] = -1  # its memory is used again
    assert hypotheses is not None
    assert_greedy(transducer, frames, hypotheses)


def test_step_skips_whole_window() -> None:
    transducer = tiny_transducer(1, (), 10, 1000.0)
    network = Network.prepare(transducer, 8)
    state = allocate(network, 1, 65)
    load_batch_(network, state, random_frames([64]))
    turns = 1
    step(network, state)
    while state.active:
        step(network, state)
        turns += 1
    assert turns == 8


def test_full_label_slots() -> None:
    """A row whose last label fills its slots is done; with one more label it needs slots."""
    for durations, full in (((1,), True), ((0, 1), False)):
        transducer = tiny_transducer(5, durations, 3, -100.0)
        with torch.no_grad():
            transducer.joint.output.bias[transducer.blank_id + 1] += 100.0
        frames = random_frames([4, 6])
        network = Network.prepare(transducer)
        state = allocate(network, 2, slots_needed(frames))
        load_batch_(network, state, frames)
        for _ in range(30):
            step(network, state)
        hypotheses = unpack(pack(state, 2, 7).numpy(), frames, durations)
        assert not state.active
        assert (hypotheses is not None) == full
        assert_greedy(transducer, frames, run(LabelLooping(network), frames))


VIEWS = {"unbind", "select", "slice", "view", "view_as", "unsqueeze", "expand", "split", "chunk", "t", "_unsafe_view"}


class NoHostSync(TorchDispatchMode):
    """Fail on operations that make the host wait or whose result size depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in tests/fakes/cuda.py

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero"), name
        assert not (name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])), name
        self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("durations", [(), (0, 1, 2, 3, 4)])
def test_steps_do_not_sync(durations) -> None:
    transducer = tiny_transducer(1, durations, 10, 0.0)
    frames = random_frames([5, 9, 0])
    network = Network.prepare(transducer, 8)
    state = allocate(network, 4, slots_needed(frames))
    before = {name: value.data_ptr() for name, value in vars(state).items() if isinstance(value, torch.Tensor)}
    with NoHostSync() as seen:
        load_batch_(network, state, frames)
        seen.names.clear()
        step(network, state)
        assert (
            len([name for name in seen.names if name not in VIEWS]) <= 65
        )  # one kernel each; on a GPU an LSTM cell is one
        assert not {"arange", "tensor", "scalar_tensor", "zeros", "ones", "full", "lift_fresh"} & set(seen.names)
        pack(state, 3, 10)
    assert before == {name: value.data_ptr() for name, value in vars(state).items() if isinstance(value, torch.Tensor)}


def test_bf16_logprobs_are_float32() -> None:
    transducer = tiny_transducer(2, (0, 1, 2), 10, 0.0).bfloat16()
    frames = random_frames([12, 7])
    frames = Frames(frames.frames_BTD.bfloat16(), frames.lengths_B)
    logprobs = [lp for h in run(LabelLooping(Network.prepare(transducer)), frames) for lp in h.logprobs]
    assert logprobs and any(lp != float(torch.tensor(lp).bfloat16()) for lp in logprobs)


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=5), st.integers(0, 2**31))
def test_ctc_batch_equals_collapse(rows: list[list[int]], seed: int) -> None:
    """Padding is ignored."""
    rng = np.random.default_rng(seed)
    labels_BT = rng.integers(0, 4, (len(rows), 13)).astype(np.int32)
    for row, labels in enumerate(rows):
        labels_BT[row, : len(labels)] = labels
    probs_BT = rng.random(labels_BT.shape, dtype=np.float32)
    lengths_B = np.array([len(labels) for labels in rows], dtype=np.int32)
    for row, found in enumerate(ctc.collapse_rows(labels_BT, probs_BT, lengths_B, 3)):
        expected = greedy_ctc.collapse(rows[row], probs_BT[row, : len(rows[row])].tolist(), 3)
        assert steps(found) == steps(expected)
        assert found.logprobs == pytest.approx(expected.logprobs, rel=1e-6, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(0, 15), min_size=1, max_size=4), data=st.data())
def test_ctc_equals_reference(seed, lengths, data) -> None:
    """Rows may have phrases, and leave out tokens."""
    torch.manual_seed(seed)
    blank_id = data.draw(st.integers(1, 5))
    head = CtcHead(7, blank_id + 1).requires_grad_(False)
    frames, phrases, excluded = drawn(data, random_frames(lengths), blank_id)
    for row, fast in enumerate(ctc.decode(head, frames, blank_id)):
        logprobs_TV = head(frames.frames_BTD[row, : lengths[row]]).log_softmax(-1)
        lists = phrases[row] or Lists([[]], blank_id, blank_id).reference([1])
        labels = greedy_ctc.boosted_labels(logprobs_TV, lists, blank_id, excluded[row])
        probs = logprobs_TV.exp().gather(1, torch.tensor(labels).long()[:, None])[:, 0] if labels else torch.zeros(0)
        slow = greedy_ctc.collapse(labels, probs.tolist(), blank_id)
        assert steps(fast) == steps(slow)
        assert fast.logprobs == pytest.approx(slow.logprobs, abs=1e-4)
