"""Rows that fail because values are not finite or labels never end. Their neighbours do not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import Options
from fastscribe.decode import label_looping
from fastscribe.decode.decoder import ENDLESS, NOT_FINITE, checked_frames, max_labels, read_checked, submit_checked
from fastscribe.decode.greedy import greedy
from fastscribe.errors import CheckpointError, ModelOutputError
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import Features, Frames, Hypothesis
from tests.conftest import AUDIO, MODELS, checkpoint, waveform
from tests.decode.test_beam import decoded as beam_decoded
from tests.decode.test_label_looping import NoHostSync, random_frames, tiny_transducer
from tests.helpers.beam_search import beam_search
from tests.helpers.collate import batch_of

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = sorted(AUDIO.glob("0[1-3]_*.flac"))
KINDS = [
    ("tdt_demo", "fp32", Options()),
    ("tdt_demo", "fp32", Options(beam=2)),
    ("rnnt", "bf16", Options()),
    ("ctc", "fp32", Options()),
    ("hybrid", "bf16", Options(decoder="ctc")),
    ("canary", "bf16", Options()),
    ("quartznet", "fp32", Options()),
]


def speech(path: Path, num_samples: int) -> np.ndarray:
    return waveform(path)[:num_samples].astype(np.float32) / 32768


@pytest.mark.parametrize(("name", "dtype", "options"), KINDS)
def test_nan_row_fails_alone(name: str, dtype: str, options: Options) -> None:
    recognizer = Recognizer.build(checkpoint(MODELS / name), "cpu", dtype, options, say=lambda line: None)
    waves = [speech(path, size) for path, size in zip(FILES, (40_000, 48_000, 45_000), strict=True)]
    expected = recognizer.transcribe(batch_of(waves))
    assert all(hypothesis.token_ids and not hypothesis.problem for hypothesis in expected)
    for row in (0, 1):  # the shorter one has padding that the model also sees
        damaged = [wave.copy() for wave in waves]
        damaged[row][[9000, 9100]] = 3e38, -3e38
        found = recognizer.transcribe(batch_of(damaged))
        assert found == [*expected[:row], NOT_FINITE, *expected[row + 1 :]]


def test_engine_separates_nan_rows() -> None:
    recognizer = Recognizer.build(checkpoint(MODELS / "ctc"), "cpu", "fp32")
    waves = [np.full(4000 + row, value, np.float32) for row, value in enumerate((0.1, 3e38, 3e38, 0.1, 3e38))]
    outcomes = list(Engine(recognizer).stream([batch_of(waves)]))
    rows = [tuple(one.num_samples - 4000 for one in found.utterances) for found, _ in outcomes]
    assert rows == [(0,), (1, 2), (3,), (4,)]
    for numbers, (_, outcome) in zip(rows, outcomes, strict=True):
        if numbers in ((1, 2), (4,)):
            assert isinstance(outcome, ModelOutputError) and str(outcome) == NOT_FINITE.problem
        else:
            assert isinstance(outcome, list) and not outcome[0].problem


@pytest.mark.parametrize("where", ["mel", "frames"])
def test_padding_is_not_checked(where: str) -> None:
    """Frames beyond a row's length may have any value. Features are zero there."""
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


def test_check_does_not_sync() -> None:
    class Decoder:
        def submit(self, frames: Frames) -> torch.Tensor:
            return frames.lengths_B.int()

    features = Features(torch.zeros(2, 4, 16), torch.tensor([16, 8]))
    frames = Frames(torch.zeros(2, 2, 5), torch.tensor([2, 1]))
    with NoHostSync() as seen:
        packed = submit_checked(Decoder(), checked_frames(frames, features))  # type: ignore[arg-type]
    assert packed.tolist() == [1, 1, 2, 1]
    assert len(seen.names) <= 16


@pytest.mark.parametrize("has_flags", [True, False])
def test_columns_equal_lists(has_flags: bool) -> None:
    """Rows of columns are checked as those of lists are, and stay columns."""
    inf, nan = float("inf"), float("nan")
    counts_B = np.array([2, 0, 1, 0, 3, 2, 0, 0], np.int32)
    ids_N, logprobs_N = np.arange(8, dtype=np.int32), np.array([-1, -2, -3, nan, -3e38, -3e38, inf, -inf], np.float32)
    columns = HypothesisColumns(counts_B, ids_N, ids_N, ids_N, logprobs_N, {3: ENDLESS.problem, 6: ENDLESS.problem})
    flags_B = torch.tensor([1, 1, 0, 1, 1, 1, 0, 0]) if has_flags else None

    class Decoder:
        def __init__(self, hypotheses: Sequence[Hypothesis]) -> None:
            self.hypotheses = hypotheses

        def read(self, packed: np.ndarray, frames: Frames) -> Sequence[Hypothesis]:
            assert packed.tolist() == [7]
            return self.hypotheses

    frames = Frames(torch.zeros(8, 2, 5), torch.ones(8), is_finite_B=flags_B)
    packed = np.array([*(flags_B.tolist() if flags_B is not None else ()), 7], np.int32)
    found, expected = (read_checked(Decoder(one), packed, frames) for one in (columns, list(columns)))
    assert isinstance(found, HypothesisColumns) and isinstance(expected, list)
    assert list(found) == expected
    bad = [2, 4, 5, 6, 7] if has_flags else [4, 5]
    assert [row for row in range(8) if found.problems.get(row) == NOT_FINITE.problem] == bad
    assert columns.problems == {3: ENDLESS.problem, 6: ENDLESS.problem}


def damaged_model(folder: Path, tensor_name: str) -> Path:
    """Write the model with one tensor set to +-1e38."""
    sound = checkpoint(MODELS / "tdt_demo")
    weights = {key: torch.sign(t) * 1e38 if key == tensor_name else t for key, t in sound.weights.items()}
    assert weights.keys() == sound.weights.keys() and tensor_name in weights
    native_writer.write(replace(sound, weights=weights), folder, torch.float32)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "encoder.subsampling.out.weight",
        "encoder.layers.0.feed_forward1.linear2.weight",
        "encoder.layers.1.norm_out.weight",
    ],
)
def test_huge_weights_fail(name: str, tmp_path: Path) -> None:
    recognizer = Recognizer.build(read_checkpoint(damaged_model(tmp_path / "model", name)), "cpu", "bf16")
    assert recognizer.transcribe(batch_of([speech(path, 16_000) for path in FILES])) == [NOT_FINITE] * 3


@pytest.mark.parametrize("name", ["joint.output.weight", "joint.predictor.weight"])
def test_infinite_joint_refused(name: str, tmp_path: Path) -> None:
    """Blank would win at every frame, and every text would be empty."""
    folder = damaged_model(tmp_path / "model", f"transducer.{name}")
    with pytest.raises(CheckpointError, match="its joint network makes numbers that are not finite: damaged weights"):
        Recognizer.build(read_checkpoint(folder), "cpu", "fp32")


def endless_transducer(durations: tuple[int, ...]):
    """Make a transducer without max_symbols for which blank never wins."""
    transducer = tiny_transducer(3, durations, None, -100.0)
    with torch.no_grad():
        transducer.joint.output.bias[transducer.blank_id + 1 :] += torch.tensor([50.0, 0, 0][: len(durations)])
    return transducer


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_endless_labels(durations: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 4 frames stay below max_labels with LABELS_PER_FRAME_GUARD labels each; 5 frames exceed it."""
    monkeypatch.setattr("fastscribe.decode.decoder._MORE_LABELS", 90)
    monkeypatch.setattr("fastscribe.decode.greedy.LABELS_PER_FRAME_GUARD", 30)
    monkeypatch.setattr("fastscribe.decode.label_looping.LABELS_PER_FRAME_GUARD", 30)
    transducer = endless_transducer(durations)
    for lengths in ([3, 9, 0, 4], [3], [5, 3]):
        frames = random_frames(lengths)
        found = label_looping.decode(transducer, frames)
        for row, length in enumerate(lengths):
            assert (found[row] == ENDLESS) == (30 * length > max_labels(length)), lengths
            assert len(found[row].token_ids) == (0 if found[row] == ENDLESS else 30 * length)
            assert found[row].token_ids == greedy(transducer, frames.frames_BTD[row, :length]).token_ids


def test_endless_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.decode.decoder._MORE_LABELS", 40)
    for name in ("tests.helpers.beam_search", "fastscribe.decode.label_looping"):
        monkeypatch.setattr(f"{name}.LABELS_PER_FRAME_GUARD", 25)
    transducer, lengths = endless_transducer(()), [2, 9, 0, 3]
    frames = random_frames(lengths)
    found = beam_decoded(transducer, frames, 2)
    expected = [beam_search(transducer, frames.frames_BTD[row, :length], 2) for row, length in enumerate(lengths)]
    assert [one == ENDLESS for one in found] == [one == ENDLESS for one in expected] == [False, True, False, True]
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert (
        beam_decoded(transducer, Frames(frames.frames_BTD[:1], frames.lengths_B[:1]), 2)[0].token_ids
        == found[0].token_ids
    )


def test_max_labels_allows_nemo_limit() -> None:
    assert all(10 * num_frames <= max_labels(num_frames) for num_frames in (0, 1, 500, 10**6))
