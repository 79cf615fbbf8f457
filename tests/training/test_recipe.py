"""Recipes: YAML becomes values, and a mistake becomes one line."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fastscribe.errors import UsageError
from fastscribe.training.corpus import ManifestPart
from fastscribe.training.model_recipe import ModelChanges, ModelRecipe
from fastscribe.training.recipe import DataRecipe, LoraRecipe, Recipe, default_recipe, parse_recipe, read_recipe
from tests.conftest import ROOT

WHERE = Path("folder/recipe.yaml")


def test_sections_and_paths(tmp_path: Path) -> None:
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
    assert isinstance(recipe.model, ModelRecipe)
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
        (
            {"name": "a", "model": {"train_ds": {}}, "trainer": {"max_epochs": 5}},
            "a NeMo config, not a recipe: docs/switch",
        ),
        ({"data": {"train": "a"}, "model": {"d_model": "x"}}, "model.d_model: 'x' is not a whole number"),
        ({"data": {"train": "a"}, "model": {"ctc": 1}}, "model.ctc: 1 is not true or false"),
        ({"data": {"train": "a"}, "batch": {"seconds": "most"}}, "batch.seconds: 'most' is not a number or 'auto'"),
        ({"data": {"train": "a"}, "optimiser": {"betas": [1]}}, "optimiser.betas: [1] is not a list of 2"),
        ({"data": {"train": "a"}, "augment": {"speeds": 1.0}}, "augment.speeds: 1.0 is not a list"),
        ({"data": {"train": "a"}, "augment": {"speeds": [3.0]}}, "speeds"),
        (
            {"data": {"train": "a"}, "augment": {"noise_db": [30, 5]}},
            "augment.noise_db (30.0, 5.0): the least comes first",
        ),
        ({"data": {"train": "a"}, "optimiser": 3}, "optimiser: not a mapping"),
        ({"data": {"train": "a"}, "optimiser": {"lr": 1}}, "optimiser.lr: no such key; optimiser.learning_rate?"),
        ({"data": {"train": "a"}, "run": {"epochs": 1.5}}, "run.epochs: 1.5 is not a whole number from 0"),
        ({"data": {"train": "a"}, "run": {"epochs": 2, "max_steps": 9}}, "run.epochs, run.max_steps: give one of them"),
        ({"data": {"train": "a", "language": False}}, 'data.language: YAML reads no as false; write "no"'),
        (
            {"data": {"train": "a"}, "optimiser": {"freeze": ["output"]}},
            "optimiser.freeze[0]: 'output' is not 'encoder'",
        ),
        ({"data": {"train": "a"}, "optimiser": {"part_rates": {"ctc": 0}}}, "ctc: 0.0 is not a number above 0"),
        ({"data": {"train": []}}, "recipe.yaml: data.train: give the manifests"),
        ({"data": {"train": "a"}, "model": {"transducer": False, "ctc": False}}, "transducer, ctc: a model needs one"),
        ({"data": {"train": {"path": "a", "repeat": 0}}}, "repeat 0.0: not a number above 0"),
        ({"data": {"train": {"path": "a", "share": 1.0}}}, "share 1.0: not a number between 0 and 1"),
        ({"data": {"train": {"path": "a", "repeat": 2.0, "share": 0.5}}}, "give repeat or share, not both"),
        ({"data": {"train": "a", "min_duration_s": 50}}, "recipe.yaml: data.min_duration_s 50.0"),
    ],
)
def test_mistakes(values: object, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_recipe(values, WHERE)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "bad", "good"),
    [
        ("run", "validate_epochs", [0], [1]),
        ("run", "max_steps", [0], [1]),
        ("run", "patience", [0], [1]),
        ("run", "save_minutes", [-1], [0]),
        ("batch", "seconds", [0, -1.0], [0.5, "auto"]),
        *(("batch", name, [0], [1]) for name in ("accumulate", "buckets", "token_buckets")),
        ("data", "threads", [0], [1]),
        ("data", "cache_gb", [-0.1], [0]),
        ("data", "validation_share", [0, 1, -0.1], [0.5]),
        ("data", "max_tokens_per_s", [0], [1]),
        *(("optimiser", name, [1, -0.1], [0, 0.9]) for name in ("dropout", "ema")),
        ("optimiser", "betas", [[0.9, 1], [-0.1, 0.9]], [[0, 0.5]]),
        ("optimiser", "learning_rate", [0, -1], [1e-9]),
        ("optimiser", "min_learning_rate", [-1], [0]),
        ("optimiser", "weight_decay", [-1], [0]),
        ("optimiser", "clip_norm", [0], [None, 0.1]),
        *(("loss", name, [-0.1, 1.1], [0, 1]) for name in ("ctc_weight", "omega")),
        *(("loss", name, [-0.1], [0]) for name in ("fastemit", "sigma")),
        *(("augment", name, [[-1000, 0], [0, 1000], [3, 2]], [[-100, 100]]) for name in ("noise_db", "gain_db")),
        ("augment", "noise_slope", [[-50, 0]], [[0, 0]]),
        ("augment", "speeds", [[], [0.955], [0.0], [3.0]], [[0.95, 1.0]]),
        ("augment", "noise_chance", [1.1], [1]),
        ("augment", "time_masks", [-1], [0]),
        ("augment", "time_mask_share", [2], [1]),
        ("loss", "clamp", [0], [None, 1]),
        ("model", "subsampling_factor", [0, 1, 6, 64], [2, 4, 8]),
        ("model", "conv_kernel", [0, 8], [1, 9]),
        ("model", "d_model", [0, 254, 3], [256]),
        ("model", "num_heads", [0, 3], [1, 8]),
        ("model", "durations", [[2, 1], [0], [1, 1], [0, 1001]], [[], [1], [0, 1, 2], [2, 1000]]),
        *(("model", name, [0], [1]) for name in ("predictor_layers", "num_layers", "vocab_size", "joint_hidden")),
        *(("model", name, [0], [1]) for name in ("ff_hidden", "predictor_hidden", "num_mels", "subsampling_channels")),
    ],
)
def test_values_out_of_range(section: str, key: str, bad: list[object], good: list[object]) -> None:
    def parsed(value: object) -> Recipe:
        sections = {"data": {"train": "a"}}
        return parse_recipe({**sections, section: {**sections.get(section, {}), key: value}}, WHERE)

    for value in good:
        parsed(value)
    for value in bad:
        with pytest.raises(UsageError, match=rf"^folder/recipe\.yaml: {section}\.(.*{key}|num_heads)"):
            parsed(value)


@pytest.mark.parametrize(
    ("model", "is_tuning", "said"),
    [
        (
            {"d_model": 64, "ctc": True, "num_mels": 8},
            True,
            "model.num_mels, model.d_model: leave out, --init decides; ",
        ),
        ({"vocabulary": "unigram"}, True, "model.vocabulary: give vocab_size too"),
        ({"vocab_size": 9, "tokenizer": "a.model"}, True, "leave out model.vocab_size"),
        ({"vocabulary": "bpe", "tokenizer": "a.model"}, False, "leave out model.vocabulary"),
        (
            {"d_modl": 64},
            True,
            "model.d_modl: no such key; the keys here are vocab_size, vocabulary, tokenizer, ",
        ),
        ({"durations": [2, 1]}, True, "model.durations: (2, 1) is not a list that ascends"),
        ({"durations": [0.5]}, True, "model.durations[0]: 0.5 is not a whole number"),
        ({"joint_hidden": 0}, True, "model.joint_hidden: 0 is not a number from 1"),
        (3, True, "model: not a mapping"),
    ],
)
def test_model_that_cannot_be_so(model: object, is_tuning: bool, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_recipe({"data": {"train": "a"}, "model": model}, WHERE, is_tuning)
    assert str(caught.value).startswith(f"{WHERE}: ") and said in str(caught.value)


def test_changes_of_a_checkpoint() -> None:
    def of(model: object) -> object:
        return parse_recipe({"data": {"train": "a"}, "model": model}, WHERE, is_tuning=True).model

    assert of(None) == of({}) == ModelChanges() and not ModelChanges().has_new_vocabulary
    assert of({"durations": [0, 2], "ctc": False}) == ModelChanges(durations=(0, 2), ctc=False)
    assert of({"tokenizer": "b/c.model"}) == ModelChanges(tokenizer=str(WHERE.parent / "b/c.model"))
    assert of({"vocab_size": 9, "vocabulary": "unigram"}) == ModelChanges(vocab_size=9, vocabulary="unigram")
    fresh = parse_recipe({"data": {"train": "a"}, "model": {"tokenizer": "c.model"}}, WHERE).model
    assert fresh == ModelRecipe(tokenizer=str(WHERE.parent / "c.model"))


def test_not_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("data: [")
    with pytest.raises(
        UsageError, match=r"a\.yaml: line 1, column 8: not YAML: .*; check brackets, colons and indentation"
    ):
        read_recipe(tmp_path / "a.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_recipe(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["run: {epochs: 5}\nrun: {seed: 3}\n", "run:\n  epochs: 5\n  seed: 1\n  epochs: 6\n"])
def test_repeated_key(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text("data: {train: a.jsonl}\n" + text)
    with pytest.raises(UsageError, match=r"recipe\.yaml.* comes twice") as caught:
        read_recipe(tmp_path / "recipe.yaml")
    assert "\n" not in str(caught.value)


def test_merge_key(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "data: {train: a.jsonl}\nrun: &base {epochs: 5, seed: 1}\n"
        "batch: &small {seconds: 9}\naugment: {}\noptimiser: {}\nloss: {}\nmodel: {}\n"
    )
    plain = read_recipe(tmp_path / "recipe.yaml")
    (tmp_path / "merged.yaml").write_text(
        "data: {train: a.jsonl}\nbatch: &small {seconds: 9}\nrun: {<<: {epochs: 7, seed: 1}, epochs: 5}\n"
    )
    assert read_recipe(tmp_path / "merged.yaml") == plain


@pytest.mark.parametrize("is_tuning", [False, True])
def test_empty_section(tmp_path: Path, is_tuning: bool) -> None:
    (tmp_path / "recipe.yaml").write_text("data: {train: a.jsonl}\nrun:\n#  epochs: 5\noptimiser:\n")
    given = read_recipe(tmp_path / "recipe.yaml", is_tuning)
    assert given == parse_recipe({"data": {"train": "a.jsonl"}}, tmp_path / "recipe.yaml", is_tuning)


def test_too_large(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"#" * (1 << 21))
    with pytest.raises(UsageError, match=r"a\.yaml: cannot be read: refused: 2097152 bytes"):
        read_recipe(tmp_path / "a.yaml")


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.e-4", "0.1e-3", "10e-5", "+1e-04", "0.0001"])
def test_exponents(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(f"data: {{train: a}}\noptimiser: {{learning_rate: {text}}}\n")
    assert read_recipe(tmp_path / "a.yaml").optimiser.learning_rate == pytest.approx(1e-4)


def test_int_as_float() -> None:
    recipe = parse_recipe(
        {"data": {"train": "a"}, "batch": {"seconds": 60}, "optimiser": {"learning_rate": 1, "clip_norm": 1}}, WHERE
    )
    values = (recipe.batch.seconds, recipe.optimiser.learning_rate, recipe.optimiser.clip_norm)
    assert values == (60, 1, 1) and all(isinstance(value, float) for value in values)


def test_model_kinds() -> None:
    assert ModelRecipe().config(10).family == "hybrid tdt+ctc"
    assert ModelRecipe(durations=(), ctc=False).config(10).family == "rnnt"
    assert ModelRecipe(transducer=False).config(10).decoders == ("ctc",)
    assert ModelRecipe().config(10).frame_s == pytest.approx(0.08)


def test_tuning_with_recipe(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("data: {train: a}\noptimiser: {learning_rate: 3e-4}\n")
    tuned, default = read_recipe(path, is_tuning=True), default_recipe(path, True)
    assert tuned.optimiser.learning_rate == 3e-4
    fresh = default_recipe(path, False)
    assert default.optimiser.learning_rate < fresh.optimiser.learning_rate and default.run.epochs < fresh.run.epochs
    assert tuned.optimiser.warmup_steps == default.optimiser.warmup_steps and tuned.run == default.run
    assert read_recipe(path).run == Recipe(tuned.data).run
    with pytest.raises(UsageError, match="optimiser: not a mapping"):
        parse_recipe({"data": {"train": "a"}, "optimiser": 3}, WHERE, is_tuning=True)


def _rows(kind: Any, prefix: str) -> dict[str, str]:
    """Return the default of each key, as YAML has it, by the key's name with its sections."""
    rows: dict[str, str] = {}
    for field in dataclasses.fields(kind):
        has_factory = field.default_factory is not dataclasses.MISSING
        default, name = field.default_factory() if has_factory else field.default, f"{prefix}{field.name}"
        if not dataclasses.is_dataclass(default):
            rows[name] = "needed" if default is dataclasses.MISSING else json.dumps(default).replace('"', "")
        for inner in (NESTED.get(name), type(default) if dataclasses.is_dataclass(default) else None):
            rows |= {} if inner is None else _rows(inner, f"{name}.")
    return rows


NESTED = {"data": DataRecipe, "data.train": ManifestPart, "optimiser.lora": LoraRecipe}


def test_every_key_has_its_row_in_the_guide() -> None:
    """With its default. Sections are no rows, but for those that may be missing."""
    text = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_.]+\.[a-z_.]+)` \| `?(.*?)`? \| .+ \|$", text, re.MULTILINE)
    expected = {name: default for name, default in _rows(Recipe, "").items() if name != "data"}
    assert dict(rows) == expected and len(rows) == len(expected)


@pytest.mark.parametrize("name", _rows(Recipe, ""))
def test_every_number_has_limits(name: str) -> None:
    """Keys of other kinds refuse a number."""
    *sections, key = name.split(".")
    values: dict[str, Any] = {"data": {"train": {"path": "a"}}}
    inner = values
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[key] = -1_000_000
    with pytest.raises(UsageError, match=r"^folder/recipe\.yaml: "):
        parse_recipe(values, WHERE)
