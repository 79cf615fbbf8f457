"""What is said of the rows of a run before it trains: what the vocabulary makes of texts, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import UsageError
from fastscribe.training.corpus import first_left_out
from fastscribe.training.data import TrainingData, prepare
from fastscribe.training.recipe import check_used, parse_recipe
from fastscribe.training.state import RunFolder
from tests.conftest import AUDIO, MODELS

FILES = sorted(AUDIO.glob("0*.flac")) * 2


def manifest(path: Path, texts: Sequence[str], **fields: Any) -> str:
    rows = (
        {"audio_filepath": str(file), "text": text, "duration": 2.0} | fields
        for file, text in zip(FILES, texts, strict=False)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def prepared(folder: Path, texts: Sequence[str], model: str = "tdt_demo", **sections: Any) -> tuple[TrainingData, str]:
    """Return the data of a fine-tuning run on these texts, and what was said."""
    data = {"train": manifest(folder / "train.jsonl", texts), "validation": manifest(folder / "dev.jsonl", ["a", "b"])}
    recipe = parse_recipe({**sections, "data": data | sections.get("data", {})}, folder / "a.yaml", True)
    said: list[str] = []
    init = read_checkpoint(next((MODELS / model).glob("*.nemo")))
    return prepare(recipe, init, said.append), "\n".join(said)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            "tdt_demo",
            "the vocabulary of --init cannot write 2 of 3 texts as they are, and learns É as E, é as e, à as a, ï as i and "
            "drops €, ?: 'Été à 5 €?' becomes 'Ete a 5'; model.vocab_size or model.tokenizer in a recipe gives it a new one",
        ),
        (
            "canary2",
            "the vocabulary of --init cannot write 1 of 3 texts as they are, and learns ï as i: 'Naïve' becomes 'Naive'",
        ),
    ],
)
def test_texts_that_a_vocabulary_cannot_write_are_counted(tmp_path: Path, model: str, line: str) -> None:
    language = {"data": {"language": "en"}}
    assert line in prepared(tmp_path, ["Été à 5 €?", "hello there", "Naïve"], model, **language)[1].splitlines()
    assert "as they are" not in prepared(tmp_path, ["hello there", "again"], model, **language)[1]


def test_left_out_are_named(tmp_path: Path) -> None:
    """Of a text with letters that the vocabulary lacks, these are. One to validate with stays, and is named too."""
    texts = ["hello", "", "один", *["hello"] * 5]
    held_out = {"path": manifest(tmp_path / "held-out.jsonl", ["ж", "a", ""]), "decides": True}
    data, said = prepared(tmp_path, texts, data={"validation": [held_out]})
    assert first_left_out(data.left_out) == [
        f"without text: {tmp_path / 'train.jsonl'}: line 2, {tmp_path / 'held-out.jsonl'}: line 3",
        f"with letters that the vocabulary lacks: {tmp_path / 'train.jsonl'}: line 3 (о, д, и, н)",
    ]
    assert len(data.validation) == 2
    assert "texts to validate with that have letters which the vocabulary lacks (ж): 1 of 2; " in said
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_left_out(data.left_out)
    folder.check()
    rows = [json.loads(line) for line in folder.left_out.read_text(encoding="utf-8").splitlines()]
    assert [(row["left_out"], row["line"]) for row in rows][:2] == [
        ("without text", 2),
        ("with letters that the vocabulary lacks", 3),
    ]
    assert rows[1]["letters"] == "о д и н" and rows[1]["audio_filepath"] == str(FILES[2])
    folder.clear()
    assert not any(folder.path.iterdir())


@pytest.mark.parametrize(
    ("texts", "sections", "is_error"),
    [
        (["a", "", "b", "ж"], {}, False),
        (["a", "", "b", "ж", "ж"], {}, True),
        (["a", *["x" * 90] * 2], {}, True),  # too many tokens a second
        (["a", *["x" * 90] * 2], {"data": {"max_tokens_per_s": 20}}, False),  # as the recipe wants
        (["a", "", "ж"], {"data": {"max_tokens_per_s": 20}}, True),
    ],
)
def test_most_rows_have_to_be_usable(
    tmp_path: Path, texts: list[str], sections: dict[str, Any], is_error: bool
) -> None:
    if not is_error:
        prepared(tmp_path, texts, **sections)
        return
    with pytest.raises(
        UsageError, match=r"^most rows to train on cannot be used: \d examples, .* left out: .*train\.jsonl: line 2"
    ):
        prepared(tmp_path, texts, **sections)


def test_doubled_rows_are_counted(tmp_path: Path) -> None:
    train, more = str(tmp_path / "train.jsonl"), manifest(tmp_path / "more.jsonl", ["one", "deux"], duration=1.9)
    again, other = (
        f"rows that come again: 1, such as {more}: line 1",
        "rows with another text of a recording: 1, such as",
    )
    for manifests, expected in (
        ([train, more], f"to train on: {again}; {other} {more}: line 2"),
        ([train, train], f"to train on: rows that come again: 2, such as {train}: line 1"),
        ([train], None),
    ):
        said = prepared(tmp_path, ["one", "two"], data={"train": manifests})[1].splitlines()
        assert [line for line in said if line.startswith("to train on: ")] == ([expected] if expected else [])


def test_recordings_of_a_folder_may_lack_a_text(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for file in FILES[:5]:
        (folder / file.name).symlink_to(file)
    for file, text in zip(FILES[:2], ("one", "two"), strict=True):
        (folder / file.with_suffix(".txt").name).write_text(text)
    data, _ = prepared(tmp_path, ["a"], data={"train": str(folder)})
    assert len(data.corpus.examples) == 2 and len(data.left_out) == 3


PARTS = ("encoder", "predictor", "joint", "ctc", "decoder", "batch_norm")
OF_LOSS = {"sigma": 0.1, "omega": 0.3, "fastemit": 0.1, "clamp": 1.0, "label_smoothing": 0.1, "prompt": True}


@pytest.mark.parametrize(
    ("model", "loss", "parts"),
    [
        ("tdt_demo", "sigma omega fastemit clamp", "encoder predictor joint batch_norm"),
        ("rnnt", "fastemit clamp", "encoder predictor joint batch_norm"),
        ("hybrid", "ctc_weight fastemit clamp", "encoder predictor joint ctc batch_norm"),
        ("ctc", "", "encoder ctc batch_norm"),
        ("canary2", "label_smoothing prompt", "encoder decoder batch_norm"),
    ],
)
def test_settings_of_other_models_are_refused(model: str, loss: str, parts: str) -> None:
    config = read_checkpoint(next((MODELS / model).glob("*.nemo"))).config
    given = {
        **{f"loss.{name}": {"loss": {name: value}} for name, value in {"ctc_weight": 0.5, **OF_LOSS}.items()},
        **{f"optimiser.part_rates.{part}": {"optimiser": {"part_rates": {part: 2}}} for part in PARTS[:-1]},
        **{f"optimiser.freeze: {part}": {"optimiser": {"freeze": [part]}} for part in PARTS},
    }
    refused = set()
    for name, sections in given.items():
        recipe = parse_recipe({"data": {"train": "a"}, **sections}, Path("a.yaml"), True)
        with suppress(UsageError):
            check_used(recipe, config, "a.yaml")
            continue
        refused.add(name.split(".", 1)[1])
    used = {*loss.split(), *(f"{key}{part}" for part in parts.split() for key in ("part_rates.", "freeze: "))}
    assert refused == {name.split(".", 1)[1] for name in given} - used


def test_settings_without_effect_may_stand(tmp_path: Path) -> None:
    """A recipe serves several models: a CTC head alone has the whole loss, and no clamp is none."""
    prepared(tmp_path, ["a"], "ctc", loss={"ctc_weight": 1.0, "clamp": None, "sigma": 0.0, "label_smoothing": 0.0})
    with pytest.raises(
        UsageError, match=r"the recipe: loss\.sigma, optimiser\.freeze: joint: this model \(ctc\) has no use"
    ):
        prepared(tmp_path, ["a"], "ctc", loss={"sigma": 0.1}, optimiser={"freeze": ["joint"]})
