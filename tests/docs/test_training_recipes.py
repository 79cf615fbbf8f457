"""The recipes for fine-tuning in docs/examples: each family of models can start with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from fastscribe.training.data import prepare
from fastscribe.training.recipe import read_recipe
from fastscribe.training.state import RunFolder
from fastscribe.training.trainer import Trainer
from tests.conftest import MODELS, ROOT, checkpoint
from tests.training.conftest import manifest  # noqa: F401 - a fixture
from tests.training.test_bpe import sentences

TRAIN = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
RECIPES = sorted((ROOT / "docs" / "examples").glob("finetune*.yaml"))


@pytest.fixture(scope="module")
def rows(manifest: Path) -> str:  # noqa: F811
    """A manifest with enough made-up words for 512 pieces."""
    clips = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    texts = sentences(200)
    rows = [{**clips[number % len(clips)], "text": text} for number, text in enumerate(texts)]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("model", ["tdt_demo", "hybrid", "ctc", "rnnt"])
def test_a_run_can_start(path: Path, model: str, rows: str, tmp_path: Path) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    for part in (*values["data"]["train"], *values["data"].get("validation", [])):
        (tmp_path / (part if isinstance(part, str) else part["path"])).write_text(rows, encoding="utf-8")
    recipe = read_recipe(Path(shutil.copy(path, tmp_path)), is_tuning=True)
    data = prepare(recipe, checkpoint(MODELS / model))
    trainer = Trainer(recipe, data, RunFolder(tmp_path), torch.device("cpu"), torch.float32, print)
    assert trainer.planner.num_steps(recipe.run.epochs) >= recipe.run.epochs and len(trainer.examples) > 100
    assert trainer.rates_start == ("model" not in values)


def test_the_guide_names_all() -> None:
    assert len(RECIPES) == 5
    assert all(f"(examples/{path.name})" in TRAIN for path in RECIPES)
    assert all(f"fastscribe train {path.name} --init nvidia/" in path.read_text(encoding="utf-8") for path in RECIPES)
