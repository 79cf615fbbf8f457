"""The straight path where something goes wrong in the middle, and the order in which results leave."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fastscribe import Failure, Options, Transcriber, Transcript, UsageError
from fastscribe.batching import Budget
from fastscribe.errors import DeviceFailed
from fastscribe.types import Batch
from tests.conftest import AUDIO, MODELS

MODEL = MODELS / "tdt_demo" / "model.nemo"
FILES = sorted(AUDIO.glob("0*.flac"))


@pytest.fixture
def transcriber() -> Transcriber:
    return Transcriber.load(MODEL, device="cpu", dtype="fp32")


def texts(results: list[Transcript | Failure]) -> dict[str, str]:
    return {r.path if isinstance(r, Failure) else r.audio.path: getattr(r, "text", "failed") for r in results}


def with_options(transcriber: Transcriber, **options) -> Transcriber:
    transcriber.options = Options(**options)
    return transcriber


def test_results_do_not_depend_on_windows_or_batches(transcriber: Transcriber) -> None:
    reference = texts(list(transcriber.transcribe(FILES)))
    assert len(reference) == len(FILES)
    for options in ({"window": 1}, {"window": 2, "batch_size": 3}, {"batch_frames": 1}, {"threads": 1}):
        assert texts(list(with_options(transcriber, **options).transcribe(FILES))) == reference


def test_hours_of_audio_do_not_wait_for_the_last_input(transcriber: Transcriber) -> None:
    """A window closes after so much audio, so a file's transcript leaves before later files are even looked at."""
    transcriber = with_options(transcriber, batch_size=1, max_utterance_s=4)
    looked_at: list[Path] = []

    def inputs():
        for _ in range(20):
            for path in FILES:
                looked_at.append(path)
                yield path

    results = transcriber.transcribe(inputs())
    next(results)
    results.close()
    assert 0 < len(looked_at) < 20 * len(FILES)


def test_a_batch_that_fails_is_halved_until_one_row_fails_alone(transcriber: Transcriber, monkeypatch) -> None:
    poison = str(FILES[3])
    rows: list[int] = []

    def encode(batch: Batch):
        rows.append(len(batch.utterances))
        if any(utterance.audio.path == poison for utterance in batch.utterances):
            raise RuntimeError("out of memory\nwith a long story")
        return original(batch)

    reference = texts(list(transcriber.transcribe(FILES)))
    original = transcriber.engine._encode
    monkeypatch.setattr(transcriber.engine, "_encode", encode)
    results = list(with_options(transcriber, batch_size=100).transcribe(FILES))
    assert rows[0] == len(FILES)
    assert texts(results) == reference | {poison: "failed"}
    [failure] = [result for result in results if isinstance(result, Failure)]
    assert (failure.stage, failure.error_type) == ("model", "RuntimeError")
    assert "\n" not in failure.message
    assert transcriber.progress.failed == 1


def test_a_transcript_that_cannot_be_assembled_fails_alone(transcriber: Transcriber, monkeypatch) -> None:
    from fastscribe import transcript

    original = transcript.assemble

    def assemble(audio, *rest):
        if audio.path == str(FILES[0]):
            raise IndexError("no such piece")
        return original(audio, *rest)

    monkeypatch.setattr(transcript, "assemble", assemble)
    results = list(transcriber.transcribe(FILES))
    assert [r.stage for r in results if isinstance(r, Failure)] == ["assemble"]
    assert len(results) == len(FILES)


def test_one_part_of_a_long_recording_failing_fails_it_once(
    transcriber: Transcriber, tmp_path: Path, monkeypatch
) -> None:
    long = tmp_path / "long.wav"
    soundfile.write(long, 0.1 * np.random.default_rng(0).standard_normal(16000 * 20), 16000)
    calls = 0
    original = transcriber.engine._encode

    def encode(batch: Batch):
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise RuntimeError("no")
        return original(batch)

    monkeypatch.setattr(transcriber.engine, "_encode", encode)
    results = list(with_options(transcriber, max_utterance_s=4, batch_size=1).transcribe([long, FILES[0]]))
    assert sorted(type(result).__name__ for result in results) == ["Failure", "Transcript"]


def test_the_same_file_twice_is_two_results(transcriber: Transcriber) -> None:
    assert len(list(transcriber.transcribe([FILES[0], FILES[0]]))) == 2


def test_padding_and_audio_are_counted(transcriber: Transcriber) -> None:
    results = list(transcriber.transcribe([*FILES, "nowhere.wav"]))
    progress = transcriber.progress
    assert progress.files == len(results) == len(FILES) + 1
    assert progress.failed == 1
    assert progress.audio_s == pytest.approx(sum(r.audio.duration_s for r in results if isinstance(r, Transcript)))
    assert 0 < progress.real_frames <= progress.padded_frames


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"threads": 0},
        {"batch_size": 0},
        {"batch_frames": -1},
        {"batch_frames": "many"},
        {"channel": -1},
        {"decoder": "beam"},
        {"max_utterance_s": -1.0},
        {"max_utterance_s": float("nan")},
    ],
    ids=str,
)
def test_options_are_checked(options: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Options(**options)


def test_explicit_auto_keeps_the_budget_beside_a_batch_size(transcriber: Transcriber) -> None:
    assert with_options(transcriber, batch_size=8)._budget() == Budget(math.inf)
    assert with_options(transcriber, batch_size=8, batch_frames="auto")._budget() == with_options(transcriber)._budget()
    assert with_options(transcriber)._budget().frames < math.inf


def test_what_a_run_learns_about_memory_outlives_it(transcriber: Transcriber, monkeypatch) -> None:
    def encode(batch: Batch):
        if len(batch.utterances) > 2:
            raise torch.OutOfMemoryError("no")
        return original(batch)

    reference = texts(list(transcriber.transcribe(FILES)))
    original = transcriber.engine._encode
    monkeypatch.setattr(transcriber.engine, "_encode", encode)
    assert texts(list(transcriber.transcribe(FILES))) == reference
    budget = transcriber._budget()
    assert budget.frames < 1600
    frames = budget.frames
    assert texts(list(transcriber.transcribe(FILES))) == reference
    assert budget.frames <= frames


def test_a_lost_device_ends_the_run_in_one_line(transcriber: Transcriber, monkeypatch) -> None:
    def encode(batch: Batch):
        raise RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")

    answer = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nand advice")
    monkeypatch.setattr("fastscribe.engine.recover", lambda device: answer)
    monkeypatch.setattr(transcriber.engine, "_encode", encode)
    with pytest.raises(DeviceFailed, match=r"^[^\n]*illegal memory access was encountered; the run stops[^\n]*$"):
        list(transcriber.transcribe(FILES))
