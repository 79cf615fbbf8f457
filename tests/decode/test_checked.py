"""Rows without a transcript: the model's numbers are not finite, or its labels have no end. Their neighbours stay the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fastscribe import Transcriber
from fastscribe.checkpoint import native
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import Options
from fastscribe.decode import checked, label_looping
from fastscribe.decode.beam import beam_search
from fastscribe.decode.checked import NOT_FINITE, checked_frames
from fastscribe.decode.greedy import ENDLESS, greedy, max_labels
from fastscribe.errors import CheckpointError, ModelOutputError
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import Batch, Features, Frames, Hypothesis
from tests.cli.test_cli import rows, transcribe
from tests.conftest import AUDIO, MODELS, checkpoint, waveform
from tests.decode.test_beam import decoded as beam_decoded
from tests.decode.test_label_looping import NothingForTheHost, one_thread, random_frames, tiny_transducer  # noqa: F401

FILES = sorted(AUDIO.glob("0[1-3]_*.flac"))
KINDS = [
    ("tdt_demo", "fp32", Options()),
    ("tdt_demo", "bf16", Options()),
    ("tdt_demo", "fp32", Options(beam=2)),
    ("rnnt", "bf16", Options()),
    ("ctc", "fp32", Options()),
    ("hybrid", "bf16", Options(decoder="ctc")),
    ("canary", "fp32", Options()),
    ("canary", "bf16", Options()),
    ("quartznet", "fp32", Options()),
]


def batch(waves: list[np.ndarray]) -> Batch:
    samples_BS = np.zeros((len(waves), max(map(len, waves))), np.float32)
    for row_S, wave in zip(samples_BS, waves, strict=True):
        row_S[: len(wave)] = wave
    return Batch(tuple(range(len(waves))), samples_BS, np.array([len(wave) for wave in waves]))  # type: ignore[arg-type]


def speech(path: Path, num_samples: int) -> np.ndarray:
    return waveform(path)[:num_samples].astype(np.float32) / 32768


@pytest.mark.parametrize(("name", "dtype", "options"), KINDS)
def test_a_row_that_is_not_finite_fails_alone(name: str, dtype: str, options: Options) -> None:
    recognizer = Recognizer.build(checkpoint(MODELS / name), "cpu", dtype, options, say=lambda line: None)
    waves = [speech(path, size) for path, size in zip(FILES, (40_000, 48_000, 45_000), strict=True)]
    expected = recognizer.transcribe(batch(waves))
    assert all(hypothesis.token_ids and not hypothesis.problem for hypothesis in expected)
    for row in (0, 1):  # the shorter one has padding that the model also sees
        damaged = [wave.copy() for wave in waves]
        damaged[row][[9000, 9100]] = 3e38, -3e38
        found = recognizer.transcribe(batch(damaged))
        assert found == [*expected[:row], NOT_FINITE, *expected[row + 1 :]]


def test_the_engine_gives_such_rows_apart() -> None:
    recognizer = Recognizer.build(checkpoint(MODELS / "ctc"), "cpu", "fp32")
    waves = [np.full(4000, value, np.float32) for value in (0.1, 3e38, 3e38, 0.1, 3e38)]
    outcomes = list(Engine(recognizer).stream([batch(waves)]))
    assert [found.utterances for found, _ in outcomes] == [(0,), (1, 2), (3,), (4,)]
    for found, outcome in outcomes:
        if found.utterances in ((1, 2), (4,)):
            assert isinstance(outcome, ModelOutputError) and str(outcome) == NOT_FINITE.problem
        else:
            assert isinstance(outcome, list) and not outcome[0].problem


@pytest.mark.parametrize("where", ["mel", "frames"])
def test_only_numbers_within_a_row_count(where: str) -> None:
    """Beyond their lengths frames may be anything. Features are zero there."""
    features = Features(torch.zeros(3, 4, 16), torch.tensor([16, 8, 0]))
    frames = Frames(torch.zeros(3, 2, 5, dtype=torch.bfloat16), torch.tensor([2, 1, 0]))
    frames.frames_BTD[1:, 1] = torch.nan
    frames.frames_BTD[2, 0] = torch.inf
    assert checked_frames(frames, features).lengths_B.tolist() == [2, 1, 0]
    if where == "mel":
        features.mel_BMT[0, 3, 15] = -torch.inf
    else:
        frames.frames_BTD[0, 1, 4] = torch.nan
    found = checked_frames(frames, features)
    assert found.lengths_B.tolist() == [0, 1, 0]
    assert found.is_finite_B.tolist() == [False, True, True]  # type: ignore[union-attr]


def test_the_host_does_not_wait_for_it() -> None:
    class Decoder:
        def submit(self, frames: Frames) -> torch.Tensor:
            return frames.lengths_B.int()

    features = Features(torch.zeros(2, 4, 16), torch.tensor([16, 8]))
    frames = Frames(torch.zeros(2, 2, 5), torch.tensor([2, 1]))
    with NothingForTheHost() as seen:
        packed = checked.submit(Decoder(), checked_frames(frames, features))  # type: ignore[arg-type]
    assert packed.tolist() == [1, 1, 2, 1]
    assert len(seen.names) <= 16


def test_probabilities_that_are_not_finite_are_no_transcript() -> None:
    class Decoder:
        def read(self, packed: np.ndarray, frames: Frames) -> list[Hypothesis]:
            return [Hypothesis((1,), (0,), (1,), (logprob,)) for logprob in (-0.5, float("nan"))]

    frames = Frames(torch.zeros(2, 2, 5), torch.tensor([2, 1]), is_finite_B=torch.tensor([True, True]))
    found = checked.read(Decoder(), np.array([1, 1, 7], np.int32), frames)  # type: ignore[arg-type]
    assert found == [Hypothesis((1,), (0,), (1,), (-0.5,)), NOT_FINITE]


def damaged_model(folder: Path, name: str, tensor_name: str) -> Path:
    """The model with finite weights of 1e38."""
    sound = checkpoint(MODELS / name)
    weights = {key: torch.sign(t) * 1e38 if key == tensor_name else t for key, t in sound.weights.items()}
    assert weights.keys() == sound.weights.keys() and tensor_name in weights
    native.write(replace(sound, weights=weights), folder, torch.float32)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "encoder.subsampling.out.weight",
        "encoder.layers.0.feed_forward1.linear2.weight",
        "encoder.layers.1.norm_out.weight",
    ],
)
def test_finite_weights_of_1e38_fail_every_recording(name: str, tmp_path: Path) -> None:
    recognizer = Recognizer.build(read_checkpoint(damaged_model(tmp_path / "model", "tdt_demo", name)), "cpu", "bf16")
    assert recognizer.transcribe(batch([speech(path, 16_000) for path in FILES])) == [NOT_FINITE] * 3


@pytest.mark.parametrize("name", ["joint.output.weight", "joint.predictor.weight"])
def test_a_joint_network_that_is_not_finite_is_refused(name: str, tmp_path: Path) -> None:
    """Its blank would win at every frame, and all texts would be empty."""
    folder = damaged_model(tmp_path / "model", "tdt_demo", f"transducer.{name}")
    with pytest.raises(CheckpointError, match="its joint network makes numbers that are not finite: damaged weights"):
        Recognizer.build(read_checkpoint(folder), "cpu", "fp32")


def test_samples_out_of_range_from_the_command_line(tmp_path: Path) -> None:
    samples = soundfile.read(FILES[0], dtype="float32")[0]
    shutil.copy(FILES[1], tmp_path / "good.flac")
    samples[5000] = 3e38
    soundfile.write(tmp_path / "bad.wav", samples, 16_000, subtype="FLOAT")
    done = transcribe(tmp_path)
    assert done.returncode == 1
    found = {Path(row["audio_filepath"]).name: row for row in rows(done.stdout)}
    assert found["good.flac"]["text"]
    assert found["bad.wav"]["error"] == {"stage": "model", "type": "ModelOutputError", "message": NOT_FINITE.problem}
    assert json.dumps(found).count(NOT_FINITE.problem) == 1


def babbling(durations: tuple[int, ...]):
    """A transducer without a limit of labels a frame, for which blank never wins."""
    transducer = tiny_transducer(3, durations, None, -100.0)
    with torch.no_grad():
        transducer.joint.output.bias[transducer.blank_id + 1 :] += torch.tensor([50.0, 0, 0][: len(durations)])
    return transducer


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_labels_without_an_end_are_no_transcript(durations: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the neighbours: 4 frames have room for all labels that the guard lets them have, 5 do not."""
    monkeypatch.setattr("fastscribe.decode.greedy._MORE_LABELS", 90)
    monkeypatch.setattr("fastscribe.decode.greedy.LABELS_PER_FRAME_GUARD", 30)
    monkeypatch.setattr("fastscribe.decode.label_looping.LABELS_PER_FRAME_GUARD", 30)
    transducer = babbling(durations)
    for lengths in ([3, 9, 0, 4], [3], [5, 3]):
        frames = random_frames(lengths)
        found = label_looping.decode(transducer, frames)
        for row, length in enumerate(lengths):
            assert (found[row] == ENDLESS) == (30 * length > max_labels(length)), lengths
            assert len(found[row].token_ids) == (0 if found[row] == ENDLESS else 30 * length)
            assert found[row].token_ids == greedy(transducer, frames.frames_BTD[row, :length]).token_ids


def test_a_beam_without_an_end_is_no_transcript(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.decode.greedy._MORE_LABELS", 40)
    for name in ("beam", "label_looping"):
        monkeypatch.setattr(f"fastscribe.decode.{name}.LABELS_PER_FRAME_GUARD", 25)
    transducer, lengths = babbling(()), [2, 9, 0, 3]
    frames = random_frames(lengths)
    found = beam_decoded(transducer, frames, 2)
    expected = [beam_search(transducer, frames.frames_BTD[row, :length], 2) for row, length in enumerate(lengths)]
    assert [one == ENDLESS for one in found] == [one == ENDLESS for one in expected] == [False, True, False, True]
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert (
        beam_decoded(transducer, Frames(frames.frames_BTD[:1], frames.lengths_B[:1]), 2)[0].token_ids
        == found[0].token_ids
    )


def test_no_row_with_nemo_s_limit_is_too_long() -> None:
    assert all(10 * num_frames <= max_labels(num_frames) for num_frames in (0, 1, 500, 10**6))


def test_a_checkpoint_that_babbles_fails_every_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its config has no limit of labels a frame, and its blank never wins: the limit is what a recording's length allows."""
    monkeypatch.setattr("fastscribe.decode.greedy._MORE_LABELS", 40)
    sound = checkpoint(MODELS / "rnnt")
    joint = replace(sound.config.joint, max_symbols=None)  # type: ignore[type-var]
    weights = dict(sound.weights)
    name = "transducer.joint.output.bias"
    weights[name] = weights[name].clone()
    weights[name][sound.config.blank_id] = -1e6
    native.write(
        replace(sound, config=replace(sound.config, joint=joint), weights=weights), tmp_path / "m", torch.float32
    )
    found = list(Transcriber.load(tmp_path / "m", device="cpu", dtype="fp32").transcribe([FILES[0]]))
    assert [(result.stage, result.message) for result in found] == [("model", ENDLESS.problem)]  # type: ignore[union-attr]
