"""The line about recordings that are beyond the packaged model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastscribe.checkpoint.hub_name import LARGE_MODEL
from fastscribe.checkpoint.location import CONFIDENCE_LIMIT
from fastscribe.cli.run_hooks import PackagedModel
from fastscribe.types import AudioInfo, Failure, Gap, Segment, Transcript, Word


def recording(index: int, *confidences: float, gaps: tuple[Gap, ...] = ()) -> Transcript:
    words = tuple(Word("a", 0.0, 0.1, one) for one in confidences)
    audio = AudioInfo(f"{index}.wav", str(index), 100, 1, 1000, index=index)
    return Transcript(audio, "a", (Segment("a", 0.0, 0.1, 1.0, words),), (), gaps)


LOW = (CONFIDENCE_LIMIT, CONFIDENCE_LIMIT - 0.01)
FINE = (CONFIDENCE_LIMIT, CONFIDENCE_LIMIT + 0.01)


def part(*results: Transcript | Failure, says_name: str | None = "at the end", is_usual: bool = True) -> PackagedModel:
    found = PackagedModel(says_name, is_usual)
    for result in results:
        found.result(result)
    return found


def test_many_recordings_have_one_line_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calls").mkdir()
    for name in ("1.wav", "calls/0.wav"):
        (tmp_path / name).touch()
    [line] = part(recording(2, *LOW), recording(0, *FINE), recording(1, *LOW), recording(3)).lines
    assert line.startswith("2 recordings are beyond the small English model")
    assert "fastscribe transcribe 1.wav --model" in line
    of_list = recording(0, *LOW)
    of_list = replace(of_list, audio=replace(of_list.audio, file="calls/0.wav"))
    assert "fastscribe transcribe calls/0.wav --model" in part(of_list, recording(1)).lines[0]
    [line] = part(recording(2, *LOW), recording(0, *FINE)).lines
    assert line.startswith("1 recording is beyond")
    # A path of an archive's member, or of a list in a store, is none that a command takes.
    assert line.endswith("; the first is 2.wav; a large one is more accurate: --model " + LARGE_MODEL)
    of_store = replace(of_list, audio=replace(of_list.audio, path="s3://calls/a b.wav", file=None))
    assert f"fastscribe transcribe 's3://calls/a b.wav' --model {LARGE_MODEL}" in part(of_store).lines[0]


def test_speech_without_any_word_is_beyond_the_model() -> None:
    gaps = (Gap(1.0, 4.0), Gap(5.0, 8.0))
    [line] = part(recording(0, gaps=gaps)).lines
    assert line.startswith("0.wav is beyond") and "(no words in 6 s of what may be speech)" in line
    [line] = part(recording(0, *FINE, gaps=gaps)).lines
    assert "beyond" not in line


@pytest.mark.parametrize("results", [[recording(0, *FINE)], [recording(0)]])
def test_without_one_the_model_is_named(results: list[Transcript | Failure]) -> None:
    found = part(*results)
    [line] = found.lines
    assert "ran; a large one" in line and "beyond" not in line and not found.first_lines
    assert not part(*results, says_name=None).lines
    before = part(*results, says_name="first")
    assert not before.lines and "no --model" in before.first_lines[0]


def test_the_model_did_not_run_where_all_failed() -> None:
    assert not part(Failure("a", "a", "load", "OSError", "x")).lines


def test_other_decoders_have_no_limit() -> None:
    assert not part(recording(0, *LOW), says_name=None, is_usual=False).lines
