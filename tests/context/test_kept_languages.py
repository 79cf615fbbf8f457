"""A model with pieces in several scripts is kept to a language, from files to rows: for a run, for rows, and with resuming.

Small trained models get a vocabulary of Latin, Cyrillic and Greek pieces, so they write all of them mixed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
import torch

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.alignment.aligner import Aligner
from fastscribe.context.alphabets import find_alphabet
from fastscribe.text.tokenizer import from_sentencepiece
from tests.conftest import AUDIO, MODELS
from tests.context.test_language_filter import SENTENCES
from tests.helpers.processes import fastscribe

CLIPS = sorted(AUDIO.glob("*.flac"))[:6]
KNOWN = ("el", "en", "pl", "ru")
MakeFolder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """Return a model's folder with a vocabulary of three scripts, by the name of its test model."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("models") / name
            _make(MODELS / name / "model.nemo", made[name])
        return made[name]

    return make


def _make(source: Path, folder: Path) -> None:
    from fastscribe.checkpoint import native_writer
    from fastscribe.checkpoint.reader import read_checkpoint

    native_writer.write(read_checkpoint(source), folder, torch.float32)
    size = len(from_sentencepiece((folder / "tokenizer.model").read_bytes()).pieces)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([SENTENCES[tag].lower() for tag in KNOWN for _ in range(9)]),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"languages": list(KNOWN)}))


def manifest(path: Path, *rows: dict[str, object]) -> Path:
    lines = [json.dumps({"audio_filepath": str(clip), **row}) + "\n" for clip, row in zip(CLIPS, rows, strict=False)]
    path.write_text("".join(lines))
    return path


def has_all(tag: str, text: str) -> bool:
    alphabet = find_alphabet(tag)
    assert alphabet is not None
    return alphabet.has_all(text)


@pytest.fixture(params=["tdt_demo", "rnnt", "hybrid"], scope="module")
def model(request: pytest.FixtureRequest, folder: MakeFolder) -> tuple[Path, str | None]:
    return folder(request.param), "ctc" if request.param == "hybrid" else None


@pytest.mark.parametrize("beam", [1, 3])
def test_rows_of_one_batch_keep_to_their_languages(model: tuple[Path, str | None], beam: int, tmp_path: Path) -> None:
    """Each text has the letters of its language alone, and is that of the recording by itself. A wrong row fails alone."""
    path, decoder = model
    if decoder == "ctc" and beam > 1:
        pytest.skip("CTC has no beam")
    rows = (
        {"language": "pl"},
        {"lang": "Russian"},
        {"source_lang": "el"},
        {},
        {"language": "auto"},
        {"language": "de"},
    )
    options = Options(decoder=decoder, beam=beam, language="en", threads=1)
    transcriber = Transcriber.load(path, "cpu", "fp32", options, lambda line: None)
    found = {one.index: one for one in transcriber.transcribe(manifest(tmp_path / "rows.jsonl", *rows))}
    for index, tag in enumerate(("pl", "ru", "el", "en")):
        result = found[index]
        assert isinstance(result, Transcript) and result.language == tag
        assert result.text and has_all(tag, result.text)
        assert not any(has_all(other, result.text) for other in ("ru", "el", "en") if other != tag and tag != "pl")
    free, wrong = found[4], found[5]
    assert isinstance(free, Transcript) and free.language is None and not any(has_all(tag, free.text) for tag in KNOWN)
    assert isinstance(wrong, Failure) and wrong.message == "language is de, and this model knows el, en, pl, ru only"
    assert transcriber._languages is not None and transcriber._languages.rows == {"pl": 1, "ru": 1, "el": 1}
    alone = Transcriber.load(path, "cpu", "fp32", Options(decoder=decoder, beam=beam, language="ru"), lambda line: None)
    [result] = alone.transcribe(CLIPS[1])
    assert isinstance(result, Transcript) and result.text == found[1].text


def test_without_the_option_the_rows_count_too(folder: MakeFolder, tmp_path: Path) -> None:
    """The model states several languages. A model that does not state them leaves rows alone."""
    path = folder("rnnt")
    rows = manifest(tmp_path / "rows.jsonl", {"language": "ru"}, {})
    first, second = Transcriber.load(path, "cpu", "fp32", say=lambda line: None).transcribe(rows, ordered=True)
    assert isinstance(first, Transcript) and isinstance(second, Transcript)
    assert has_all("ru", first.text) and first.language == "ru"
    assert not any(has_all(tag, second.text) for tag in KNOWN) and second.language is None
    config = json.loads((path / "config.json").read_text())
    unstated = tmp_path / "unstated"
    unstated.mkdir()
    for name in ("tokenizer.model", "model.safetensors"):
        (unstated / name).symlink_to(path / name)
    del config["languages"]
    (unstated / "config.json").write_text(json.dumps(config))
    [plain, _] = Transcriber.load(unstated, "cpu", "fp32", say=lambda line: None).transcribe(rows, ordered=True)
    assert (
        isinstance(plain, Transcript) and plain.language is None and not any(has_all(tag, plain.text) for tag in KNOWN)
    )
    said: list[str] = []
    kept = Transcriber.load(unstated, "cpu", "fp32", Options(language="pl"), said.append)
    russian, polish = kept.transcribe(rows, ordered=True)
    assert isinstance(russian, Transcript) and isinstance(polish, Transcript)
    assert russian.text == first.text and has_all("pl", polish.text)
    assert len(said) == 1 and "tokens are left out" in said[0] and "does not state its languages" in said[0]


def test_an_aligner_leaves_nothing_out(folder: MakeFolder, tmp_path: Path) -> None:
    """A known text has the letters that it has. The language of a row is not looked at: its failure is about the sound."""
    rows = manifest(tmp_path / "rows.jsonl", {"language": "de", "text": "the кот"})
    said: list[str] = []
    aligner = Aligner.load(folder("ctc"), "cpu", "fp32", Options(language="el"), said.append)
    [result] = aligner.align(rows)
    assert isinstance(result, Failure) and result.message == "nothing of its text was heard"
    assert not any("left out" in line for line in said) and aligner._executor.facts.language is None


def test_the_command_says_it_and_resumes_in_one_language(folder: MakeFolder, tmp_path: Path) -> None:
    rows = manifest(tmp_path / "rows.jsonl", {}, {"language": "ru"})
    given = ("transcribe", rows, "-m", folder("rnnt"), "-o", tmp_path / "out", "-q", "--dtype", "fp32")
    first = fastscribe(*given, "--language", "Polish")
    assert first.returncode == 0
    assert (
        "fastscribe: --language pl: 1" in first.stderr
        and " of 192 tokens are left out, which texts in pl" in first.stderr
    )
    assert "fastscribe: rows name their language (ru 1): the tokens" in first.stderr
    found = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()]
    assert sorted(row["pred_language"] for row in found) == ["pl", "ru"]
    assert [row["language"] for row in found if "language" in row] == ["ru"]  # the row's own field stays
    again = fastscribe(*given, "--language", "pl")
    assert again.returncode == 0 and "rows name their language" not in again.stderr  # nothing was left to do
    other = fastscribe(*given, "--language", "en")
    assert other.returncode == 2 and '(--language was "pl", is "en")' in other.stderr


def test_edits_follow_the_rows_language(folder: MakeFolder, tmp_path: Path) -> None:
    """Fillers are those of the language that a recording is kept to; those of Greek are not known."""
    rows = manifest(tmp_path / "rows.jsonl", {"language": "el"}, {})
    options = Options(language="en", remove_fillers=True, threads=1)
    transcriber = Transcriber.load(folder("rnnt"), "cpu", "fp32", options, lambda line: None)
    assert [result.language for result in transcriber.transcribe(rows, ordered=True)] == ["el", "en"]  # type: ignore[union-attr]
    assert transcriber._edits is not None and transcriber._edits.left_alone == {("--remove-fillers", "el"): 1}


def test_phrases_that_a_language_leaves_out_are_named(folder: MakeFolder, tmp_path: Path) -> None:
    """The run's list in the run's language at once; at the end, the recordings of rows with a list or a language."""
    rows = manifest(
        tmp_path / "rows.jsonl",
        {"boost": ["кот", "koń"]},
        {"language": "ru"},
        {"language": "ru", "boost": ["кот"]},
        {"language": "auto", "boost": ["λόγος"]},
    )
    said: list[str] = []
    options = Options(language="pl", boost=("koń", "дом", "the"), threads=1)
    transcriber = Transcriber.load(folder("rnnt"), "cpu", "fp32", options, said.append)
    assert said[1:] == [
        "--boost: 1 of 3 phrases have no effect, because --language pl leaves out tokens that they need: дом"
    ]
    assert not any(isinstance(one, Failure) for one in transcriber.transcribe(rows))
    assert transcriber._languages is transcriber._recognizer.rooms.languages is not None
    line = "boost: phrases had no effect in 3 recordings, because the language there leaves out tokens that they need: "
    lines = transcriber._languages.take_lines()
    assert lines[0].startswith(line) and set(lines[0].removeprefix(line).split(", ")) == {"кот", "koń", "the"}
    assert transcriber._languages.take_lines() == []
