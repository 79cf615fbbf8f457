"""Recipes: what YAML says becomes values, and what it says wrong becomes one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastscribe.errors import UsageError
from fastscribe.training.recipe import ModelRecipe, Recipe, default_recipe, parse_recipe, read_recipe

WHERE = Path("folder/recipe.yaml")


def test_sections_and_paths_beside_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "data: {train: [a.jsonl, {path: sub/b.jsonl, repeat: 2}], validation: c.jsonl}\n"
        "model: {d_model: 64, durations: [], ff_hidden: null}\n"
        "batch: {seconds: 30}\naugment: {speeds: [1.0], gain_db: [-3, 3]}\n"
        "optimiser: {betas: [0.9, 0.99], clip_norm: null}\n"
    )
    recipe = read_recipe(path)
    assert [(part.path, part.repeat) for part in recipe.data.train] == [
        (str(tmp_path / "a.jsonl"), 1.0),
        (str(tmp_path / "sub/b.jsonl"), 2.0),
    ]
    assert recipe.data.validation[0].path == str(tmp_path / "c.jsonl")
    assert recipe.model.d_model == 64 and recipe.model.durations == () and recipe.model.ff_hidden is None
    assert recipe.batch.seconds == 30 and recipe.augment.gain_db == (-3, 3)
    assert recipe.optimiser.clip_norm is None and recipe.optimiser.betas == (0.9, 0.99)
    assert recipe.run == Recipe(recipe.data).run


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "not a mapping of sections"),
        ({}, "data.train: give the manifests"),
        ({"data": {"train": [3]}}, "data.train: not a manifest's path"),
        ({"data": {"train": "a"}, "modle": {}}, "modle: no such key; model?"),
        ({"data": {"train": "a"}, "model": {"d_modl": 3}}, "model.d_modl: no such key; model.d_model?"),
        ({"data": {"train": "a"}, "model": {"d_model": "x"}}, "model.d_model: 'x' is not a whole number"),
        ({"data": {"train": "a"}, "model": {"ctc": 1}}, "model.ctc: 1 is not true or false"),
        ({"data": {"train": "a"}, "batch": {"seconds": "most"}}, "batch.seconds: 'most' is not a number or 'auto'"),
        ({"data": {"train": "a"}, "optimiser": {"betas": [1]}}, "optimiser.betas: [1] is not a list of the right"),
        ({"data": {"train": "a"}, "augment": {"speeds": [3.0]}}, "speeds"),
        ({"data": {"train": "a"}, "optimiser": 3}, "optimiser: not a mapping"),
    ],
)
def test_mistakes(values: object, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_recipe(values, WHERE)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("data: [")
    with pytest.raises(UsageError, match=r"a\.yaml: cannot be read"):
        read_recipe(tmp_path / "a.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_recipe(tmp_path / "none.yaml")


def test_models_of_each_kind() -> None:
    assert ModelRecipe().config(10).family == "hybrid tdt+ctc"
    assert ModelRecipe(durations=(), ctc=False).config(10).family == "rnnt"
    assert ModelRecipe(transducer=False).config(10).decoders == ("ctc",)
    assert ModelRecipe().config(10).frame_s == pytest.approx(0.08)


def test_tuning_takes_smaller_steps() -> None:
    fresh, tuned = default_recipe(Path("a.jsonl"), False), default_recipe(Path("a.jsonl"), True)
    assert tuned.optimiser.learning_rate < fresh.optimiser.learning_rate
    assert tuned.run.epochs < fresh.run.epochs
