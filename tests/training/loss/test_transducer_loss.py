"""The transducer losses: definition against enumerated paths, the compiled form against the definition, joint against both."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numba.core.caching
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe._system import float_bits
from fastscribe._system.jit import compile_cached
from fastscribe.config import JointConfig
from fastscribe.errors import UsageError
from fastscribe.families.blocks.heads import Joint
from fastscribe.training import TransducerLossConfig, joint_transducer_loss, transducer_loss
from fastscribe.training.loss import definition, joint, recursion
from fastscribe.training.loss.layout import Spoken
from tests.conftest import torch_threads

RNNT = TransducerLossConfig()
CONFIGS = (
    RNNT,
    TransducerLossConfig(fastemit=0.3, clamp=0.05),
    TransducerLossConfig(durations=(0, 1, 2, 3, 4), sigma=0.05),
    TransducerLossConfig(durations=(0, 2), sigma=0.1, fastemit=0.2),
    TransducerLossConfig(durations=(1, 2, 4), clamp=0.02),
    TransducerLossConfig(durations=(3,)),
    TransducerLossConfig(durations=(0, 1, 2), sigma=0.1, omega=1.0),
)


@pytest.fixture(autouse=True, scope="module")
def two_threads() -> Iterator[None]:
    """So that utterances and lines are shared between threads on any machine."""
    with torch_threads(2):
        yield


def example(
    seed: int, frames_B: list[int], labels_B: list[int], num_tokens: int, blank_id: int, num_durations: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (with room to spare and no sense in it), labels, frame lengths, label lengths."""
    generator = torch.Generator().manual_seed(seed)
    frame_lengths_B, label_lengths_B = torch.tensor(frames_B), torch.tensor(labels_B)
    shape = (len(frames_B), max(frames_B) + seed % 2, max(labels_B) + 1 + seed % 3, num_tokens + num_durations)
    labels_BU = torch.randint(0, num_tokens - 1, (len(frames_B), max(labels_B) + seed % 2), generator=generator)
    labels_BU += labels_BU >= blank_id
    return torch.randn(shape, generator=generator) * 3, labels_BU, frame_lengths_B, label_lengths_B


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[torch.Tensor, ...], int, TransducerLossConfig]:
    config = draw(st.sampled_from(CONFIGS))
    num_tokens = draw(st.integers(2, 40))
    blank_id = draw(st.integers(0, num_tokens - 1))
    batch_size = draw(st.integers(1, 4))
    frames_B = draw(st.lists(st.integers(0, 7), min_size=batch_size, max_size=batch_size))
    labels_B = draw(st.lists(st.integers(0, 5), min_size=batch_size, max_size=batch_size))
    tensors = example(draw(st.integers(0, 999)), frames_B, labels_B, num_tokens, blank_id, len(config.durations))
    return tensors, blank_id, config


def loss_and_gradient(
    logits_BTUV: torch.Tensor, *arguments: torch.Tensor, scale: torch.Tensor | None = None, **options: object
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_BTUV = logits_BTUV.clone().requires_grad_()
    loss = transducer_loss(logits_BTUV, *arguments, **options)  # type: ignore[arg-type]
    (gradient_BTUV,) = torch.autograd.grad(loss, logits_BTUV, torch.ones_like(loss) if scale is None else scale)
    return loss.detach(), gradient_BTUV


def paths(t: int, u: int, num_frames: int, labels: list[int], config: TransducerLossConfig) -> Iterator[list[tuple]]:
    """All ways from (t, u) to the end as lists of (t, u, token or None for blank, duration)."""
    for duration in config.durations or (0, 1):
        may_label = bool(config.durations) or duration == 0
        may_blank = duration > 0
        if may_blank and t + duration == num_frames and u == len(labels):
            yield [(t, u, None, duration)]
        if may_blank and t + duration < num_frames:
            for rest in paths(t + duration, u, num_frames, labels, config):
                yield [(t, u, None, duration), *rest]
        if may_label and u < len(labels) and t + duration < num_frames:
            for rest in paths(t + duration, u + 1, num_frames, labels, config):
                yield [(t, u, labels[u], duration), *rest]


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.omega == 0])
def test_definition_sums_all_paths(config: TransducerLossConfig) -> None:
    num_tokens, blank_id = 4, 1
    for num_frames, labels in itertools.product(range(5), ([], [2], [0, 0], [3, 0, 2])):
        width = num_tokens + len(config.durations)
        logits_TUW = torch.randn(num_frames, len(labels) + 1, width, dtype=torch.float64)
        tokens_TUV = logits_TUW[..., :num_tokens].softmax(dim=2).numpy() * math.exp(-config.sigma)
        durations_TUN = logits_TUW[..., num_tokens:].softmax(dim=2).numpy()
        total = 0.0
        for path in paths(0, 0, num_frames, labels, config) if num_frames else ():
            arcs = [tokens_TUV[t, u, blank_id if token is None else token] for t, u, token, _ in path]
            if config.durations:
                arcs += [durations_TUN[t, u, config.durations.index(duration)] for t, u, _, duration in path]
            total += math.prod(arcs)
        loss = definition.utterance_loss(logits_TUW, labels, blank_id, config)
        assert float(loss) == pytest.approx(-math.log(total) if total else math.inf, rel=1e-12)


@pytest.mark.parametrize("config", [c for c in CONFIGS if not c.fastemit and not c.clamp])
def test_definition_gradient(config: TransducerLossConfig) -> None:
    tensors = example(4, [3, 6], [2, 1], 4, 2, len(config.durations))
    logits_BTUV, rest = tensors[0].double(), tensors[1:]
    losses_B, gradient_BTUV = definition.losses_and_gradient(logits_BTUV, Spoken(*rest, 2, config))
    assert losses_B.isfinite().any()
    places = list(itertools.product(*map(range, logits_BTUV.shape)))
    for place in random.Random(0).sample(places, 24):
        row = place[0]
        if not losses_B[row].isfinite():
            assert gradient_BTUV[place] == 0
            continue
        step_BTUV = torch.zeros_like(logits_BTUV)
        step_BTUV[place] = 1e-5
        alone = Spoken(*rest, 2, config).of(slice(row, row + 1))
        above, below = (
            definition.losses_and_gradient((logits_BTUV + sign * step_BTUV)[row : row + 1], alone)[0]
            for sign in (1, -1)
        )
        assert float(above - below) / 2e-5 == pytest.approx(float(gradient_BTUV[place]), abs=1e-8)


@given(problems(), st.one_of(st.none(), st.integers(0, 99)))
@settings(max_examples=40, deadline=None)
def test_numba_equals_definition(
    problem: tuple[tuple[torch.Tensor, ...], int, TransducerLossConfig], seed: int | None
) -> None:
    """Any logit may be -inf, as long as no row is -inf throughout."""
    (logits_BTUV, *said), blank_id, config = problem
    if seed is not None:
        draw = torch.rand(logits_BTUV.shape, generator=torch.Generator().manual_seed(seed)) < 0.2
        num_durations = len(config.durations)
        draw[..., seed % (draw.shape[3] - num_durations)] = False
        if num_durations:
            draw[..., draw.shape[3] - 1 - seed % num_durations] = False
        logits_BTUV = logits_BTUV.masked_fill(draw, -math.inf)
    scale = torch.linspace(-1, 2, len(logits_BTUV))
    options = {"blank_id": blank_id, "config": config, "reduction": "none", "scale": scale}
    expected_B, expected = loss_and_gradient(logits_BTUV, *said, backend="oracle", **options)
    losses_B, gradient = loss_and_gradient(logits_BTUV, *said, backend="numba", **options)
    assert not expected_B.isnan().any() and not expected.isnan().any()
    torch.testing.assert_close(losses_B, expected_B, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(gradient, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
@pytest.mark.parametrize("config", [CONFIGS[1], CONFIGS[3]])
def test_half_precision(config: TransducerLossConfig, dtype: torch.dtype, rounding: float) -> None:
    """The loss is that of the rounded logits; each gradient is off by at most its own rounding (plus float16's step at 0)."""
    tensors = example(7, [9, 5, 1], [4, 5, 0], 70, 33, len(config.durations))
    rounded_BTUV, rest = tensors[0].to(dtype), tensors[1:]
    options = {"blank_id": 33, "config": config, "reduction": "none"}
    expected_B, expected = loss_and_gradient(rounded_BTUV.float(), *rest, backend="oracle", **options)
    losses_B, gradient = loss_and_gradient(rounded_BTUV, *rest, **options)
    assert gradient.dtype == dtype
    torch.testing.assert_close(losses_B, expected_B, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(gradient.float(), expected, rtol=rounding, atol=2e-6)


def test_precision_over_hundred_frames() -> None:
    """Sums over a hundred frames in float64: the gradient stays as exact as its inputs."""
    tensors = example(0, [110], [6], 30, 29, 0)
    expected_B, expected = loss_and_gradient(*tensors, blank_id=29, backend="oracle")
    losses_B, gradient = loss_and_gradient(*tensors, blank_id=29)
    torch.testing.assert_close(losses_B, expected_B, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=2e-6)


def test_lattice_by_hand() -> None:
    """One frame, one label, blank 0: p(label) at (0, 0), then p(blank) at (0, 1); FastEmit counts the label's gradient."""
    logits = torch.log(torch.tensor([[[[0.25, 0.75], [0.5, 0.5]]]]))
    arguments = (torch.tensor([[1]]), torch.tensor([1]), torch.tensor([1]))
    loss, gradient = loss_and_gradient(logits, *arguments, blank_id=0)
    assert float(loss) == pytest.approx(-math.log(0.75 * 0.5))
    torch.testing.assert_close(gradient, torch.tensor([[[[0.25, -0.25], [-0.5, 0.5]]]]))
    config = TransducerLossConfig(fastemit=0.5, clamp=0.4)
    loss, gradient = loss_and_gradient(logits, *arguments, blank_id=0, config=config)
    assert float(loss) == pytest.approx(-math.log(0.75 * 0.5) * 1.5)
    torch.testing.assert_close(gradient, torch.tensor([[[[0.375, -0.375], [-0.4, 0.4]]]]))


def test_padding_ignored() -> None:
    logits, labels_BU, frame_lengths_B, label_lengths_B = example(5, [4, 6], [2, 1], 5, 2, 0)
    expected = loss_and_gradient(logits, labels_BU, frame_lengths_B, label_lengths_B, blank_id=2)
    logits[0, 4:], logits[:, :, 3:], logits[1, :, 2:] = math.nan, math.inf, math.nan
    labels_BU[1, 1:] = -100
    loss, gradient = loss_and_gradient(logits, labels_BU, frame_lengths_B, label_lengths_B, blank_id=2)
    torch.testing.assert_close((loss, gradient), expected, rtol=0, atol=0)


def test_nan_propagates() -> None:
    for token in range(5):
        logits, *rest = example(0, [4], [2], 5, 2, 0)
        logits[0, 1, 1, token] = math.nan
        assert transducer_loss(logits, *rest, blank_id=2).isnan()


def test_reductions() -> None:
    tensors = example(3, [4, 6, 2], [2, 1, 0], 5, 4, 0)
    losses = {
        name: transducer_loss(*tensors, blank_id=4, reduction=name) for name in ("none", "sum", "mean", "mean_volume")
    }
    total = losses["none"].sum()
    torch.testing.assert_close(losses["sum"], total)
    torch.testing.assert_close(losses["mean"], total / 3)
    torch.testing.assert_close(losses["mean_volume"], total / 3)  # three labels as well
    empty = [tensor[:0] for tensor in tensors]
    assert transducer_loss(*empty, blank_id=4) == transducer_loss(*empty, blank_id=4, backend="oracle") == 0


@pytest.mark.parametrize("backend", ["oracle", "numba"])
def test_reductions_without_path(backend: str) -> None:
    logits, *said = example(3, [4, 6, 2], [2, 2, 0], 5, 4, 0)
    said[1][1] = 0
    options = {"blank_id": 4, "backend": backend}
    total, gradient = loss_and_gradient(logits, *said, reduction="sum", **options)
    losses_B = transducer_loss(logits, *said, reduction="none", **options)
    assert losses_B.isposinf().tolist() == [False, True, False] and gradient[1].count_nonzero() == 0
    torch.testing.assert_close(total, losses_B[0] + losses_B[2])
    for reduction in ("mean", "mean_volume"):  # of two utterances, of two labels
        loss, its_gradient = loss_and_gradient(logits, *said, reduction=reduction, **options)
        torch.testing.assert_close((loss, its_gradient), (total / 2, gradient / 2))
    for reduction in ("sum", "mean", "mean_volume"):
        one = [x[1:2] for x in (logits, *said)]
        loss, gradient = loss_and_gradient(*one, reduction=reduction, **options)
        assert loss.isposinf() and gradient.count_nonzero() == 0
    logits[2] = math.nan
    assert transducer_loss(logits, *said, reduction="mean", **options).isnan()


def test_omega_draws_the_rnnt_loss() -> None:
    tensors = example(2, [5], [2], 6, 5, 3)
    config = TransducerLossConfig(durations=(0, 1, 2), sigma=0.1, omega=0.5)
    tdt = transducer_loss(*tensors, blank_id=5, config=TransducerLossConfig(durations=(0, 1, 2), sigma=0.1))
    rnnt = transducer_loss(tensors[0][..., :6], *tensors[1:], blank_id=5)
    draws = [float(torch.rand((), generator=torch.Generator().manual_seed(seed))) for seed in range(8)]
    assert min(draws) < 0.5 < max(draws)
    for seed, chance in enumerate(draws):
        generator = torch.Generator().manual_seed(seed)
        loss = transducer_loss(*tensors, blank_id=5, config=config, generator=generator)
        torch.testing.assert_close(loss, rnnt if chance < 0.5 else tdt)


def small_joint(activation: str, num_outputs: int) -> tuple[Joint, torch.Tensor, torch.Tensor]:
    torch.manual_seed(11)
    module = Joint(JointConfig(hidden=8, activation=activation, max_symbols=10), 4, 4, num_outputs)
    return module, torch.randn(4, 7, 8, requires_grad=True), torch.randn(4, 5, 8, requires_grad=True)


SAID = (
    torch.tensor([[0, 4, 3], [1, 1, 9], [0, 9, 9], [3, 4, 0]]),
    torch.tensor([7, 5, 1, 0]),
    torch.tensor([3, 2, 0, 3]),
)


@pytest.mark.parametrize(
    ("activation", "config"), [*(("relu", config) for config in CONFIGS), ("tanh", RNNT), ("sigmoid", CONFIGS[2])]
)
def test_joint_equals_loss_of_logits(activation: str, config: TransducerLossConfig) -> None:
    module, encoded, predicted = small_joint(activation, 5 + len(config.durations))
    leaves = [encoded, predicted, module.output.weight, module.output.bias]
    options = {"blank_id": 2, "config": config, "reduction": "sum"}
    said = [x[:3] for x in SAID]
    inputs = (encoded[:3], predicted[:3])
    expected = joint_transducer_loss(module, *inputs, *said, backend="oracle", **options)
    expected_gradients = torch.autograd.grad(expected * 0.5, leaves)
    for max_nodes in (None, 1, 9, 28):  # all in one block; blocks of a frame; of 2, 2, 2 and 1; utterances
        loss = joint_transducer_loss(module, *inputs, *said, max_nodes=max_nodes, **options)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(torch.autograd.grad(loss * 0.5, leaves), expected_gradients, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("module", "function"),
    [(torch.nn.ReLU(inplace=True), torch.relu), (torch.nn.Tanh(), torch.tanh), (torch.nn.Sigmoid(), torch.sigmoid)],
)
def test_joint_of_ones_own(module: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Two attributes are enough, and the activation may be a module."""
    own, encoded, predicted = small_joint("relu", 5)
    joints: list[Any] = [SimpleNamespace(activation=given, output=own.output) for given in (module, function)]
    found = [joint_transducer_loss(joint, encoded, predicted, *SAID, blank_id=2) for joint in joints]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("width", [0, 1])
@pytest.mark.parametrize("config", CONFIGS)
def test_joint_without_labels(config: TransducerLossConfig, width: int) -> None:
    """A batch of recordings in which nobody speaks."""
    labels_BU, lengths_B = torch.zeros(4, width, dtype=torch.long), torch.zeros(4, dtype=torch.long)
    found = []
    for backend in ("oracle", "numba"):
        module, encoded, predicted = small_joint("relu", 5 + len(config.durations))
        inputs = (module, encoded, predicted[:, : width + 1], labels_BU, SAID[1], lengths_B)
        loss = joint_transducer_loss(*inputs, blank_id=2, config=config, reduction="sum", backend=backend)
        gradients = torch.autograd.grad(loss, [encoded, predicted, module.output.weight, module.output.bias])
        found.append((loss.detach(), *gradients))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_joint_skips_utterances_without_frames() -> None:
    module, encoded, predicted = small_joint("relu", 5)
    with torch.no_grad():
        losses_B = joint_transducer_loss(module, encoded, predicted, *SAID, blank_id=2, reduction="none")
    assert losses_B.isposinf().tolist() == [False, False, False, True]
    for backend in ("oracle", "numba"):
        found_B = torch.zeros(4)
        options = {"blank_id": 2, "reduction": "mean_volume", "losses_out_B": found_B, "backend": backend}
        loss = joint_transducer_loss(module, encoded, predicted, *SAID, **options)
        torch.testing.assert_close(found_B, losses_B)
        torch.testing.assert_close(loss.detach(), losses_B[:3].sum() / 5)
    loss.backward()
    assert encoded.grad is not None and encoded.grad.isfinite().all() and encoded.grad[3].count_nonzero() == 0


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_joint_in_bfloat16(weights: torch.dtype) -> None:
    """Within what bfloat16's 8 bits leave of activations, weights and gradients, whatever autocast thinks of it."""
    module, encoded, predicted = small_joint("relu", 5)
    said = [x[:3] for x in SAID]
    leaves = [encoded, predicted, module.output.weight, module.output.bias]
    expected = joint_transducer_loss(module, encoded[:3], predicted[:3], *said, blank_id=2)
    expected_gradients = torch.autograd.grad(expected, leaves)
    module = module.to(weights)
    inputs = [x.detach().bfloat16().requires_grad_() for x in (encoded, predicted)]
    leaves = [*inputs, module.output.weight, module.output.bias]
    with torch.autocast("cpu", torch.bfloat16):
        loss = joint_transducer_loss(module, *(x[:3] for x in inputs), *said, blank_id=2)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0)
    for gradient, leaf, wanted in zip(torch.autograd.grad(loss, leaves), leaves, expected_gradients, strict=True):
        assert gradient.dtype == leaf.dtype
        assert (gradient.float() - wanted).norm() < 0.02 * wanted.norm()


def test_joint_float16_sums() -> None:
    gradients = joint._Gradients(*(torch.zeros(1, 2, 3) for _ in range(2)), torch.zeros(5, 3), torch.zeros(5))
    rows = 50_000
    gradients.add_output(*(torch.full((rows, n), 1.5, dtype=torch.float16) for n in (5, 3)))
    torch.testing.assert_close(gradients.weight_WJ, torch.full((5, 3), 2.25 * rows), rtol=1e-3, atol=0)
    torch.testing.assert_close(gradients.bias_W, torch.full((5,), 1.5 * rows))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("max_nodes", [None, np.int8(8)])
def test_joint_dropout_gradient(activation: str, max_nodes: int | None) -> None:
    """The second pass drops what the first one dropped, in blocks too: the gradient is that of the loss."""
    module, encoded, predicted = small_joint(activation, 5)
    said, direction = [x[:3] for x in SAID], torch.randn(3, 7, 8)

    def loss(shift: float, dropout: float = 0.4) -> torch.Tensor:
        torch.manual_seed(1)
        options = {"blank_id": 2, "dropout": dropout, "reduction": "sum", "max_nodes": max_nodes}
        return joint_transducer_loss(module, encoded[:3] + shift * direction, predicted[:3], *said, **options)

    (gradient,) = torch.autograd.grad(loss(0.0), encoded)
    with torch.no_grad():
        assert abs(float(loss(0.0, dropout=0.0) - loss(0.0))) > 1e-2
        quotient = float(loss(2e-3) - loss(-2e-3)) / 4e-3
    assert quotient == pytest.approx(float((gradient[:3] * direction).sum()), rel=0.02)


def test_joint_unsupported() -> None:
    module, encoded, predicted = small_joint("relu", 5)
    said = [x[:3] for x in SAID]
    with pytest.raises(UsageError, match="no gradient"):
        joint_transducer_loss(module, encoded[:3], predicted[:3], *said, blank_id=2, reduction="none")
    with pytest.raises(UsageError, match="logits_dtype"):
        joint_transducer_loss(module, encoded[:3], predicted[:3], *said, blank_id=2, logits_dtype=torch.float64)
    linear = module.output
    for output in (torch.nn.Sequential(torch.nn.Dropout(), linear), torch.nn.Linear(8, 5, bias=False), None):
        for other in (SimpleNamespace(activation=torch.relu, output=output), SimpleNamespace(output=linear)):
            with pytest.raises(UsageError, match=r"the joint needs a torch\.nn\.Linear with bias as its output"):
                joint_transducer_loss(other, encoded[:3], predicted[:3], *said, blank_id=2)
    module.activation = torch.nn.functional.gelu
    with pytest.raises(
        UsageError, match=r"activation must be one of torch\.relu, torch\.tanh, torch.sigmoid, not .*gelu"
    ):
        joint_transducer_loss(module, encoded[:3], predicted[:3], *said, blank_id=2)
    joint_transducer_loss(module, encoded[:3], predicted[:3], *said, blank_id=2, backend="oracle")
    module.activation = torch.relu
    loss = joint_transducer_loss(module, encoded[:3], predicted[:3], *said, blank_id=2)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward only"):
        loss.backward()


@pytest.mark.parametrize("backend", ["oracle", "numba"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predicted_BUJ": torch.zeros(2, 5, 8)}, r"same batch size, not the shapes \(3, 7, 8\) and \(2, 5, 8\)"),
        ({"predicted_BUJ": torch.zeros(3, 5, 7)}, r"predicted must be \[batch, labels \+ 1, 8\] .* not \(3, 5, 7\)"),
        ({"encoded_BTJ": torch.zeros(3, 7, 9)}, r"encoded must be \[batch, frames, 8\] .* not \(3, 7, 9\)"),
        ({"encoded_BTJ": torch.zeros(7, 8)}, r"encoded must be .* not \(7, 8\)"),
        ({"encoded_BTJ": np.zeros((3, 7, 8))}, r"encoded must be a torch.Tensor, not numpy.ndarray"),
        ({"encoded_BTJ": torch.zeros(3, 7, 8, device="meta")}, "encoded is on meta, but the joint on cpu"),
        ({"predicted_BUJ": torch.zeros(3, 5, 8).half()}, "same dtype, not torch.float32 and torch.float16"),
        ({"labels_BU": [[0], [1], [2]]}, "labels must be a torch.Tensor, not builtins.list"),
        ({"dropout": 1}, "dropout must be 0 or more and below 1, not 1"),
        ({"dropout": -0.1}, "dropout must be"),
        ({"max_nodes": 0}, "max_nodes must be 1 or more lattice nodes, or None; not 0"),
    ],
)
def test_joint_bad_arguments(change: dict[str, object], message: str, backend: str) -> None:
    module, encoded, predicted = small_joint("relu", 5)
    names = ("encoded_BTJ", "predicted_BUJ", "labels_BU", "frame_lengths_B", "label_lengths_B")
    arguments = dict(zip(names, (x[:3] for x in (encoded, predicted, *SAID)), strict=True))
    options = arguments | {"blank_id": 2, "backend": backend}
    assert joint_transducer_loss(module, **options).isfinite()
    with pytest.raises(UsageError, match=message):
        joint_transducer_loss(module, **(options | change))


def test_group_below_2_to_the_31() -> None:
    for limits in (joint.group_limits("cuda", 640, 8198, 2, 10**9), joint.group_limits("cpu", 9000, 30, 4, 10**9)):
        assert 0.99 * 2**31 < limits.group * max(8198, 9000 if limits.group < 250_000 else 0) < 2**31


def test_group_sizes() -> None:
    lengths = ([5, 5, 30, 1, 0, 9, 0, 50, 25], [1, 1, 0, 0, 3, 1, 7, 1, 3])
    groups = joint._groups(*lengths, joint.GroupLimits(20, 40))
    found = [
        [[(span.row, span.first_frame, span.stop_frame, span.start) for span in block] for block in g] for g in groups
    ]
    assert found == [
        [[(0, 0, 5, 0), (1, 0, 5, 10)]],
        [[(2, 0, 30, 0)]],  # above a group's size, but one block
        [[(3, 0, 1, 0), (4, 0, 0, 1), (5, 0, 9, 1), (6, 0, 0, 19)]],
        [[(7, start, start + 10, 0)] for start in range(0, 50, 10)],
        [[(8, start, start + 5, 0)] for start in range(0, 25, 5)],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [CONFIGS[1], CONFIGS[3], CONFIGS[6]])
def test_blocks_of_frames(config: TransducerLossConfig, dtype: torch.dtype) -> None:
    """Losses are the same bits whatever the blocks, and gradients within the rounding of their sums."""
    module, encoded, predicted = small_joint("relu", 5 + len(config.durations))
    encoded, predicted = (x.detach().to(dtype).requires_grad_() for x in (encoded, predicted))
    leaves = [encoded, predicted, module.output.weight, module.output.bias]
    said = (SAID[0], torch.tensor([7, 6, 1, 1]), torch.tensor([3, 0, 0, 1]))
    found = []
    for max_nodes in (None, 1, 3, 5, 9):
        losses_B, options = torch.zeros(4), {"blank_id": 2, "config": config, "reduction": "sum"}
        inputs = (module, encoded, predicted, *said)
        loss = joint_transducer_loss(*inputs, losses_out_B=losses_B, max_nodes=max_nodes, **options)
        with torch.no_grad():
            again_B = joint_transducer_loss(*inputs, blank_id=2, config=config, reduction="none", max_nodes=max_nodes)
        torch.testing.assert_close(again_B, losses_B, rtol=0, atol=0)
        found.append((losses_B, *torch.autograd.grad(loss, leaves)))
    rounding = {"rtol": 1e-4, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for blocks in found[1:]:
        torch.testing.assert_close(blocks[0], found[0][0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(blocks, found[0], **rounding)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blank_id": 6}, "blank_id 6"),
        ({"labels_BU": torch.tensor([[5, 0], [0, 0]])}, "not blank"),
        ({"labels_BU": torch.tensor([[0, 6], [0, 0]])}, "among 6 tokens"),
        ({"labels_BU": torch.tensor([[0], [0]])}, "labels must be"),
        ({"frame_lengths_B": torch.tensor([4, 5])}, "frame lengths must be between 0 and 4"),
        ({"label_lengths_B": torch.tensor([3, 1])}, "label lengths must be between 0 and 2"),
        ({"label_lengths_B": torch.tensor([2])}, r"label lengths must be \[2\]"),
        ({"logits_BTUV": torch.zeros(2, 4, 6)}, "logits must be"),
        ({"logits_BTUV": torch.zeros(2, 4, 3, 6, dtype=torch.float64)}, "float64"),
        ({"logits_BTUV": np.zeros((2, 4, 3, 6), np.float32)}, "logits must be a torch.Tensor, not numpy.ndarray"),
        ({"logits_BTUV": torch.zeros(2, 4, 3, 6, dtype=torch.int64), "backend": "oracle"}, "not torch.int64"),
        ({"labels_BU": torch.tensor([[0.5, 1.9], [2, 0]])}, "labels must be integers, not torch.float32"),
        ({"labels_BU": [[0, 1], [2, 0]]}, "labels must be a torch.Tensor, not builtins.list"),
        ({"frame_lengths_B": torch.tensor([4.0, 3.5])}, "frame lengths must be integers, not torch.float32"),
        ({"frame_lengths_B": [4, 3]}, "frame lengths must be a torch.Tensor"),
        ({"label_lengths_B": torch.tensor([True, True])}, "label lengths must be integers, not torch.bool"),
        ({"blank_id": 5.0}, "blank_id 5.0"),
        ({"reduction": "mean_batch"}, "reduction is one of"),
        ({"backend": "cuda"}, "backend is one of"),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "logits_BTUV": torch.zeros(2, 4, 3, 6),
        "labels_BU": torch.tensor([[0, 1], [2, 0]]),
        "frame_lengths_B": torch.tensor([4, 3]),
        "label_lengths_B": torch.tensor([2, 1]),
        "blank_id": 5,
    }
    assert transducer_loss(**arguments).isfinite()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        transducer_loss(**(arguments | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"durations": (1, 0)},
        {"durations": (0,)},
        {"durations": (-1, 1)},
        {"durations": (0, 1.5)},
        {"durations": (0, 1), "sigma": -1.0},
        {"durations": (0, 1), "sigma": math.inf},
        {"durations": (0, 1), "omega": 1.5},
        {"sigma": 0.05},
        {"omega": 0.1},
        {"fastemit": -0.1},
        {"fastemit": math.nan},
        {"clamp": 0.0},
    ],
)
def test_bad_configs(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        TransducerLossConfig(**options)  # type: ignore[arg-type]


def test_widen_and_narrow() -> None:
    bits = np.arange(0, 65536, 7, dtype=np.uint16)  # of all signs, exponents and lengths of the rest
    halves = torch.from_numpy(bits.view(np.int16).copy())
    rng = np.random.default_rng(0)
    values = np.ldexp(rng.standard_normal(4000), rng.integers(-30, 20, 4000)).astype(np.float32)
    values = np.concatenate([values, np.float32([0.0, -0.0, 65519.9, 65520.0, np.inf, -np.inf, 2**-25, 3 * 2**-25])])
    for dtype, name in ((torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
        widen, narrow = float_bits.READERS[name]
        expected = halves.view(dtype).float().numpy()
        is_number = ~np.isnan(expected)
        widened = np.array([widen(x) for x in bits[is_number]])
        assert (widened.view(np.uint32) == expected[is_number].view(np.uint32)).all()
        narrowed = np.array([narrow(x) for x in values])
        wanted = torch.from_numpy(values).to(dtype).view(torch.int16).numpy().view(np.uint16)
        assert (narrowed == wanted).all()
        assert np.isnan(widen(narrow(np.float32(np.nan))))


def test_exponential() -> None:
    x = np.concatenate([np.linspace(-87, 0, 20_001, dtype=np.float32), np.float32([-88, -1e30, -np.inf])])
    expected = np.exp(x.astype(np.float64))
    computed = np.array([float_bits.exponential(value) for value in x])
    assert computed.dtype == np.float32
    assert (np.abs(computed - expected) <= 3e-7 * expected + 2e-38).all()


def test_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(recursion.larger)
    assert compile_cached(recursion.larger)(1.0, 2.0) == 2.0
