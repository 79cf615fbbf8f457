"""Fillers and figures on the command line, with a real recording and with stored rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import AUDIO
from tests.helpers.processes import fastscribe, refused
from tests.helpers.schemas import check_schema

SPEECH = AUDIO / "03_0_00031.flac"  # "He was a widower, and seventy-three years of age."


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "transcripts.jsonl").read_text("utf-8").splitlines()]
    check_schema("result", found)
    return found


def stored(path: Path, texts: dict[str, str | None]) -> Path:
    """Write a row for each text, with the language that the model has heard."""
    with path.open("w", encoding="utf-8") as file:
        for text, language in texts.items():
            words = [
                {"word": word, "start": 0.5 * at, "end": 0.5 * at + 0.4, "confidence": 0.9}
                for at, word in enumerate(text.split())
            ]
            segment = {"text": text, "start": 0.0, "end": words[-1]["end"], "confidence": 0.9}
            row = {"audio_filepath": f"{text}.wav", "text": text, "duration": 30.0, "segments": [segment]}
            row |= {"words": words, "gaps": []} | ({} if language is None else {"language": language})
            file.write(json.dumps(row) + "\n")
    return path


def test_export_changes_stored_texts_in_a_folder_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("wetext", reason="needs the extra itn")
    out, changed = tmp_path / "out", tmp_path / "changed"
    fastscribe("transcribe", SPEECH, "-o", out, "--tokens", "-q")
    before = (out / "transcripts.jsonl").read_bytes()
    options = ("--itn", "--language", "en")
    assert "--itn makes other rows, which need a folder of their own" in refused("export", out, "-f", "srt", *options)
    made = fastscribe("export", out, "-f", "srt", "-o", changed, *options)
    assert made.returncode == 0, made.stderr
    [row] = rows(changed)
    assert "73 years" in row["text"] and "73 years" in next(changed.rglob("*.srt")).read_text("utf-8")
    assert "seventy" in " ".join(word.get("original", "") for word in row["words"]) and row["tokens"]
    assert (out / "transcripts.jsonl").read_bytes() == before
    other = fastscribe("export", out, "-f", "srt", "-o", changed, "--remove-fillers", "--language", "en")
    assert other.returncode == 2
    run = fastscribe("transcribe", SPEECH, "-o", tmp_path / "run", *options, "-q")
    assert run.returncode == 0, run.stderr
    assert [one["text"] for one in rows(tmp_path / "run")] == [row["text"]]


def test_rows_of_other_languages_stay_and_a_line_counts_them(tmp_path: Path) -> None:
    given = stored(tmp_path / "rows.jsonl", {"So, um, I go.": "en", "So, um, minä menen.": "fi", "Um, so.": None})
    done = fastscribe("export", given, "-f", "txt", "-o", tmp_path / "out", "--remove-fillers")
    assert done.returncode == 0, done.stderr
    assert [row["text"] for row in rows(tmp_path / "out")] == ["So, I go.", "So, um, minä menen.", "Um, so."]
    assert done.stderr.count("--remove-fillers: 1 transcript has the language fi: left as they were") == 1
    assert "--remove-fillers: 1 transcript has no known language (add --language): left as they were" in done.stderr


def test_export_takes_the_language_of_the_run_and_writes_nothing_without_one(tmp_path: Path) -> None:
    out, changed = tmp_path / "out", tmp_path / "changed"
    fastscribe("transcribe", SPEECH, "-o", out, "-q")  # the packaged model knows one language
    for language in ((), ("--language", "en")):  # the same settings
        made = fastscribe("export", out, "-f", "txt", "-o", changed, "--remove-fillers", *language)
        assert made.returncode == 0 and "known language" not in made.stderr, made.stderr
    other = refused("export", out, "-f", "txt", "-o", changed, "--remove-fillers", "--language", "de")
    assert '--language was "en", is "de"): use another folder' in other and "--overwrite" not in other
    given = stored(tmp_path / "rows.jsonl", {"Um, so.": None})
    rows = out / "transcripts.jsonl"
    german = stored(tmp_path / "de.jsonl", {"Wir gehen um acht, um so.": "de"}).read_text("utf-8")
    rows.write_text(rows.read_text("utf-8") + german, encoding="utf-8")  # the run is English, this row is not
    fastscribe("export", rows, "-f", "txt", "-o", tmp_path / "mixed", "--remove-fillers")
    assert "Wir gehen um acht, um so." in {
        path.read_text("utf-8").strip() for path in (tmp_path / "mixed").rglob("*.txt")
    }
    said = refused("export", given, "-f", "txt", "-o", tmp_path / "none", "--remove-fillers")
    assert "--remove-fillers: the language of Um, so..wav is not known: add --language" in said
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "-", "-f", "txt", "--language", "en"], "--language needs --remove-fillers or --itn"),
        (["export", "-"], "nothing to do: give --format"),
        (
            ["transcribe", SPEECH, "-q", "--itn", "--language", "fr"],
            "--itn: has no rules for the language fr, only for en, ja, zh",
        ),
    ],
)
def test_wrong_use_is_one_line(arguments: list[Any], message: str, tmp_path: Path) -> None:
    assert message in refused(*arguments, cwd=tmp_path)
