"""The changes that make a run another one, and those that do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.training.corpus import Example, Examples, ManifestPart
from fastscribe.training.fingerprint import fingerprint, named_difference
from fastscribe.training.model_recipe import ModelRecipe
from fastscribe.training.recipe import DataRecipe, LoraRecipe, OptimiserRecipe, Recipe, RunRecipe
from tests.conftest import MODELS

DATA = DataRecipe((ManifestPart("a.jsonl"),))
EXAMPLES = (Example("a.wav", "one", 1.0, 0.0, (1, 2)), Example("a.wav", "two", 1.0, 1.0, (3,)))


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return replace(read_checkpoint(MODELS / "tdt_demo" / "model.nemo"), weights={})


def differing(known: Checkpoint, **others: Any) -> list[str]:
    given = {"recipe": Recipe(DATA), "checkpoint": known, "data": "digest", "validation": EXAMPLES[:1]}
    first, second = fingerprint(**given), fingerprint(**{**given, **others})  # type: ignore[arg-type]
    return [name for name in first if first[name] != second[name]]


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(DataRecipe((ManifestPart("elsewhere/a.jsonl"),), validation=(ManifestPart("b"),))),
        Recipe(replace(DATA, threads=1, cache_gb=0.5)),
        Recipe(DATA, run=RunRecipe(save_minutes=1)),
        Recipe(DATA, run=RunRecipe(epochs=7, validate_epochs=3)),
    ],
)
def test_free_settings(checkpoint: Checkpoint, recipe: Recipe) -> None:
    assert differing(checkpoint, recipe=recipe) == []
    moved = [replace(example, path="moved.wav") for example in EXAMPLES]
    assert Examples.of(moved).digest() == Examples.of(EXAMPLES).digest()


@pytest.mark.parametrize(
    "change", [{"text": "three"}, {"tokens": (9,)}, {"duration_s": 1.1}, {"offset_s": 2.0}, {"part": 1}, {"part": 2}]
)
def test_examples(checkpoint: Checkpoint, change: dict[str, Any]) -> None:
    changed = (EXAMPLES[0], replace(EXAMPLES[1], **change))
    parts = (ManifestPart("a"), ManifestPart("b", repeat=2.0), ManifestPart("c", share=0.5))
    digests = {Examples.of(examples, parts).digest() for examples in (EXAMPLES, changed, EXAMPLES[::-1])}
    assert len(digests) == 3
    assert differing(checkpoint, data="another") == ["data"]
    if "part" not in change:
        assert differing(checkpoint, validation=[replace(EXAMPLES[0], **change)]) == ["validation set"]


def test_recipe_vocabulary_and_model(checkpoint: Checkpoint) -> None:
    assert differing(checkpoint, recipe=Recipe(DATA, optimiser=OptimiserRecipe(dropout=0.5))) == ["recipe"]
    files = {name: content + b" " for name, content in checkpoint.tokenizer.files.items()}
    other = replace(checkpoint, tokenizer=replace(checkpoint.tokenizer, files=files))
    assert files and differing(checkpoint, checkpoint=other) == ["vocabulary"]


def test_starting_weights(checkpoint: Checkpoint) -> None:
    weights = {"a": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.tensor(1)}
    start = replace(checkpoint, weights=weights)
    assert differing(start, checkpoint=replace(checkpoint, weights=dict(reversed(weights.items())))) == []
    for changed in ({"a": torch.zeros(3, 2, dtype=torch.bfloat16)}, {"a": weights["a"] + 1}, {"b": torch.tensor(2)}):
        assert differing(start, checkpoint=replace(start, weights=weights | changed)) == ["starting weights"]


def test_a_tokenizer_may_move(checkpoint: Checkpoint) -> None:
    """Its content is the vocabulary's digest."""
    assert differing(checkpoint, recipe=Recipe(DATA, model=ModelRecipe(tokenizer="a/tokenizer.model"))) == []


def test_model_section_ignored_with_checkpoint(checkpoint: Checkpoint) -> None:
    recipe = Recipe(DATA, model=ModelRecipe(d_model=64))
    assert differing(checkpoint, recipe=recipe) == ["recipe"]
    tuned = replace(checkpoint, weights={"a": torch.zeros(1)})
    given = {"checkpoint": tuned, "data": "digest", "validation": EXAMPLES}
    assert fingerprint(Recipe(DATA), **given) == fingerprint(recipe, **given)  # type: ignore[arg-type]


def test_changed_keys_are_named(checkpoint: Checkpoint) -> None:
    def of(part: str, **recipe: Any) -> str:
        return fingerprint(Recipe(DATA, **recipe), checkpoint, "digest", EXAMPLES)[part]

    before = of("recipe", optimiser=OptimiserRecipe(learning_rate=1e-4))  # as with --init
    now = of("recipe", optimiser=OptimiserRecipe(dropout=0.3, lora=LoraRecipe(rank=8)))
    assert named_difference("recipe", before, now, Recipe(DATA)) in (
        f"recipe (optimiser.{'; optimiser.'.join(changes)})"
        for changes in permutations(
            ("learning_rate was 0.0001, is 0.001", "dropout was 0.1, is 0.3", "lora.rank was not given, is 8")
        )
    )
    layers = checkpoint.config.encoder.num_layers
    other = replace(
        checkpoint, config=replace(checkpoint.config, encoder=replace(checkpoint.config.encoder, num_layers=9))
    )
    model = [fingerprint(Recipe(DATA), known, "digest", EXAMPLES)["model"] for known in (checkpoint, other)]
    assert named_difference("model", *model) == f"model (encoder.num_layers was {layers}, is 9)"
    assert named_difference("data", "a", "b") == "data (rows of data.train)"
    assert named_difference("dtype", "a", "b") == "dtype"
    assert named_difference("recipe", "{'run': inf}", before) == "recipe"
