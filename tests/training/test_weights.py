"""The optimiser's view of a model, against torch's optimiser and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fastscribe.training.recipe import OptimiserRecipe
from fastscribe.training.weights import Weights


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Conv1d(1, 1, 3))


def give_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        gradient = scale * torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient.to(parameter.dtype)


def test_float32_equals_adamw() -> None:
    ours, theirs = network(), network()
    weights = Weights(ours, torch.float32, PLAIN)
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=0.0, betas=PLAIN.betas, weight_decay=0.0)
    for step in range(5):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for group in optimiser.param_groups:
            group["lr"] = weights.learning_rate(step / 5)
        optimiser.step()
        weights.step(step / 5)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b)


PLAIN = OptimiserRecipe(learning_rate=1e-2, warmup_steps=0, clip_norm=None, weight_decay=0.0, ema=0.0)


def test_small_steps_add_up() -> None:
    """In bf16, 1 + 0.0001 is 1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    recipe = OptimiserRecipe(learning_rate=1e-4, min_learning_rate=1e-4, warmup_steps=0, weight_decay=0.0, ema=0.0)
    weights = Weights(model, torch.bfloat16, recipe)
    for _ in range(200):
        model.weight.grad = torch.full_like(model.weight, -1.0)
        weights.step(0.0)
    assert model.weight.dtype == torch.bfloat16
    assert float(weights.masters["weight"]) == pytest.approx(1.02, abs=1e-3)
    assert float(model.weight.detach()) == pytest.approx(1.02, abs=5e-3)


def test_float32_weights_not_rounded() -> None:
    model = network()
    nn.init.uniform_(model[1].weight)
    model[1].running_var.uniform_(0.0, 9.0)
    before = {name: tensor.clone() for name, tensor in model[1].state_dict().items()}
    kept = Weights(model, torch.bfloat16, PLAIN).export()
    for name, tensor in before.items():
        assert torch.equal(model[1].state_dict()[name], tensor) and torch.equal(kept[f"1.{name}"], tensor)


def test_warm_up_and_cosine() -> None:
    recipe = OptimiserRecipe(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=10)
    weights = Weights(network(), torch.float32, recipe)
    assert weights.learning_rate(0.0) == pytest.approx(0.1)  # the first of ten steps
    weights.num_steps = 10
    rates = [weights.learning_rate(share) for share in (0.0, 0.5, 1.0, 2.0)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(("run_steps", "warmup_steps"), [(1, 0), (9, 0), (40, 4), (99, 9), (100, 10), (5000, 10)])
def test_warm_up_of_short_run(run_steps: int, warmup_steps: int) -> None:
    recipe = OptimiserRecipe(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=10)
    weights = Weights(network(), torch.float32, recipe)
    weights.set_total_steps(run_steps)
    assert weights.warmup_steps == warmup_steps
    rates = []
    for step in range(run_steps):
        weights.num_steps = step
        rates.append(weights.learning_rate((step + 1) / run_steps))
    first = max(1, warmup_steps)
    assert rates[:warmup_steps] == pytest.approx([(step + 1) / first for step in range(warmup_steps)])
    assert rates[first - 1 :] == sorted(rates[first - 1 :], reverse=True)  # descending after that
    assert rates[-1] == pytest.approx(0.1) and (run_steps < 9 or max(rates) > 0.95)


def test_average_and_clip() -> None:
    recipe = OptimiserRecipe(learning_rate=1e-2, warmup_steps=0, clip_norm=0.5, ema=0.0)
    one, two = network(), network()
    first, second = Weights(one, torch.float32, recipe), Weights(two, torch.float32, recipe)
    give_gradients(one, 1, scale=100.0)
    give_gradients(two, 1, scale=300.0)
    norms = first.step(0.0), second.step(0.0, weight=3)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and norms[0] > 0.5
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_float32_gradient_sums() -> None:
    """In bf16, 1 + 0.001 is 1."""
    model = nn.Linear(1, 1, bias=False)
    weights = Weights(model, torch.bfloat16, PLAIN)
    for gradient in (1.0, *[0.001] * 1000):
        model.weight.grad = torch.full_like(model.weight, gradient)
        weights.accumulate_gradients()
        assert model.weight.grad is None
    assert weights.step(0.0, weight=1001) == pytest.approx(2 / 1001, rel=0.01)


def test_step_without_gradients() -> None:
    model = network()
    weights = Weights(model, torch.float32, OptimiserRecipe(warmup_steps=0))
    give_gradients(model, 0)
    weights.step(0.0)
    before = {name: tensor.clone() for name, tensor in weights.export().items()}
    assert weights.step(0.0, weight=0) == 0.0 and weights.num_steps == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.export().items())


def test_nan_gradient() -> None:
    model = network()
    weights = Weights(model, torch.float32, PLAIN)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    give_gradients(model, 0)
    model[0].weight.grad[0, 0] = math.nan
    assert math.isnan(weights.step(0.0))
    for a, b in zip(model.parameters(), before, strict=True):
        assert torch.equal(a, b)
    assert weights.num_steps == 1 and all(parameter.grad is None for parameter in model.parameters())


def test_batch_norm_restored() -> None:
    model = network()
    weights = Weights(model, torch.float32, PLAIN)
    batches = {step: torch.randn(4, 4) for step in range(3)}
    batches[1][0, 0] = math.nan
    for step, rows in batches.items():
        before = [buffer.clone() for buffer in model.buffers()]
        model[:2](rows).sum().backward()
        weights.step(0.0)
        is_same = [torch.equal(a, b) for a, b in zip(model.buffers(), before, strict=True)]
        assert all(is_same) if step == 1 else not any(is_same)
    resumed = network(seed=1)
    again = Weights(resumed, torch.float32, PLAIN)
    again.restore(weights.state())
    resumed[:2](batches[1]).sum().backward()
    again.step(0.0)
    assert all(torch.equal(a, b) for a, b in zip(resumed.buffers(), model.buffers(), strict=True))


def test_moving_average() -> None:
    model = nn.Linear(1, 1, bias=False)
    recipe = OptimiserRecipe(learning_rate=0.1, min_learning_rate=0.1, warmup_steps=0, weight_decay=0.0, ema=0.9)
    weights = Weights(model, torch.float32, recipe)
    expected = float(weights.masters["weight"])
    for step in range(1, 30):
        model.weight.grad = torch.ones_like(model.weight)
        weights.step(0.0)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * float(model.weight.detach())
        assert float(weights.averages["weight"]) == pytest.approx(expected, abs=1e-5)
        assert float(weights.export()["weight"]) == pytest.approx(expected, abs=1e-5)
