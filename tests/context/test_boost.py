"""Phrases to boost, from files and manifest rows to texts, with the packaged model."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fastscribe import Options, Transcriber, Transcript
from fastscribe.audio.phrase_lines import parse_phrases
from fastscribe.context.phrases import digest
from fastscribe.errors import UsageError
from fastscribe.types import Failure, Phrase
from tests.conftest import AUDIO, MODELS
from tests.helpers.processes import fastscribe

BURGESS, NORFOLK = next(AUDIO.glob("05_*")), next(AUDIO.glob("03_*"))
DECODERS = {
    "greedy": Options(decoder="tdt", beam=1),
    "beam": Options(decoder="tdt", beam=4),
    "ctc": Options(decoder="ctc"),
}
HEAVY = Phrase("budget", 8.0)  # unlike "Burgess" it has no letter where greedy CTC has a blank


@cache
def text(path: Path, decoder: str, *phrases: Phrase) -> str:
    options = replace(DECODERS[decoder], boost=phrases)
    (result,) = Transcriber.load("default", "cpu", "fp32", options).transcribe(path)
    assert isinstance(result, Transcript), result
    return result.text


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_phrase_changes_the_text(decoder: str) -> None:
    others = Phrase("Antananarivo"), Phrase("Popocatépetl")
    assert "Budget" not in text(BURGESS, decoder)
    assert text(BURGESS, decoder, Phrase("Norfolk"), HEAVY).startswith("Budget")
    assert text(BURGESS, decoder, *others) == text(BURGESS, decoder)


@pytest.mark.parametrize("decoder", DECODERS)
def test_rows_of_a_manifest_have_their_own(decoder: str, tmp_path: Path) -> None:
    """Of one batch, only the rows with phrases change, and each as it does by itself."""
    rows = [
        {"audio_filepath": str(BURGESS), "boost": "budget\t8"},
        {"audio_filepath": str(BURGESS)},
        {"audio_filepath": str(NORFOLK), "boost": ["Norfolk\t2", "# a comment"]},
    ]
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = list(Transcriber.load("default", "cpu", "fp32", DECODERS[decoder]).transcribe(manifest, ordered=True))
    assert [result.text for result in results if isinstance(result, Transcript)] == [
        text(BURGESS, decoder, HEAVY),
        text(BURGESS, decoder),
        text(NORFOLK, decoder, Phrase("Norfolk", 2.0)),
    ]


def test_a_row_with_an_unusable_list_fails_alone(tmp_path: Path) -> None:
    manifest = tmp_path / "rows.jsonl"
    rows = [{"audio_filepath": str(BURGESS), "boost": boost} for boost in (["good", "bad\t-1"], 7, None)]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second, third = Transcriber.load("default", "cpu", "fp32").transcribe(manifest, ordered=True)
    assert isinstance(first, Failure) and "line 1: boost: line 2: weight '-1'" in first.message
    assert isinstance(second, Failure) and "line 2: boost is not a string" in second.message
    assert isinstance(third, Transcript)


@pytest.mark.parametrize("name", ["canary", "hf_canary"])
def test_attention_decoders(name: str) -> None:
    """A heavy phrase is written; the end of the text stays where the model has it."""
    model = MODELS / name
    texts = []
    for boost in ((), (Phrase("the wave", 10.0),), (Phrase("zzz", 1e-3), Phrase("the", 1e-3))):
        (result,) = Transcriber.load(model, "cpu", "fp32", Options(boost=boost), lambda line: None).transcribe(BURGESS)
        assert isinstance(result, Transcript), result
        texts.append(result.text)
    assert "the wave" in texts[1].lower() and texts[1] != texts[0] and texts[2] == texts[0]


def test_phrases_that_cannot_be_written() -> None:
    lines: list[str] = []
    Transcriber.load("default", "cpu", "fp32", Options(boost=(Phrase("Norfolk"), Phrase("東京"))), lines.append)
    assert [line for line in lines if "東京" in line] == lines and len(lines) == 1
    with pytest.raises(UsageError, match="not used, because the model does not write 東, 京: 東京"):
        Transcriber.load("default", "cpu", "fp32", Options(boost=(Phrase("東京"),)), lines.append)


def test_command_line(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("# names\nBurgess\t4\n")
    arguments = ("transcribe", BURGESS, "--beam", 1, "-f", "txt", "--boost", words)
    done = fastscribe(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1) and "Burgess" in done.stdout
    words.write_text("Burgess\nNorfolk\t0\n")
    bad = fastscribe(*arguments)
    assert bad.returncode == 2 and f"{words}: line 2: weight '0'" in bad.stderr.replace("\n", " ")
    named = fastscribe(*arguments[:-1], "Burgess\t4,Rice Stadium", "--boost", "Norfolk")
    assert (named.returncode, named.stdout, named.stderr) == (0, done.stdout, done.stderr)
    words.write_text("# nothing\n")
    empty, plain = fastscribe(*arguments), fastscribe(*arguments[:-2])
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, plain.stdout, plain.stderr)


def test_options_of_python() -> None:
    """Phrases may be strings, and pairs with a weight; others are named."""
    assert Options(boost=("Norfolk", ("Burgess", 2))).boost == (Phrase("Norfolk"), Phrase("Burgess", 2))
    assert digest(Options(boost=(("Burgess", 2),)).boost) == digest(parse_phrases(["Burgess\t2"], ""))
    for boost, problem in (
        ("Norfolk", "boost 'Norfolk': not a tuple of phrases"),
        ((" ",), "boost ' ': not a phrase"),
        ((("one", 2, 3),), "not a phrase, nor a phrase and its weight"),
        ((7,), "not a phrase, nor a phrase and its weight"),
        ((("one", 0),), "boost 0: one: a weight is above 0, up to 10"),
        ((("one", float("nan")),), "boost nan: one: a weight is above 0, up to 10"),
        ((("one", "2"),), "boost '2': one: a weight is above 0, up to 10"),
    ):
        with pytest.raises(UsageError, match=problem):
            Options(boost=boost)  # type: ignore[arg-type]
