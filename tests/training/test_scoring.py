"""The language of a run decides how its validation is scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import UsageError
from fastscribe.training.corpus import Example
from fastscribe.training.data import prepare
from fastscribe.training.dataloader import AudioDataLoader
from fastscribe.training.recipe import parse_recipe
from fastscribe.training.scoring import Scoring, ValidationSet, choose_scoring
from fastscribe.training.validation import validate
from tests.conftest import DATA, MODELS

MANIFEST = DATA / "manifest.jsonl"
ENGLISH, OTHER = Scoring(), Scoring("unicode")
UNSPACED = Scoring("unicode", "cer", has_spaces=False)


def test_how_a_scoring_is_called() -> None:
    assert [str(one) for one in (ENGLISH, OTHER, Scoring("none"))] == [
        "word error rate, Whisper's English normaliser",
        "word error rate, the normaliser unicode",
        "word error rate, no normaliser",
    ]


@pytest.mark.parametrize(
    ("language", "known", "text", "expected"),
    [
        ("en", ("de",), "x", ENGLISH),
        ("English", (), "हिन्दी", ENGLISH),
        ("hi", ("en",), "text", OTHER),
        ("zh-CN", (), "text", UNSPACED),
        ("cmn", (), "text", UNSPACED),
        ("eng", (), "über", ENGLISH),
        (None, ("en-US", "en-GB"), "über", ENGLISH),
        (None, ("de",), "nothing said", OTHER),
        (None, ("de", "en"), "plain words in a " * 20 + "café", ENGLISH),
        (None, (), "schöne Grüße an Jürgen", OTHER),
        (None, (), "हिन्दी में", OTHER),
        (None, (), "今日はAIの話です", UNSPACED),
        (None, (), "สวัสดีครับ", UNSPACED),
        (None, (), "12 34", ENGLISH),
    ],
)
def test_language_decides(language: str | None, known: tuple[str, ...], text: str, expected: Scoring) -> None:
    assert choose_scoring(language, "auto", "auto", known, [text]) == expected


def test_stated_scoring_stays() -> None:
    assert choose_scoring("hi", "none", "cer", (), []) == Scoring("none", "cer")
    with pytest.raises(UsageError, match=r"data\.language: 'no such language' is no language code"):
        choose_scoring("no such language", "auto", "auto", (), [])


def test_deciding_set() -> None:
    """The demo model knows its clips: two of them with their texts, and two with others, as two sets."""
    checkpoint = read_checkpoint(MODELS / "tdt_demo" / "model.nemo")
    rows = [row for row in map(json.loads, MANIFEST.read_text(encoding="utf-8").splitlines()) if row.get("text")][:2]
    right = [Example(str(DATA / row["audio_filepath"]), row["text"], row["duration"]) for row in rows]
    wrong = [replace(example, text="Quite other words") for example in right]
    examples = [*right, *wrong]
    loader = AudioDataLoader(examples, 16_000, 0.0, 1, lambda line: None)

    def rate_of(decides: str, scoring: Scoring = ENGLISH) -> float:
        sets = [ValidationSet(name, 2, decides in (name, "both")) for name in ("right", "wrong")]
        result = validate(checkpoint, examples, loader, "cpu", "fp32", None, scoring, sets)
        logged = result.to_json()
        assert list(logged["sets"]) == ["right", "wrong"]
        assert logged[scoring.metric] == round(result.deciding, 5)
        return result.deciding

    assert rate_of("right") == 0 < rate_of("both") < rate_of("wrong")
    assert rate_of("wrong", Scoring("unicode", "cer")) != rate_of("wrong", UNSPACED)


def test_sets_from_manifests(tmp_path: Path) -> None:
    rows = MANIFEST.read_text(encoding="utf-8").splitlines()
    for name, chosen in (("train", rows[:4]), ("a/dev", rows[:1]), ("b/dev", rows[1:3])):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        absolute = [
            {**json.loads(row), "audio_filepath": str(DATA / json.loads(row)["audio_filepath"])} for row in chosen
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in absolute))
    parts = ["a/dev.jsonl", {"path": "b/dev.jsonl", "decides": True}]
    said: list[str] = []
    values = {"data": {"train": "train.jsonl", "validation": parts, "language": "hi"}, "model": {"vocab_size": 40}}
    data = prepare(parse_recipe(values, tmp_path / "recipe.yaml"), None, said.append)
    assert [(one.name, one.num_examples, one.decides) for one in data.validation_sets] == [
        (str(tmp_path / "a/dev.jsonl"), 1, False),
        (str(tmp_path / "b/dev.jsonl"), 2, True),
    ]
    assert data.scoring == OTHER and len(data.validation) == 3 and not any("validation:" in line for line in said)
    with pytest.raises(UsageError, match=r"data\.train: decides is for manifests of data\.validation"):
        parse_recipe({"data": {"train": parts[1]}}, tmp_path / "recipe.yaml")
