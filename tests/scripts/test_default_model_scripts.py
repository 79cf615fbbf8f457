"""The reusable parts of the scripts that make the packaged model."""

from __future__ import annotations

import doctest
import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.native import LANGUAGE_MODEL_FILE
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.context.language_model import Fusion
from scripts.default_model import sentences, train_default_model
from tests.conftest import MODELS, PACKAGE
from tests.helpers.warm_process import LIBRARIES_ALONE

PACKAGED = PACKAGE / "default_model"


@pytest.mark.parametrize("module", [sentences, train_default_model], ids=["sentences", "train_default_model"])
def test_examples_in_docstrings(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_joins_and_sounds_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip, sounds = tmp_path / "clip.flac", []
    soundfile.write(clip, np.random.default_rng(0).normal(0, 0.1, 16_000), 16_000)
    row = {"audio_filepath": str(clip), "duration": 1.0, "text": "One.", "speaker": "she"}
    manifests = [train_default_model.written([row], tmp_path, name) for name in train_default_model.CORPORA]
    monkeypatch.setattr(train_default_model, "JOIN_HOURS", 0.001)

    def write_sounds(out: Path, *_: object) -> None:
        sounds.append(out)
        out.mkdir()
        (out / "manifest.jsonl").touch()

    monkeypatch.setattr(train_default_model, "write_sounds", write_sounds)
    made = [train_default_model.made_manifests(manifests, tmp_path, tmp_path / "no font", 0.2, 0.5) for _ in range(2)]
    assert made[0] == made[1] and len(sounds) == 1
    assert [part["repeat"] for part in made[0]] == [0.2, 0.5] and made[0][1]["non_speech"]
    joins, _ = (Path(part["path"]) for part in made[0])
    written_at = joins.stat().st_mtime_ns
    train_default_model.made_manifests(manifests, tmp_path, tmp_path / "no font", 0.2, 0.5)
    assert joins.stat().st_mtime_ns == written_at
    joins.unlink()  # a call that was ended before it had made all joins
    train_default_model.made_manifests(manifests, tmp_path, tmp_path / "no font", 0.2, 0.5)
    assert joins.stat().st_size


CLAUSES = st.lists(st.integers(1, 40).map(lambda count: " ".join(["word"] * count)), min_size=1, max_size=8)


@given(CLAUSES)
def test_long_sentences_are_cut_at_commas(clauses: list[str]) -> None:
    text = ", ".join(clauses)
    parts = sentences.parts(text)
    assert ", ".join(parts) == text
    assert all(len(part.split()) <= sentences.MAX_WORDS or ", " not in part for part in parts)
    for before, after in itertools.pairwise(parts):
        assert len(before.split()) + len(after.split(", ")[0].split()) > sentences.MAX_WORDS


def test_books_become_plain_sentences(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    long = ", ".join(["and then they went on and on for some time"] * 4)
    book.write_text(
        f'CHAPTER ONE\n\n"Come in," said Mr. Brown\nto the dog. It was the year 1812. Then {long}.\n\nNo end', "utf-8"
    )
    assert list(sentences.written([book])) == [
        "Come in, said Mr. Brown to the dog.",
        "Then and then they went on and on for some time, and then they went on and on for some time.",
        "And then they went on and on for some time, and then they went on and on for some time.",
    ]


def make_language_model(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = "import runpy; runpy.run_module('scripts.default_model.make_language_model', run_name='__main__')"
    return LIBRARIES_ALONE.python(program, *arguments)


def test_a_language_model_of_a_book_and_a_manifest(tmp_path: Path) -> None:
    native_writer.write(read_checkpoint(PACKAGED), tmp_path / "model", torch.bfloat16)
    book, manifest, kept_back = (tmp_path / name for name in ("book.txt", "train.jsonl", "test.jsonl"))
    book.write_text("It was late. It was late.\n\nNobody came to the old house by the sea.", "utf-8")
    manifest.write_text(json.dumps({"text": "It was early."}) + "\n", "utf-8")
    kept_back.write_text(json.dumps({"text": "They came to the old house again."}) + "\n", "utf-8")
    options = ("--texts", book, "--manifests", manifest, "--times", 4, "--without", kept_back, "--beam", 5)
    done = make_language_model(tmp_path / "model", *options, "--least-gain", 0.1)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("6 texts, ")
    found = read_checkpoint(tmp_path / "model").language_model
    assert found is not None and found.fusion == Fusion(0.5, 0.6, 5) and found.ngrams.count > 0


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a script in this process, which saves importing torch."""

    def run(name: str, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        importlib.import_module(f"scripts.default_model.{name}").main()

    return run


@pytest.fixture
def refused(run_script: Callable[..., None]) -> Callable[..., str]:
    """Run a script and return the message with which it ends."""

    def run(*given: object) -> str:
        with pytest.raises(SystemExit) as ended:
            run_script(*given)
        assert isinstance(ended.value.code, str), "a message, which Python prints before it ends with 1"
        return ended.value.code

    return run


def test_unreadable_language_model_is_not_written(tmp_path: Path, refused: Callable[..., str]) -> None:
    native_writer.write(read_checkpoint(PACKAGED), tmp_path / "model", torch.bfloat16)
    before = (tmp_path / "model" / LANGUAGE_MODEL_FILE).read_bytes()
    book = tmp_path / "book.txt"
    book.write_text("It was late. It was late.", "utf-8")
    for options, message in (
        (("--texts", book, "--beam", 1), "a beam of 1"),
        (("--texts", book, "--longest", 12), "at most 9"),
        ((), "no text that this model could write"),
        (("--texts", tmp_path / "none.txt"), "none.txt"),
    ):
        assert message in refused("make_language_model", tmp_path / "model", *options)
    assert (tmp_path / "model" / LANGUAGE_MODEL_FILE).read_bytes() == before
    foreign = MODELS / "tdt_demo" / "model.nemo"
    assert "not a folder of fastscribe's own" in refused("make_language_model", foreign, "--texts", book)


def test_a_mean_model_has_the_mean_of_the_weights(tmp_path: Path, run_script: Callable[..., None]) -> None:
    first = read_checkpoint(PACKAGED)
    weights = {name: tensor + 1.0 if tensor.is_floating_point() else tensor for name, tensor in first.weights.items()}
    native_writer.write(replace(first, weights=weights), tmp_path / "other", torch.bfloat16)
    run_script("average_models", tmp_path / "mean", PACKAGED, tmp_path / "other")
    other, mean = (read_checkpoint(tmp_path / name) for name in ("other", "mean"))
    assert mean.config == first.config and mean.tokenizer.pieces == first.tokenizer.pieces
    for name, tensor in mean.weights.items():
        expected = (first.weights[name].float() + other.weights[name].float()) / 2
        assert torch.equal(tensor, expected.to(tensor.dtype)), name


def test_different_models_cannot_be_averaged(tmp_path: Path, refused: Callable[..., str]) -> None:
    given = (tmp_path / "mean", PACKAGED, MODELS / "ctc" / "model.nemo")
    assert "another kind of model" in refused("average_models", *given)
    assert not (tmp_path / "mean").exists()
