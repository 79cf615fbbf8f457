"""Gradient checkpointing changes the memory of a step and nothing else: losses, gradients and statistics are the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastscribe.training.learner import checkpoint_encoder, targets_of
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.network import Network
from fastscribe.training.recipe import OptimiserRecipe
from fastscribe.training.sync_norm import synchronise_norms
from fastscribe.training.weights import Weights, freeze
from tests.training.test_network import CPU, noise, tiny
from tests.training.test_trainer import recipe_of, trainer_of

TARGETS = [(1, 2), (3,), (4, 5, 6)]
PARTLY = "first layer"


def steps(is_checkpointed: bool, dtype: torch.dtype, frozen: tuple[Any, ...]) -> dict[str, torch.Tensor]:
    """Losses, gradients and weights of three steps with dropout, and BatchNorm's statistics after them."""
    model = tiny()
    if PARTLY in frozen:
        model.encoder.layers[0].requires_grad_(False)  # type: ignore[index]
    freeze(model, [name for name in frozen if name != PARTLY])
    weights = Weights(model, dtype, OptimiserRecipe(learning_rate=1e-2, warmup_steps=0))
    network = Network(model, TransducerLossConfig((0, 1, 2, 3, 4)), 0.3, dropout=0.2)
    if is_checkpointed:
        checkpoint_encoder(model.encoder)  # type: ignore[arg-type]
    network.train()
    torch.manual_seed(7)
    found = {}
    for step in range(3):
        losses = network(noise(), targets_of(TARGETS, CPU), 1.0)
        losses["loss"].backward()
        found |= {f"{step} {name}": loss.detach() for name, loss in losses.items()}
        weights.accumulate_gradients()
        gradients = {name: master.grad for name, master in weights.masters.items() if master.grad is not None}
        found |= {f"{step} gradient {name}": gradient.clone() for name, gradient in gradients.items()}
        weights.step(step / 3)
    return found | weights.export() | {"next random number": torch.rand(1)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("frozen", [(), ("batch_norm",), ("encoder",), (PARTLY, "joint")], ids=str)
def test_steps_are_the_same_bits(dtype: torch.dtype, frozen: tuple[Any, ...]) -> None:
    expected, found = (steps(is_checkpointed, dtype, frozen) for is_checkpointed in (False, True))
    assert expected.keys() == found.keys() and any("gradient" in name for name in expected)
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []
    tracked = [int(value) for name, value in found.items() if name.endswith("num_batches_tracked")]
    assert tracked == [0 if {"batch_norm", "encoder"} & {*frozen} else 3] * 2


def test_less_is_kept() -> None:
    """A part keeps what it was given: the features, the layers' inputs, and what all layers share."""
    kept = []
    for is_checkpointed in (False, True):
        model = tiny()
        if is_checkpointed:
            checkpoint_encoder(model.encoder)  # type: ignore[arg-type]
        weights = {parameter.data_ptr() for parameter in model.parameters()}
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor, weights: set[int] = weights, sizes: dict[int, int] = sizes) -> torch.Tensor:
            if tensor.data_ptr() not in weights:
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            frames = model.encoder.train()(noise())
        kept.append(sum(sizes.values()))
        num_bytes = frames.frames_BTD.numel() * 4
        frames.frames_BTD.sum().backward()
    features_bytes = 4 * noise().mel_BMT.numel()
    assert kept[1] <= features_bytes + 3 * num_bytes < kept[0] / 5


def test_repetitions_wait_for_no_rank(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    reduce = dist.all_reduce
    for is_checkpointed in (False, True):
        model, calls = tiny(), []
        assert synchronise_norms(model)
        if is_checkpointed:
            checkpoint_encoder(model.encoder)  # type: ignore[arg-type]
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, calls=calls: (calls.append(1), reduce(tensor)))
        model.encoder.train()(noise()).frames_BTD.square().sum().backward()
        counts.append((len(calls), [buffer.clone() for buffer in model.buffers()]))
    (expected, tracked), (count, tracked_once) = counts
    assert count == expected == 2 * 3  # of two layers: two sums of the first pass and one of the backward pass
    assert all(map(torch.equal, tracked, tracked_once))


def test_the_recipe_decides(manifest: Path, tmp_path: Path) -> None:
    """That runs are the same is in test_lora.py, whose run goes on with checkpointing where it stopped without."""
    for is_checkpointed in (False, True):
        recipe = recipe_of(manifest, batch={"gradient_checkpointing": is_checkpointed})
        layers = trainer_of(recipe, tmp_path / str(is_checkpointed)).model.encoder.layers
        assert all(("forward" in vars(layer)) == is_checkpointed for layer in layers.children())  # type: ignore[union-attr,operator]
