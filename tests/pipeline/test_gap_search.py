"""Recordings with long stretches without words: when they leave the run."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pytest
import soundfile

from fastscribe import Options, Transcriber, Transcript
from fastscribe.pipeline.text_stage import TextStage
from tests.conftest import AUDIO, MODELS, waveform


def test_searched_recordings_leave_before_the_window_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording with a gap leaves while the model works on other batches of its window."""
    options = Options(batch_size=1)
    transcriber = Transcriber.load(MODELS / "tdt_demo" / "model.nemo", device="cpu", dtype="fp32", options=options)
    clip = next(AUDIO.glob("01*.flac"))
    paused = tmp_path / "paused.wav"
    soundfile.write(paused, np.concatenate([waveform(clip), np.zeros(80_000, np.int16)]), 16_000)
    searched = Event()
    search, push, num_pushed = TextStage._search, transcriber._engine.push, 0

    def search_and_tell(*arguments: object) -> object:
        found = search(*arguments)  # type: ignore[arg-type]
        searched.set()
        return found

    def push_after_search(batch):  # the longest recording, the paused one, is the first batch
        nonlocal num_pushed
        num_pushed += 1
        assert num_pushed == 1 or searched.wait(60)
        return push(batch)

    monkeypatch.setattr(TextStage, "_search", search_and_tell)
    monkeypatch.setattr(transcriber._engine, "push", push_after_search)
    results = list(transcriber.transcribe([paused, *5 * [clip]]))
    assert all(isinstance(result, Transcript) for result in results)
    assert [result.audio.index for result in results].index(0) <= 1
