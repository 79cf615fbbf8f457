"""The search for batch sizes against simulated memories of known size, its cache file, and its trial of a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.errors import OutputError, UsageError
from fastscribe.training.batch_search import cached_batch_sizes, fits, search_batch_sizes
from fastscribe.training.buckets import Bucket
from fastscribe.training.network import Targets
from fastscribe.training.trainer import Trainer
from fastscribe.types import Features
from tests.training.test_trainer import recipe_of, trainer_of

BUCKETS = (Bucket(2.0, 10), Bucket(2.0, 20), Bucket(5.0, 15), Bucket(5.0, 60))
WHAT = {"model": {"d_model": 4, "durations": (0, 1)}, "device": "a card", "memory": 1 << 30, "dtype": "bfloat16"}


class Memory:
    """A device's memory: the encoder, full attention and the transducer's lattice have to fit, and trials are counted."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.trials: list[tuple[Bucket, int]] = []

    def fits(self, bucket: Bucket, rows: int) -> bool:
        self.trials.append((bucket, rows))
        return rows <= self.rows_of(bucket)

    def rows_of(self, bucket: Bucket) -> float:
        duration_s, tokens = bucket
        return self.budget / (duration_s * (1 + 0.01 * duration_s + 0.002 * (tokens + 1)))


buckets = st.lists(st.builds(Bucket, st.floats(0.5, 40), st.integers(0, 300)), min_size=1, max_size=12, unique=True)


@given(buckets, st.floats(800, 1e5), st.integers(1, 3000))
def test_found_sizes_fit(buckets, budget, max_rows) -> None:
    memory = Memory(budget)
    for bucket, rows in zip(buckets, search_batch_sizes(buckets, memory.fits, max_rows), strict=True):
        right = min(max_rows, max(1, int(memory.rows_of(bucket))))
        assert 1 <= rows <= max(1, 0.9 * right)
        assert rows >= int(0.9 * (0.95 * right - 1)) or rows == 1
    assert len(memory.trials) == len(set(memory.trials))  # no size is tried twice
    assert all(rows <= max_rows for _, rows in memory.trials)


def test_smaller_buckets_reuse_larger() -> None:
    memory = Memory(1000)
    search_batch_sizes(BUCKETS, memory.fits)
    assert memory.trials[0] == (BUCKETS[3], 1)
    assert min(rows for bucket, rows in memory.trials if bucket == BUCKETS[0]) > 300
    assert len(memory.trials) < 40


def test_one_row_too_large() -> None:
    with pytest.raises(UsageError, match="no memory for one recording of 5 s with 60 tokens"):
        search_batch_sizes(BUCKETS, lambda bucket, rows: False)


def test_cache(tmp_path) -> None:
    path, memory = tmp_path / "sizes.json", Memory(1000)
    found = cached_batch_sizes(path, WHAT, BUCKETS, memory.fits)
    tried = len(memory.trials)
    assert cached_batch_sizes(path, WHAT, BUCKETS, memory.fits) == found and len(memory.trials) == tried
    assert [p.name for p in tmp_path.iterdir()] == ["sizes.json"]
    assert cached_batch_sizes(path, WHAT | {"dtype": "float32"}, BUCKETS, Memory(500).fits) != found
    for what, buckets in ((WHAT, BUCKETS), (WHAT, BUCKETS[1:])):  # for something else
        memory.trials.clear()
        assert cached_batch_sizes(path, what, buckets, memory.fits) == found[-len(buckets) :] and memory.trials


@pytest.mark.parametrize("damage", ["", "{", "[]", "3", '{"batch_sizes": [1]}'])
def test_damaged_cache(tmp_path, damage) -> None:
    path, memory = tmp_path / "sizes.json", Memory(1000)
    path.write_text(damage)
    assert cached_batch_sizes(path, WHAT, BUCKETS, memory.fits) and memory.trials


@pytest.mark.parametrize("sizes", [[1, 2, 3], [1, 2, 3, 0], [1, 2, 3, "4"], [1, 2, 3, True], None])
def test_impossible_sizes_in_cache(tmp_path, sizes) -> None:
    path = tmp_path / "sizes.json"
    found = cached_batch_sizes(path, WHAT, BUCKETS, Memory(1000).fits)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"batch_sizes": sizes}))
    assert cached_batch_sizes(path, WHAT, BUCKETS, Memory(1000).fits) == found


def test_unwritable_cache(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        cached_batch_sizes(tmp_path / "file" / "sizes.json", WHAT, BUCKETS, Memory(1000).fits)


# --- the trial: a network with a simulated memory ---------------------------------------------------------------------


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
