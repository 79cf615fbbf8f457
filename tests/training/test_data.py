"""What is said of the rows of a run before it trains: what the vocabulary makes of texts, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.training.data import TrainingData, prepare
from fastscribe.training.recipe import parse_recipe
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
