"""The line about recordings that are beyond the packaged model."""

from __future__ import annotations

import pytest

from fastscribe.checkpoint.packaged_model import CONFIDENCE_LIMIT
from fastscribe.cli.packaged_model import PackagedModel
from fastscribe.types import AudioInfo, Failure, Segment, Transcript, Word


def recording(index: int, *confidences: float) -> Transcript:
    words = tuple(Word("a", 0.0, 0.1, one) for one in confidences)
    return Transcript(
        AudioInfo(f"{index}.wav", str(index), 100, 1, 1000, index=index), "a", (Segment("a", 0.0, 0.1, 1.0, words),), ()
    )


LOW = (CONFIDENCE_LIMIT, CONFIDENCE_LIMIT - 0.01)
FINE = (CONFIDENCE_LIMIT, CONFIDENCE_LIMIT + 0.01)


def lines(*results: Transcript | Failure, says_name: bool = True, is_usual: bool = True) -> list[str]:
    part = PackagedModel(says_name, is_usual)
    for result in results:
        part.result(result)
    return part.lines


def test_many_recordings_have_one_line_with_the_first() -> None:
    [line] = lines(recording(2, *LOW), recording(0, *FINE), recording(1, *LOW), recording(3))
    assert line.startswith("2 recordings are beyond the small English model")
    assert "fastscribe transcribe 1.wav --model" in line
    [line] = lines(recording(2, *LOW), recording(0, *FINE))
    assert line.startswith("1 recording is beyond")


@pytest.mark.parametrize(
    "results", [[recording(0, *FINE)], [recording(0)], [Failure("a", "a", "load", "OSError", "x")]]
)
def test_without_one_the_model_is_named(results: list[Transcript | Failure]) -> None:
    [line] = lines(*results)
    assert "ran; a large one" in line and "beyond" not in line
    assert lines(*results, says_name=False) == []


def test_other_decoders_have_no_limit() -> None:
    assert lines(recording(0, *LOW), says_name=False, is_usual=False) == []
