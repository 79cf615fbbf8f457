"""Estimates of large jobs from some of their inputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe import Failure, Options, Transcriber, dry_run
from fastscribe.audio.failures import to_failure
from fastscribe.audio.probe import probe
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.cli.report_dry_run import dry_run_table
from fastscribe.dry_run import estimate_run
from fastscribe.errors import ModelOutputError
from fastscribe.pipeline.preparation import Preparation
from fastscribe.results.interfaces import Ledger
from fastscribe.types import Source, Utterance
from tests.conftest import AUDIO, MODELS

CLIPS = sorted(AUDIO.glob("0*.flac"))[:6]


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    options = Options(batch_size=4)
    return Transcriber.load(MODELS / "ctc" / "model.nemo", device="cpu", dtype="fp32", options=options)


@pytest.fixture(scope="module")
def seconds() -> float:
    return sum(probe(Source(str(clip), str(clip), clip.stem)).duration_s for clip in CLIPS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Each clip under ten names, and files that cannot be used."""
    for number in range(10):
        for clip in CLIPS:
            (tmp_path / f"{number}-{clip.name}").symlink_to(clip)
        (tmp_path / f"{number}-broken.wav").write_text("not audio")
    return tmp_path


def test_some_inputs_stand_for_the_others(
    transcriber: Transcriber, folder: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Failure] = []
    whole = estimate_run(transcriber, [str(folder)], Ledger(), None, failures.append)
    assert (whole.files, whole.failed, whole.opened, len(failures)) == (60, 10, 70, 10)
    assert whole.audio_s == pytest.approx(10 * seconds) and whole.utterances == 60
    monkeypatch.setattr(dry_run, "_MAX_OPENED", 35)
    failures.clear()
    part = estimate_run(transcriber, [str(folder)], Ledger(), 1.0, failures.append)
    assert part.opened == 35 and part.failed == 2 * len(failures) > 0 and part.files + part.failed == 70
    assert part.audio_s == pytest.approx(10 * seconds, rel=0.25)
    assert part.utterances == pytest.approx(60, abs=15) and part.batches == pytest.approx(15, abs=5)
    assert part.estimated_usd == pytest.approx(part.estimated_s / 3600) and part.estimated_s > 0


def test_time_ends_the_opening(transcriber: Transcriber, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_MAX_OPENING_S", 0.0)
    found = estimate_run(transcriber, [str(folder)] + [str(clip) for clip in CLIPS], Ledger(), None, lambda _: None)
    assert 0 < found.opened <= 76 and found.files + found.failed == 76 and found.audio_s > 0


def test_stated_durations_are_believed(
    transcriber: Transcriber, folder: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few files are opened, to see whether they are there, and the hours are the sum of all rows."""
    monkeypatch.setattr(dry_run, "_MAX_OPENED", 20)
    rows = [{"audio_filepath": str(clip), "duration": 2.0 + number} for number in range(10) for clip in CLIPS]
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = estimate_run(transcriber, [str(folder / "list.jsonl")], Ledger(), None, lambda _: None)
    assert (found.files, found.failed, found.opened) == (60, 0, 20)
    assert found.audio_s == sum(row["duration"] for row in rows)
    assert found.estimated_s > 0


@pytest.mark.parametrize("most", [8, 1000])
def test_audio_that_cannot_be_read_is_not_counted(
    transcriber: Transcriber, folder: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a list that states every duration, also that of the wrong rows."""
    monkeypatch.setattr(dry_run, "_MAX_OPENED", most)
    rows = [{"audio_filepath": str(clip), "duration": 2} for clip in CLIPS * 4]
    rows += [{"audio_filepath": "gone.wav", "duration": 3600}] * 24
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = estimate_run(transcriber, [str(folder / "list.jsonl")], Ledger(), None, lambda _: None)
    assert found.opened == min(most, 48) and found.failed == pytest.approx(24, abs=12 if most < 48 else 0)
    assert found.audio_s == pytest.approx(2 * found.files) and found.utterances == found.files


def test_an_estimate_does_not_look_for_silence(tmp_path: Path) -> None:
    """A model that learnt on short utterances reads each recording in a run, to leave silence out."""
    config = read_checkpoint(MODELS / "ctc" / "model.nemo").config
    soundfile.write(path := tmp_path / "silence.wav", np.zeros(160_000), 16_000)
    source = Source(str(path), str(path), "silence", duration_s=9.0)
    gone = Source("gone.wav", "gone.wav", "gone", duration_s=9.0)
    assert isinstance(Preparation(config, Options(), by_phrase=True).prepare(gone), Failure)
    [utterance] = Preparation(config, Options(), by_phrase=True, dry=True).prepare(source)
    assert utterance.duration_s == 9.0


def test_recordings_on_which_the_model_fails(transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(plans: Iterable[Sequence[Utterance]]) -> Iterator[tuple[Sequence[Utterance], list[Failure]]]:
        for batch in plans:
            yield batch, [to_failure(one.audio, "model", ModelOutputError("NaN")) for one in batch]

    monkeypatch.setattr(transcriber._executor, "execute", execute)
    failures: list[Failure] = []
    found = estimate_run(transcriber, [str(clip) for clip in CLIPS], Ledger(), 2.0, failures.append)
    assert found.failed == len(failures) == len({one.path for one in failures}) > 0
    assert found.files + found.failed == len(CLIPS) and found.estimated_usd is None
    assert found.audio_s == sum(probe(Source(str(clip), str(clip), "")).duration_s for clip in CLIPS[found.failed :])
    assert "unknown: no recording that was tried could be decoded" in dry_run_table(found)
