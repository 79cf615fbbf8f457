"""The CPU's loops equal greedy decoding on random tiny transducers, in any window, and hide no NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastscribe.context.boosting import Boost, BoostTables
from fastscribe.context.boosting_loops import HostChoice
from fastscribe.context.context_graph import build_graph
from fastscribe.context.phrases import TokenPath
from fastscribe.decode import looping_kernels
from fastscribe.decode.cpu_looping import CpuLooping
from fastscribe.decode.decoder import ENDLESS
from fastscribe.decode.greedy import greedy
from fastscribe.decode.label_looping import LabelLooping, Network
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import Hypothesis
from tests.conftest import MODELS, checkpoint
from tests.decode.test_label_looping import assert_greedy, random_frames, run, tiny_transducer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_no_max_symbols(durations) -> None:
    """Without max_symbols and with a blank that never wins, LABELS_PER_FRAME_GUARD ends each frame: slots grow."""
    transducer = tiny_transducer(3, durations, None, -100.0)
    with torch.no_grad():
        transducer.joint.output.bias[transducer.blank_id + 1 :] += torch.tensor([50.0, 0, 0][: len(durations)])
    frames = random_frames([2, 1])
    hypotheses = run(CpuLooping(Network.prepare(transducer)), frames)
    assert_greedy(transducer, frames, hypotheses)
    assert [len(hypothesis.token_ids) for hypothesis in hypotheses] == [2000, 1000]


def test_a_row_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.decode.decoder._MORE_LABELS", 400)
    transducer = tiny_transducer(3, (), 10_000, -100.0)
    frames = random_frames([1, 0])
    assert run(CpuLooping(Network.prepare(transducer)), frames) == [ENDLESS, Hypothesis()]
    assert greedy(transducer, frames.frames_BTD[0, :1]) == ENDLESS


def test_a_label_that_is_not_a_number_is_seen() -> None:
    transducer = tiny_transducer(3, (0, 1), 10, -100.0)
    frames = random_frames([3, 3])
    frames.frames_BTD[1, 1] = float("nan")
    whole, damaged = run(CpuLooping(Network.prepare(transducer)), frames)
    assert np.isfinite(whole.logprobs).all() and not np.isfinite(damaged.logprobs).all()


def test_bfloat16_agrees_with_the_steps_of_torch() -> None:
    """Torch rounds gates and cells, so the log-probabilities of the first labels are compared, loosely."""
    transducer = tiny_transducer(2, (0, 1, 2), 10, 0.0).bfloat16()
    network, frames = Network.prepare(transducer), random_frames([40, 17])
    frames = replace(frames, frames_BTD=frames.frames_BTD.bfloat16())
    for ours, theirs in zip(run(CpuLooping(network), frames), run(LabelLooping(network), frames), strict=True):
        assert ours.token_ids[:3] == theirs.token_ids[:3]
        assert ours.logprobs[:3] == pytest.approx(theirs.logprobs[:3], abs=0.1)


def test_order_of_scores() -> None:
    """Not a number is above all, of either sign, as for torch; of equals the first counts."""
    nan = np.array([0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)
    for row in ([1, 3, 3], [-2, -1, -1], [0, nan[0], 9], [0, 9, nan[1]], [np.inf, 1, np.inf], [-0.5, -np.inf, -0.25]):
        scores = np.array(row, np.float32)
        assert looping_kernels.first_largest(scores, 0, 3) == int(torch.from_numpy(scores).argmax())


def test_the_best_label_with_phrases_from_every_state() -> None:
    """Where a phrase and the end of it both go on with a label, the longer one counts."""
    ids = [(0, 1, 2, 0), (1, 2, 1), (1, 2), (2, 0, 1), (3, 3), (0, 3, 1, 2)]
    graph = build_graph([[TokenPath(one, tuple(float(2 + i) for i in range(len(one)))) for one in ids]], 4, 4)
    tables, num_states = BoostTables.of(graph, 1.0, torch.device("cpu")), len(graph.fail_S)
    states_N1 = torch.arange(num_states)[:, None]
    torch.manual_seed(0)
    logits_NX = torch.randn(num_states, 5)
    next_N1V = tables.following(states_N1)
    expected_N = (logits_NX[:, :4] + tables.scores(states_N1, next_N1V)).argmax(1)
    frames = replace(random_frames([1] * num_states), boost=Boost(tables, states_N1.numpy()))
    assert frames.boost is not None
    choice = HostChoice(frames, 4, "float32", "relu")
    ids_B1, logprobs_B1 = np.zeros((num_states, 1), np.int32), np.zeros((num_states, 1), np.float32)
    rows, counts = np.arange(num_states), np.ones(num_states, np.int64)
    choice(logits_NX.numpy(), rows, rows, counts, ids_B1, logprobs_B1)
    assert ids_B1[:, 0].tolist() == expected_N.tolist()
    assert choice.states_BK.tolist() == tables.advance(next_N1V, expected_N).tolist()
    assert logprobs_B1[:, 0] == pytest.approx(logits_NX.log_softmax(1).gather(1, expected_N[:, None])[:, 0], abs=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # of NaN, in Python; machine code has none
@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid"])
def test_activations(name: str) -> None:
    x_N = np.concatenate([np.linspace(-100, 100, 201, dtype=np.float32), np.float32([np.nan, 1e-4])])
    ours = [looping_kernels._ACTIVATIONS[name](x) for x in x_N]
    torch.testing.assert_close(
        torch.tensor(ours), getattr(torch, name)(torch.from_numpy(x_N)), atol=3e-7, rtol=0, equal_nan=True
    )


def test_wide_models_decode_with_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint_ = checkpoint(MODELS / "tdt_demo")
    assert type(Recognizer.build(checkpoint_, "cpu", "fp32").decoder) is LabelLooping
    monkeypatch.setattr("fastscribe.families.conformer.config.MIN_WIDTH_OF_LOOPS", 1)
    assert type(Recognizer.build(checkpoint_, "cpu", "fp32").decoder) is CpuLooping
