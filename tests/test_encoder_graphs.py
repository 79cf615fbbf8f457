"""The bookkeeping of captured shapes, with a capture that only remembers what to call again."""

from __future__ import annotations

import pytest
import torch

from fastscribe.graph_capture import GraphsUnavailable
from fastscribe.model import encoder_graphs
from fastscribe.model.encoder_graphs import EncoderGraphs
from fastscribe.types import Features
from tests.conftest import MODELS, recognizer


class Recorder:
    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def capture(self, work):
        self.captured += 1
        with torch.inference_mode():
            work()
        found = next(cell.cell_contents for cell in work.__closure__ if isinstance(cell.cell_contents, list))
        first = found[0]  # what a graph writes into is what it wrote into at capture

        def replay() -> None:
            self.replayed += 1
            work()
            first.frames_BTD.copy_(found[0].frames_BTD)
            first.lengths_B.copy_(found[0].lengths_B)

        return replay


def never(reason: GraphsUnavailable) -> None:
    raise AssertionError(reason)


def features(encoder, lengths: list[int], seed: int = 0) -> Features:
    generator = torch.Generator().manual_seed(seed)
    lengths_B = torch.tensor(lengths)
    mel_BMT = torch.randn(len(lengths), encoder.config.num_mels, max(lengths), generator=generator)
    mel_BMT.masked_fill_(torch.arange(max(lengths)) >= lengths_B[:, None, None], 0.0)
    return Features(mel_BMT, lengths_B)


@pytest.fixture
def encoder():
    return recognizer(MODELS / "rnnt").model.encoder


@torch.inference_mode()
def test_replays_equal_the_encoder_whatever_ran_before(encoder) -> None:
    recorder = Recorder()
    graphs = EncoderGraphs(encoder, recorder.capture, never)
    batches = [[200, 130, 1], [210, 9], [190, 190, 64], [64], [203, 202, 201, 5], [61]]
    for seed, lengths in enumerate(batches * 2):
        given = features(encoder, lengths, seed)
        expected, found = encoder(given), graphs(given)
        assert found.lengths_B.tolist() == expected.lengths_B.tolist()
        for row, length in enumerate(expected.lengths_B.tolist()):
            torch.testing.assert_close(
                found.frames_BTD[row, :length], expected.frames_BTD[row, :length], atol=2e-5, rtol=2e-4
            )
    assert (recorder.captured, recorder.replayed) == (4, 8)


@torch.inference_mode()
def test_results_are_not_overwritten_by_the_next_batch(encoder) -> None:
    graphs = EncoderGraphs(encoder, Recorder().capture, never)
    graphs(features(encoder, [100]))
    first = graphs(features(encoder, [100], seed=1))
    kept = first.frames_BTD.clone()
    graphs(features(encoder, [100], seed=2))
    assert torch.equal(first.frames_BTD, kept)


@torch.inference_mode()
def test_large_batches_are_left_alone_and_old_buckets_go(encoder, monkeypatch) -> None:
    monkeypatch.setattr(encoder_graphs, "_KEPT", 2)
    monkeypatch.setattr(encoder_graphs, "_MOST_FRAMES", 64)
    recorder = Recorder()
    graphs = EncoderGraphs(encoder, recorder.capture, never)
    for _ in range(3):
        graphs(features(encoder, [520, 520]))
    assert recorder.captured == 0
    for length in (64, 128, 192) * 2:
        for _ in range(2):
            graphs(features(encoder, [length]))
    assert len(graphs._captured) == 2
    assert recorder.captured == 3 + 3  # each had gone again when its turn came


@torch.inference_mode()
def test_a_capture_that_fails_is_said_once_and_changes_nothing_else(encoder) -> None:
    reasons: list[str] = []

    def fails(work):
        raise GraphsUnavailable("no")

    graphs = EncoderGraphs(encoder, fails, lambda reason: reasons.append(str(reason)))
    given = features(encoder, [100, 30])
    expected = encoder(given).frames_BTD
    for _ in range(4):
        assert torch.equal(graphs(given).frames_BTD, expected)
    assert reasons == ["no"]
