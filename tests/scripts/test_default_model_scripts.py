"""The reusable parts of the scripts that make the packaged model."""

from __future__ import annotations

import doctest
import importlib.util
import itertools
import json
import math
import runpy
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.formats import LANGUAGE_MODEL_FILE
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.context.language_model import Fusion
from fastscribe.errors import UsageError
from fastscribe.training.recipe import parse_recipe
from tests.conftest import MODELS, PACKAGE, ROOT

FOLDER = ROOT / "scripts" / "default_model"
PACKAGED = PACKAGE / "default_model"


def script(name: str) -> ModuleType:
    loader = SourceFileLoader(name, str(FOLDER / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look there for themselves
    before = list(sys.path)
    loader.exec_module(module)
    sys.path[:] = before
    return module


SENTENCES = script("sentences.py")
DRAWN = script("drawn.py")
TRAIN = script("train_default_model")
CLOCK = script("train_by_clock")


@pytest.mark.parametrize("module", [SENTENCES, TRAIN], ids=["sentences", "train_default_model"])
def test_examples_in_docstrings(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def write_clips(folder: Path, name: str, texts: list[str], start: int) -> None:
    """Add clips of a second, whose samples are all the clip's number, to a .raw file and its manifest."""
    with (folder / f"{name}.raw").open("ab") as raw, (folder / f"{name}.jsonl").open("a") as manifest:
        for number, text in enumerate(texts, start):
            raw.write(np.full(16_000, number, np.int16).tobytes())
            place = {"audio_filepath": f"{name}.raw", "start": 16_000 * number, "samples": 16_000}
            manifest.write(json.dumps({**place, "duration": 1.0, "text": text}) + "\n")


def test_a_growing_corpus_gives_each_source_its_share(tmp_path: Path) -> None:
    encode = CLOCK.TextEncoder(read_checkpoint(PACKAGED).tokenizer)
    write_clips(tmp_path, "spoken-1", ["One.", "Two.", "A text too long for a second, so it is left out."], 0)
    write_clips(tmp_path, "still", ["", ""], 0)
    spoken = CLOCK.Source(tmp_path / "spoken-*.jsonl", 0.75, True, encode, 30.0)
    still = CLOCK.Source(tmp_path / "still.jsonl", 0.25, False, encode, 30.0)
    recipe = parse_recipe(
        {"data": {"train": "one"}, "batch": {"seconds": 5.0}, "augment": {"speeds": [1.0]}}, tmp_path, True
    )
    batches = CLOCK.Batches([spoken, still], recipe, torch.device("cpu"), 1)
    made = [batches.next() for _ in range(8)]
    assert all(len(batch.tokens) == 5 and batch.audio_s == 5.0 for batch in made)
    rows = [row for batch in made for row in zip(batch.tokens, batch.counts, strict=True)]
    assert sum(not tokens for tokens, _ in rows) == pytest.approx(len(rows) / 4, abs=2)
    assert all(count == (len(tokens) or 15) for tokens, count in rows)
    growing = CLOCK.Source(spoken.path, 1.0, True, encode, 30.0)
    growing.read()
    write_clips(tmp_path, "spoken-1", ["Four."], 3)
    write_clips(tmp_path, "spoken-2", ["Five."], 0)
    growing.read()
    assert [int(batches._samples(clip)[-1]) for clip in growing.clips] == [0, 1, 3, 0]


def clock_batches(folder: Path, names: dict[str, float], seconds: float = 5.0, threads: int = 0) -> Any:
    encode = CLOCK.TextEncoder(read_checkpoint(PACKAGED).tokenizer)
    sources = [CLOCK.Source(folder / name, share, True, encode, 30.0) for name, share in names.items()]
    recipe = parse_recipe(
        {"data": {"train": "one"}, "batch": {"seconds": seconds}, "augment": {"speeds": [1.0]}}, folder, True
    )
    return CLOCK.Batches(sources, recipe, torch.device("cpu"), threads)


def test_what_a_thread_cannot_read_ends_the_training(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"audio_filepath": "no.flac", "duration": 1.0, "text": "One."}) + "\n")
    with pytest.raises(soundfile.LibsndfileError):
        clock_batches(tmp_path, {"a.jsonl": 1.0}, threads=1).next()
    with pytest.raises(UsageError, match="no manifest has a clip"):
        clock_batches(tmp_path, {"none-*.jsonl": 1.0}, threads=1).next()


def test_a_source_that_comes_later_has_its_share_from_then_on(tmp_path: Path) -> None:
    write_clips(tmp_path, "early", ["One."], 0)
    batches = clock_batches(tmp_path, {"early.jsonl": 0.5, "late.jsonl": 0.5})
    first = list(itertools.islice(batches._planned(), 1))
    plan = batches._planned()
    assert len(first[0]) == 5 and {clip.path.name for clip, _ in next(plan)} == {"early.raw"}
    write_clips(tmp_path, "late", ["Two."], 0)
    names = [clip.path.name for batch in itertools.islice(plan, 40) for clip, _ in batch][100:]
    assert names.count("late.raw") == pytest.approx(len(names) / 2, abs=6)


def test_the_longest_clips_are_heard_as_often_as_others(tmp_path: Path) -> None:
    rows = [
        {"audio_filepath": "a.raw", "start": 0, "samples": 16_000 * n, "duration": float(n), "text": "A."}
        for n in range(1, 11)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = clock_batches(tmp_path, {"a.jsonl": 1.0}, 30.0)._planned()
    heard = Counter(clip.duration_s for batch in itertools.islice(plan, 400) for clip, _ in batch)
    assert heard[10.0] == pytest.approx(heard[3.0], rel=0.05)


def test_what_the_clock_does_not_follow_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    for text, problem in (
        ("optimiser: {freeze: [encoder]}", "optimiser.freeze: not followed"),
        ("batch: {seconds: auto}", "batch.seconds: a number is needed"),
    ):
        recipe.write_text(text)
        with pytest.raises(UsageError, match=problem):
            CLOCK.check(recipe)


def test_joins_and_sounds_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip, sounds = tmp_path / "clip.flac", []
    soundfile.write(clip, np.random.default_rng(0).normal(0, 0.1, 16_000), 16_000)
    row = {"audio_filepath": str(clip), "duration": 1.0, "text": "One.", "speaker": "she"}
    manifests = [TRAIN.written([row], tmp_path, name) for name in TRAIN.CORPORA]
    monkeypatch.setattr(TRAIN, "JOIN_HOURS", 0.001)

    def write_sounds(out: Path, *_: object) -> None:
        sounds.append(out)
        out.mkdir()
        (out / "manifest.jsonl").touch()

    monkeypatch.setattr(TRAIN, "write_sounds", write_sounds)
    made = [TRAIN.made_manifests(manifests, tmp_path, tmp_path / "no font", 0.2, 0.5) for _ in range(2)]
    assert made[0] == made[1] and len(sounds) == 1
    assert [part["repeat"] for part in made[0]] == [0.2, 0.5] and made[0][1]["non_speech"]
    joins, _ = (Path(part["path"]) for part in made[0])
    written_at = joins.stat().st_mtime_ns
    TRAIN.made_manifests(manifests, tmp_path, tmp_path / "no font", 0.2, 0.5)
    assert joins.stat().st_mtime_ns == written_at
    joins.unlink()  # a call that was ended before it had made all joins
    TRAIN.made_manifests(manifests, tmp_path, tmp_path / "no font", 0.2, 0.5)
    assert joins.stat().st_size


CLAUSES = st.lists(st.integers(1, 40).map(lambda count: " ".join(["word"] * count)), min_size=1, max_size=8)


@given(CLAUSES)
def test_long_sentences_are_cut_at_commas(clauses: list[str]) -> None:
    text = ", ".join(clauses)
    parts = SENTENCES.parts(text)
    assert ", ".join(parts) == text
    assert all(len(part.split()) <= SENTENCES.MAX_WORDS or ", " not in part for part in parts)
    for before, after in itertools.pairwise(parts):
        assert len(before.split()) + len(after.split(", ")[0].split()) > SENTENCES.MAX_WORDS


def test_books_become_plain_sentences(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    long = ", ".join(["and then they went on and on for some time"] * 4)
    book.write_text(
        f'CHAPTER ONE\n\n"Come in," said Mr. Brown\nto the dog. It was the year 1812. Then {long}.\n\nNo end', "utf-8"
    )
    assert list(SENTENCES.written([book])) == [
        "Come in, said Mr. Brown to the dog.",
        "Then and then they went on and on for some time, and then they went on and on for some time.",
        "And then they went on and on for some time, and then they went on and on for some time.",
    ]


def make_language_model(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FOLDER / "make_language_model", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100)


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
        monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
        runpy.run_path(str(FOLDER / name), run_name="__main__")

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


def packed(rows: list[list[tuple[int, int]]]) -> bytes:
    """Rows of numbers, each of so many bits, from the lowest bit on, and eight bytes more."""
    found, place = 0, 0
    for number, bits in itertools.chain(*rows):
        found, place = found | number << place, place + bits
    return found.to_bytes((place + 7) // 8 + 8, "little")


def trigram_file(path: Path) -> Path:
    """In CMU Sphinx's format: "<s> it's", "it's london" (0.25), "london </s>" and "<s> it's london" (0.5)."""
    words = ("<s>", "</s>", "it's", "london", "a-b")
    log = math.log(1.0001)
    values = np.zeros((3, 1 << 16), np.float32)
    values[0, :2], values[2, 0] = np.log([1.0, 0.25]) / log, math.log(0.5) / log
    first_pairs = (0, 0, 1, 2, 3, 3)
    alone = [
        (math.log(p) / log, 0.0, first) for p, first in zip((1e-9, 0.5, 0.3, 0.1, 0.1, 1), first_pairs, strict=True)
    ]
    pairs = [
        [(before, 3), (0, 16), (value, 16), (first, 1)]
        for before, value, first in ((3, 0, 0), (0, 0, 0), (2, 1, 0), (0, 0, 1))
    ]
    names = b"".join(word.encode() + b"\0" for word in words)
    content = DRAWN.MAGIC + struct.pack("<B3Ii", 3, len(words), 3, 1, 1) + values.tobytes()
    content += np.array(alone, "<f4,<f4,<u4").tobytes() + packed(pairs) + packed([[(0, 3), (0, 16)], [(0, 19)]])
    path.write_bytes(content + struct.pack("<I", len(names)) + names)
    return path


def test_trigrams_are_read_and_drawn_as_often_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trigram_file(tmp_path / "en.lm.bin")
    model = DRAWN.read(path)
    assert model.words == ["<s>", "</s>", "it's", "london", "a-b"]
    assert model.pairs_P2.tolist() == [[3, 1], [0, 2], [2, 3]] and model.triples_T3.tolist() == [[0, 2, 3]]
    assert model.pair_probabilities_P == pytest.approx([1, 1, 0.25], rel=1e-3)
    assert model.triple_probabilities_T == pytest.approx([0.5], rel=1e-3)
    for name in ("noun", "verb", "adj", "adv"):
        (tmp_path / f"data.{name}").write_text(
            "  1 licence\n00 15 n 02 London 0 Greater_london 0 000 | a city\n", "utf-8"
        )
    monkeypatch.setattr(DRAWN.sentences, "WORDNET", tmp_path)
    texts = list(DRAWN.drawn(path, 20_000))
    assert texts == list(DRAWN.drawn(path, 20_000)) != list(DRAWN.drawn(path, 20_000, seed=1))
    assert 20_000 <= sum(len(text.split()) for text in texts) < 20_040
    assert all(text.startswith("It's ") and text.endswith(".") and "a-b" not in text for text in texts)
    other = 0.1 / 0.9  # by backing off to single words, of which "a-b" is none that may be written
    of_two, it_again = 0.5 + 0.5 * (0.25 + 0.75 * other), 0.5 * 0.75 * 0.3 / 0.9
    assert texts.count("It's London.") / len(texts) == pytest.approx(of_two / (of_two + it_again), abs=0.02)


def test_another_file_is_no_trigram_model(tmp_path: Path) -> None:
    (tmp_path / "en.arpa").write_text("\\data\\\nngram 1=1\n")
    with pytest.raises(ValueError, match=r"en\.arpa: no trigram model in the binary format of CMU Sphinx"):
        DRAWN.read(tmp_path / "en.arpa")
