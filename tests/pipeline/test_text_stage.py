"""The steps from decoded utterances to a transcript, which any process can make."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import soundfile

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.config import CHANNELS
from fastscribe.pipeline.text_stage import LocalTexts, TextStage, finished
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import Hypothesis
from tests.conftest import AUDIO, MODELS, RATE, waveform

CLIPS = [waveform(path) for path in sorted(AUDIO.glob("[01]*.flac"))[:3]]
PAUSE = np.zeros(RATE, np.int16)
Made = TypeVar("Made")
GAPPED = np.concatenate([CLIPS[0], PAUSE, 0.75 * CLIPS[1][::-1], PAUSE, CLIPS[2]]).astype(np.int16)


class Seen:
    """Records what a run gives a stage."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first: list[Sequence[DecodedUtterance]] = []
        first = LocalTexts.first

        def watched(texts: LocalTexts, parts: Sequence[DecodedUtterance]) -> Sequence[Any]:
            self.first.append(parts)
            return first(texts, parts)

        monkeypatch.setattr(LocalTexts, "first", watched)


def run(
    path: Path, seen: Seen, *channels: np.ndarray, speakers: str | None = None
) -> tuple[TextStage, Transcript | Failure]:
    """Return the stage of a run, as another process gets it, and the run's result."""
    soundfile.write(path, np.stack(channels, axis=1), RATE)
    options = Options(speakers=speakers, max_utterance_s=40.0, threads=1)
    transcriber = Transcriber.load(MODELS / "tdt_demo" / "model.nemo", device="cpu", dtype="fp32", options=options)
    [result] = transcriber.transcribe([str(path)])
    room = transcriber._additions().transcripts
    stage = TextStage(options, transcriber._model.tokenizer, transcriber.facts, room)
    return pickle.loads(pickle.dumps(stage)), result


def elsewhere(made: Made) -> Made:
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def test_steps_of_another_process_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model writes nothing for a reversed clip among others: it is a gap."""
    seen = Seen(monkeypatch)
    stage, expected = run(tmp_path / "a.wav", seen, GAPPED)
    step = stage.first(seen.first[0])
    assert callable(step)  # it reads audio
    found = finished(elsewhere(step))
    assert found == expected and isinstance(found, Transcript)
    [gap] = found.gaps
    assert len(CLIPS[0]) / RATE < gap.start_s < gap.end_s < (len(GAPPED) - len(CLIPS[2])) / RATE


def test_a_dialogue_with_leaked_words_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    other = np.concatenate([0.1 * CLIPS[0], PAUSE, CLIPS[1]]).astype(np.int16)
    agent = np.zeros(len(other), np.int16)
    agent[: len(CLIPS[0])] = CLIPS[0]
    stage, expected = run(tmp_path / "a.wav", seen, agent, other, speakers=CHANNELS)
    step = stage.first(seen.first[0])
    assert callable(step)
    assert finished(elsewhere(step)) == expected and isinstance(expected, Transcript)
    (tmp_path / "a.wav").unlink()
    failed = finished(step)
    assert isinstance(failed, Failure) and failed.stage == "load"


def test_a_recording_that_cannot_be_assembled_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    stage, _ = run(tmp_path / "a.wav", seen, GAPPED)
    [(utterance, _)] = seen.first[0]
    failed = stage.first([(utterance, Hypothesis((10**6,), (0,), (1,), (0.0,)))])
    assert isinstance(failed, Failure) and (failed.stage, failed.error_type) == ("assemble", "IndexError")
    assert re.fullmatch(
        r"a defect of fastscribe, IndexError tuple index out of range in fastscribe/[a-z_/]+\.py, line \d+",
        failed.message,
    )
