"""`fastscribe export` on the command line: its messages and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastscribe.cli import app
from fastscribe.errors import UsageError
from tests.helpers.exports import export

ROWS = [
    {"audio_filepath": "a.wav", "text": "hello", "duration": 1.0, "segments": [], "words": []},
    {"audio_filepath": "b.wav", "error": {"stage": "load", "type": "AudioError", "message": "broken"}},
]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize(("format", "num", "note"), [("srt", 1, "no files"), ("json", 2, "JSON alone")])
def test_failed_recordings(given: Path, capsys: pytest.CaptureFixture[str], format: str, num: int, note: str) -> None:
    export([str(given)], [format], given.parent / "out")
    assert capsys.readouterr().err.endswith(
        f"for {num} of 2 results, without decoding; 1 failed recording has {note}\n"
    )


def test_quiet_prints_what_cannot_be_used_alone(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(["export", str(given), "-f", "txt", "-o", str(given.parent / "out"), "-q"], standalone_mode=False)
    assert capsys.readouterr().err == "" and (given.parent / "out" / "a.txt").exists()
    given.write_text(given.read_text() + "{}\n")
    app(["export", str(given), "-f", "txt", "-o", str(given.parent / "again"), "-q"], standalone_mode=False)
    assert "line 3" in capsys.readouterr().err


def test_no_rows_are_wrong_usage(given: Path) -> None:
    given.write_text("")
    for folder in (None, given.parent / "out"):
        with pytest.raises(UsageError, match="no results at all"):
            export([str(given)], ["txt"], folder)


def test_the_folder_that_is_read_is_not_written(given: Path) -> None:
    out = given.parent / "out"
    export([str(given)], ["txt"], out)
    for source in (out, out / "transcripts.jsonl"):
        with pytest.raises(UsageError, match=r"is what --output-dir .*out holds"):
            export([str(source)], ["srt"], out)
