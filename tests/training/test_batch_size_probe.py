"""The probe of batch sizes with a simulated memory: the network reports when it is full."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastscribe.training.batch_search import fits, search_batch_sizes
from fastscribe.training.buckets import Bucket
from fastscribe.training.trainer import Trainer
from tests.training.test_trainer import manifest, recipe_of, trainer_of  # noqa: F401 - a fixture


@pytest.fixture
def trainer(manifest: Path, tmp_path: Path) -> Trainer:  # noqa: F811
    return trainer_of(recipe_of(manifest), tmp_path / "run")


def probed(trainer: Trainer) -> tuple[object, ...]:
    return trainer.learner.network, trainer.training_data.checkpoint.config, trainer.recipe.batch.accumulate > 1


def full_above(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[tuple[int, int, int]]:
    """Record (rows, frames, labels) of the probes."""
    tried: list[tuple[int, int, int]] = []
    forward = trainer.learner.network.forward

    def limited(features, targets, omega_draw):
        rows, _, frames = features.mel_BMT.shape
        tried.append((rows, frames, targets.labels_BU.shape[1]))
        if rows * frames > 100 * seconds:
            raise torch.OutOfMemoryError("no room")
        return forward(features, targets, omega_draw)

    monkeypatch.setattr(trainer.learner.network, "forward", limited)
    return tried


def test_largest_batches(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = full_above(trainer, monkeypatch, 10.0)
    buckets = (Bucket(1.0, 4), Bucket(2.0, 8))
    small, large = search_batch_sizes(buckets, lambda bucket, rows: fits(*probed(trainer), bucket, rows))
    assert 8 <= small <= 10 and 4 <= large <= 5
    assert {(frames, labels) for _, frames, labels in tried} == {(100, 4), (200, 8)}


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
