"""What all tests of training share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.conftest import DATA

MANIFEST = DATA / "manifest.jsonl"
SECTIONS: dict[str, Any] = {
    "model": {
        "vocab_size": 64,
        "num_layers": 2,
        "d_model": 32,
        "num_mels": 16,
        "subsampling_channels": 8,
        "predictor_hidden": 16,
        "joint_hidden": 16,
    },
    "batch": {"seconds": 12, "buckets": 3, "token_buckets": 1},
    "optimiser": {"warmup_steps": 4, "learning_rate": 3e-3},
    "run": {"epochs": 3},
}


@pytest.fixture(scope="package", autouse=True)
def _cheap_validation() -> Iterator[None]:
    """Drawing takes as long as training these models. test_plot draws, and test_the_command_by_torchrun.

    So do ten labels at each frame, which are what a model writes that has learnt little: new ones stop at two.
    """
    from fastscribe.training import model_recipe, trainer

    joint_config = model_recipe.JointConfig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "plot_log", lambda *given: None)
        patch.setattr(model_recipe, "JointConfig", lambda hidden, activation, _: joint_config(hidden, activation, 2))
        yield


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight clips to train on, two of them for validation."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [json.loads(line) for line in MANIFEST.read_text(encoding="utf-8").splitlines()]
    rows = [{**row, "audio_filepath": str(DATA / row["audio_filepath"])} for row in rows if row.get("text")][:8]
    for name, part in (("train", rows), ("validation", rows[:2])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return folder / "train.jsonl"


@pytest.fixture
def few(manifest: Path) -> Path:
    """Two of the clips, beside what to validate with."""
    path = manifest.with_name("few.jsonl")
    path.write_text("".join(manifest.read_text(encoding="utf-8").splitlines(keepends=True)[:2]), encoding="utf-8")
    return path


@pytest.fixture
def recipe_file(manifest: Path, tmp_path: Path) -> Path:
    data = {"train": str(manifest), "validation": str(manifest.with_name("validation.jsonl"))}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"data": data, **SECTIONS}))  # JSON is YAML
    return path


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
