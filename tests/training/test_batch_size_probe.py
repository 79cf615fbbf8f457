"""The probe of batch sizes with a simulated memory: the network reports when it is full."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastscribe.training.batch_search import fits
from fastscribe.training.buckets import Bucket
from fastscribe.training.network import Targets
from fastscribe.training.trainer import Trainer
from fastscribe.types import Features
from tests.training.test_trainer import recipe_of, trainer_of


@pytest.fixture
def trainer(manifest: Path, tmp_path: Path) -> Trainer:
    return trainer_of(recipe_of(manifest), tmp_path / "run")


def probed(trainer: Trainer) -> tuple[object, ...]:
    return trainer.learner.network, trainer.training_data.checkpoint.config, trainer.recipe.batch.accumulate > 1


def test_a_probe_has_the_shape_of_its_bucket(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = trainer.learner.network.forward

    def limited(features: Features, targets: Targets, omega_draw: float) -> dict[str, torch.Tensor]:
        assert (features.mel_BMT.shape[2], targets.labels_BU.shape[1]) == (200, 8)
        if len(features.mel_BMT) > 2:
            raise torch.OutOfMemoryError("no room")
        return forward(features, targets, omega_draw)

    monkeypatch.setattr(trainer.learner.network, "forward", limited)
    assert [fits(*probed(trainer), Bucket(2.0, 8), rows) for rows in (1, 2, 3)] == [True, True, False]


def test_probe_leaves_no_trace(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: tensor.clone() for name, tensor in trainer.weights.masters.items()}
    buffers = [buffer.clone() for buffer in trainer.learner.network.buffers()]
    assert fits(*probed(trainer), Bucket(1.0, 3), 2)
    assert buffers and all(map(torch.equal, trainer.learner.network.buffers(), buffers))
    assert all(parameter.grad is None for parameter in trainer.learner.network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.weights.masters.items())
    monkeypatch.setattr(trainer.learner.network, "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fits(*probed(trainer), Bucket(1.0, 3), 2)
