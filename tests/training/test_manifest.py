"""Rows into examples: wrong rows are named, and unusable ones counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from fastscribe.errors import UsageError
from fastscribe.training.corpus import Corpus, Example, Examples, LeftOutRow, ManifestPart
from fastscribe.training.manifest import ExampleLimits, read_manifests, tokenise

LIMITS = ExampleLimits()


def row(**fields: Any) -> str:
    return json.dumps({"audio_filepath": "a.wav", "duration": 2.0, "text": "Hello there."} | fields)


def manifest(folder: Path, *rows: str, name: str = "train.jsonl") -> str:
    for audio in ("a.wav", "sub/b.wav"):
        (folder / audio).parent.mkdir(exist_ok=True)
        (folder / audio).touch()
    (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(folder / name)


def read(*paths: str, limits: ExampleLimits = LIMITS) -> Corpus:
    return read_manifests([ManifestPart(path) for path in paths], limits)


def test_rows_in_order(tmp_path) -> None:
    first = manifest(tmp_path, row(speaker="x"), "", row(audio_filepath="sub/b.wav", offset=1.5, text="“One”  two"))
    second = manifest(tmp_path, "\ufeff" + row(text="last", duration=3), name="more.jsonl")
    corpus = read_manifests([ManifestPart(first), ManifestPart(second, 2)], LIMITS)
    assert tuple(corpus.examples) == (
        Example(str(tmp_path / "a.wav"), "Hello there.", 2.0),
        Example(str(tmp_path / "sub/b.wav"), '"One" two', 2.0, 1.5),
        Example(str(tmp_path / "a.wav"), "last", 3.0, part=1),
    )
    assert not corpus.left_out and corpus.duration_s == 7


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("{", "not JSON"),
        (row()[:-1], f"not JSON: Expecting ',' delimiter at column {len(row())}"),  # cut off
        ("[1]", "not a JSON object"),
        (row(audio_filepath=None), "no audio_filepath"),
        (row(audio_filepath="gone.wav"), "no such recording: .*gone.wav"),
        (row(audio_filepath="a\0"), "no such recording"),
        (row(audio_filepath="sub"), "no such recording"),
        (row(text=None, sentence=1), "sentence is 1, not a string"),
        (row(text=["a"]), "not a string"),
        (row(duration=None), r"no duration .0 is none., and it cannot be measured: a\.wav: is empty"),
        (row(duration=0), "no duration .0 is none."),
        (row(duration="2 s"), "not a number of seconds"),
        (row(offset=-1), "not a number of seconds from 0"),
        (row(audio_track=1), "audio_track 1: training reads the first track"),
    ],
)
def test_wrong_row(tmp_path, bad, problem) -> None:
    with pytest.raises(UsageError, match=rf"^{tmp_path}/train\.jsonl: line 3: .*{problem}"):
        read(manifest(tmp_path, row(), "", bad))


@pytest.mark.parametrize("name", ["file", "path", "audio_filepath"])
def test_columns_have_the_names_of_the_table(tmp_path: Path, name: str) -> None:
    table = manifest(tmp_path, f"{name},words", "a.wav,one", name="train.csv")
    with pytest.raises(UsageError, match=rf"line 2: no text: .* text, sentence, .*; there are {name}, words$"):
        read(table)


@pytest.mark.parametrize("name", ["text", "sentence", "transcript", "transcription"])
@pytest.mark.parametrize("folder", ["", "clips"])
def test_a_table_without_durations(tmp_path: Path, name: str, folder: str) -> None:
    """The recordings are measured, with the same result each time, but those that are left out without text are not opened."""
    (tmp_path / folder).mkdir(exist_ok=True)
    for clip, seconds in (("one", 2.0), ("two", 1.25)):
        soundfile.write(tmp_path / folder / f"{clip}.flac", np.zeros(int(16_000 * seconds)), 16_000)
    (tmp_path / folder / "bad.flac").write_bytes(b"no audio")
    rows = f'client\tpath\t{name}\na\tone.flac\tOne  "quote\na\tbad.flac\t\na\ttwo.flac\ttwo\n'
    (tmp_path / "train.tsv").write_text(rows, encoding="utf-8")
    part, said = ManifestPart(str(tmp_path / "train.tsv")), list[str]()
    corpus, again = (read_manifests([part], LIMITS, say=said.append) for _ in range(2))
    assert [(one.text, one.duration_s) for one in corpus.examples] == [('One "quote', 2.0), ("two", 1.25)]
    assert said[0] == "to train on: durations of 2 recordings were measured, because their rows have none"
    assert [(row.reason, row.line) for row in corpus.left_out] == [("without text", 3)]
    assert corpus.examples.digest() == again.examples.digest()


def test_the_rest_of_a_recording_is_measured(tmp_path: Path) -> None:
    """From the row's offset on. A row with a duration is not opened, and no line speaks of it."""
    path = manifest(tmp_path, row(audio_filepath="long.wav", duration=0, offset=1.5), row())
    soundfile.write(tmp_path / "long.wav", np.zeros(48_000), 16_000)
    said: list[str] = []
    corpus = read_manifests([ManifestPart(path)], LIMITS, say=said.append)
    assert [(one.offset_s, one.duration_s) for one in corpus.examples] == [(1.5, 1.5), (0.0, 2.0)]
    assert said == ["to train on: durations of 1 recording were measured, because their rows have none"]
    said.clear()
    read_manifests([ManifestPart(manifest(tmp_path, row()))], LIMITS, say=said.append)
    assert not said


@pytest.mark.parametrize(
    ("duration_s", "text", "is_asked"),
    [
        (2000, "Hello there.", True),
        (29_000, "One.", True),
        (40_000, "One.", False),
        (31, "One.", False),
        (2000, "Hello there. " * 50, False),  # a talk, with a text of its length
    ],
)
def test_milliseconds_for_seconds(tmp_path: Path, duration_s: int, text: str, is_asked: bool) -> None:
    """Also of one row among others."""
    corpus = read(manifest(tmp_path, row(), row(duration=duration_s, text=text), row()))
    asked = ", perhaps in milliseconds instead of seconds" if is_asked else ""
    assert [one.reason for one in corpus.left_out] == [f"longer than 30 s{asked}"]


def test_all_wrong_rows_are_one_message(tmp_path) -> None:
    bad = ["{", row(text=["a"]), row(audio_filepath="gone.wav"), row(duration=-1), "[1]", "{", "{"]
    first = r"line 2: not JSON.*; line 3: text is .*; line 4: no such .*/gone\.wav.*; line 6: not a JSON object"
    with pytest.raises(UsageError, match=rf"train\.jsonl: {first}; 7 wrong rows in all$"):
        read(manifest(tmp_path, row(), *bad, row()))


def test_rows_that_are_wrong_alike_share_a_sentence(tmp_path) -> None:
    table = manifest(tmp_path, "path,text", *["a.wav,one"] * 6, name="train.csv")
    lines = ", ".join(f"line {number}" for number in range(2, 7))
    problem = r"no duration \(0 is none\), and it cannot be measured: a\.wav: is empty \(0 bytes\)"
    with pytest.raises(UsageError, match=rf"train\.csv: {lines}: {problem}; 6 wrong rows in all$"):
        read(table)


def test_unreadable_manifest(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"gone\.jsonl: no such file or folder"):
        read(str(tmp_path / "gone.jsonl"))


def test_unusable_rows(tmp_path) -> None:
    rows = [row(text=None), row(text=" \u200b"), row(duration=0.2), row(duration=31), row(duration=50), row()]
    corpus = read(manifest(tmp_path, *rows))
    assert len(corpus.examples) == 1
    assert [row.line for row in corpus.left_out] == [1, 2, 3, 4, 5]
    assert str(corpus) == (
        "1 examples, 0.00 h; left out: 2 without text (0.1 min), 1 shorter than 0.3 s (0.0 min), 2 longer than 30 s (1.4 min)"
    )


def test_no_row_has_a_text(tmp_path) -> None:
    """One file of a manifest without texts will do, all will not; the message has the fields that are there."""
    bare = json.dumps({"audio_filepath": "a.wav", "duration": 2.0, "words": "one"})
    first, _ = manifest(tmp_path, bare, bare, name="m_0.jsonl"), manifest(tmp_path, row(), name="m_1.jsonl")
    assert len(read(str(tmp_path / "m_{0..1}.jsonl")).left_out) == 2
    said = (
        "line 1: no text: a field text, sentence, transcript, transcription has to have it; there are audio_filepath, "
        "duration, words$"
    )
    with pytest.raises(UsageError, match=f"^{first}: {said}"):
        read(first)
    noise = read_manifests([ManifestPart(first, non_speech=True)], LIMITS)
    assert len(noise.examples) == 2 and not noise.left_out


def test_limits_inclusive(tmp_path) -> None:
    limits = ExampleLimits(min_duration_s=1, max_duration_s=2, max_tokens=4, max_tokens_per_s=4)
    corpus = read(manifest(tmp_path, row(duration=1), row(duration=2)), limits=limits)
    assert len(tokenise(corpus, lambda text, request: (1,) * 4, limits).examples) == 2


def test_too_many_tokens() -> None:
    limits = ExampleLimits(max_tokens=5, max_tokens_per_s=2)
    texts = ["abc", "abcdef", "a", "?", ""]
    corpus = Corpus(
        Examples.of(Example("a.wav", text, duration_s=1.5) for text in texts), (LeftOutRow("before", "m", 1, "a", 1.0),)
    )
    encode = {"?": None}
    tokenised = tokenise(corpus, lambda text, request: encode.get(text, tuple(map(ord, text))), limits)
    assert [e.tokens for e in tokenised.examples] == [(97, 98, 99), (97,)]
    assert {row.reason for row in tokenised.left_out} == {
        "before",
        "of more than 5 tokens",
        "with letters that the vocabulary lacks",
        "without text",
    }
    fast = Corpus(Examples.of(Example("a.wav", text, duration_s=1.5) for text in ("abcd", "abc")))
    [row] = tokenise(fast, lambda text, request: tuple(map(ord, text)), limits).left_out
    assert row.reason == "of more than 2 tokens a second"
    for wrong in ({"max_tokens": 0}, {"max_tokens_per_s": 0}):
        with pytest.raises(UsageError):
            ExampleLimits(**wrong)


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name, seconds in (("b.wav", 1.0), ("deep/a.flac", 2.0), ("alone.wav", 1.0)):
        soundfile.write(tmp_path / name, np.zeros(int(16_000 * seconds)), 16_000)
    (tmp_path / "b.txt").write_text("one  two\n", encoding="utf-8-sig")
    (tmp_path / "deep" / "a.TXT").write_text("three", encoding="utf-8")
    corpus = read_manifests([ManifestPart(str(tmp_path))], ExampleLimits())
    assert [(Path(e.path).name, e.text, e.duration_s) for e in corpus.examples] == [
        ("b.wav", "one two", 1.0),
        ("a.flac", "three", 2.0),
    ]
    assert str(corpus).endswith("left out: 1 without text")
    assert [list(row.to_json()) for row in corpus.left_out] == [
        ["left_out", "manifest", "audio_filepath"]
    ]  # not opened


def test_folder_with_other_files(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", np.zeros(16_000), 16_000)
    for name in ("a.TextGrid", "a.json", "a.mp4", "notes.md"):
        (tmp_path / name).write_bytes(b"not audio")
    (tmp_path / "a.txt").write_text("one")
    corpus = read_manifests([ManifestPart(str(tmp_path))], ExampleLimits())
    assert [Path(e.path).name for e in corpus.examples] == ["a.flac"]
    (tmp_path / "b.m4a").write_bytes(b"not audio")
    (tmp_path / "b.txt").write_text("two")
    with pytest.raises(UsageError, match=r"b\.m4a.*take its \.txt away"):
        read_manifests([ManifestPart(str(tmp_path))], ExampleLimits())


def test_unusable_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no recording here has a \.txt"):
        read_manifests([ManifestPart(str(tmp_path))], ExampleLimits())
    (tmp_path / "a.wav").write_bytes(b"not audio")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UsageError, match=r"a\.wav.*take its \.txt away"):
        read_manifests([ManifestPart(str(tmp_path))], ExampleLimits())
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=rf"^{tmp_path}/a\.txt: not UTF-8$"):
        read_manifests([ManifestPart(str(tmp_path))], ExampleLimits())
    (tmp_path / "a.txt").write_bytes(b"a" * (1 << 21))
    with pytest.raises(UsageError, match=r"a\.txt: refused: 2097152 bytes"):
        read_manifests([ManifestPart(str(tmp_path))], ExampleLimits())


def test_all_wrong_files_of_a_folder_are_one_message(tmp_path: Path) -> None:
    for name in "abcdefgh":
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(16_000), 16_000)
        (tmp_path / f"{name}.txt").write_bytes(b"good" if name in "eh" else b"caf\xe9")
    (tmp_path / "a.wav").write_bytes(b"not audio")
    (tmp_path / "a.txt").write_text("good")
    alike = ", ".join(rf"{tmp_path}/{name}\.txt" for name in "bcdf")
    with pytest.raises(UsageError, match=rf"^{tmp_path}/a\.wav: .*away; {alike}: not UTF-8; 6 wrong rows in all$"):
        read_manifests([ManifestPart(str(tmp_path))], ExampleLimits())
