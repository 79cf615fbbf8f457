"""Lines about inputs that failed: how many there are, what they name, and what they hint at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fastscribe.audio.failures import input_failure, to_failure
from fastscribe.audio.list_sources import read_list
from fastscribe.cli.failure_lines import FailureLines
from fastscribe.errors import AudioError
from fastscribe.types import Failure, Source


def said(*failures: Failure) -> list[str]:
    found: list[str] = []
    lines = FailureLines(found.append)
    for failure in failures:
        lines.add(failure)
    return found


def test_further_failures_share_a_line() -> None:
    lines = said(*(input_failure(f"/nowhere/{number}.wav", "broken") for number in range(1500)))
    assert lines[999:] == [
        "/nowhere/999.wav: input failed: broken",
        "1,000 failures have lines here; further ones are counted, and are in the rows only",
    ]
    few: list[str] = []
    lines_of_dry_run = FailureLines(few.append, "-v shows the others")
    for number in range(12):
        lines_of_dry_run.add(input_failure(f"/nowhere/{number}.wav", "broken"))
    assert few == [*lines[:10], "10 failures have lines here; -v shows the others"]


def test_each_line_names_the_row(tmp_path: Path) -> None:
    rows = [{"audio_filepath": "a.wav", "offset": -1, "id": 7}, {"id": "x, id y"}, {"audio_filepath": 3}]
    (manifest := tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert said(*(one for one in read_list(str(manifest)) if isinstance(one, Failure))) == [
        f"a.wav: input failed: {manifest}: line 1, id 7: offset is -1, not a number of seconds from 0",
        f"{manifest}: input failed: line 2: no audio_filepath",  # which id it is cannot be told
        f"{manifest}: input failed: line 3: audio_filepath is 3, not a text",
    ]
    source = Source("b.wav", "b.wav", "b.wav", {}, listed="m.jsonl: line 2, id 8")
    failure = to_failure(source, "probe", AudioError("b.wav", "broken"))
    assert said(failure) == ["b.wav (m.jsonl: line 2, id 8): probe failed: broken"]


def test_recordings_that_are_there_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says so: the paths of a list count from its own folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.wav").touch()
    source = Source("a.wav", "lists/a.wav", "a.wav", {}, listed="lists/m.jsonl: line 1")
    failure = to_failure(source, "probe", AudioError("a.wav", "no such file or folder"))
    lines = said(replace(failure, path="b.wav"), failure, failure)
    assert [line.endswith("count from the list's own folder") for line in lines] == [False, True, False]
    assert not any("current folder" in line for line in said(replace(failure, message="damaged")))
