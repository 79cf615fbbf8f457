"""What is said of the rows of a run before it trains: what the vocabulary makes of texts, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.training.corpus import first_left_out
from fastscribe.training.data import TrainingData, prepare
from fastscribe.training.recipe import parse_recipe
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


def test_rows_left_out_are_named(tmp_path: Path) -> None:
    """Of a text with letters that the vocabulary lacks, these are. One to validate with stays, and is named too."""
    texts = ["hello", "", "один", *["hello"] * 5]
    held_out = {"path": manifest(tmp_path / "held-out.jsonl", ["ж", "a", ""]), "decides": True}
    data, said = prepared(tmp_path, texts, data={"validation": [held_out]})
    assert first_left_out(data.rows_left_out) == [
        f"without text: {tmp_path / 'train.jsonl'}: line 2, {tmp_path / 'held-out.jsonl'}: line 3",
        f"with letters that the vocabulary lacks: {tmp_path / 'train.jsonl'}: line 3 (о, д, и, н)",
    ]
    assert len(data.validation) == 2
    assert "to validate with: 1 of 2 texts have letters that the vocabulary lacks (ж), which count as errors; " in said
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.write_left_out(data.rows_left_out)
    folder.check()
    rows = [json.loads(line) for line in folder.left_out.read_text(encoding="utf-8").splitlines()]
    assert [(row["left_out"], row["line"]) for row in rows][:2] == [
        ("without text", 2),
        ("with letters that the vocabulary lacks", 3),
    ]
    assert rows[1]["letters"] == "о д и н" and rows[1]["audio_filepath"] == str(FILES[2])
    folder.clear()
    assert not any(folder.path.iterdir())
