"""Capture and replay of the encoder by shape.

Only tests marked `cuda` need a GPU. For the others a simulated CUDA device (tests/fakes/cuda.py) records graphs and replays
them on the CPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastscribe.config import Options
from fastscribe.cuda import encoder_graphs
from fastscribe.cuda.encoder_graphs import EncoderGraphs
from fastscribe.cuda.graph_capture import GraphsUnavailable
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline.model_building import encoder_of
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import Features
from tests.conftest import MODELS, checkpoint, recognizer
from tests.fakes.cuda import SimulatedCuda

DEVICE = torch.device("cuda", 0)


def never(reason: GraphsUnavailable) -> None:
    raise AssertionError(reason)


def features(encoder, lengths: list[int], seed: int = 0) -> Features:
    generator = torch.Generator().manual_seed(seed)
    lengths_B = torch.tensor(lengths)
    mel_BMT = torch.randn(len(lengths), encoder.config.num_mels, max(lengths), generator=generator)
    mel_BMT.masked_fill_(torch.arange(max(lengths)) >= lengths_B[:, None, None], 0.0)
    return Features(mel_BMT, lengths_B)


def test_a_failed_capture_is_reported(encoder: Any, simulated_cuda: SimulatedCuda) -> None:
    simulated_cuda.failures["capture_begin"] = [RuntimeError("CUDA error: operation not permitted")] * 9
    heard, model = RefusedPaths(lambda line: None), SimpleNamespace(encoder=encoder)
    graphs = encoder_of(model, DEVICE, Options(), heard)  # type: ignore[arg-type]
    given = features(encoder, [100])
    with torch.inference_mode():
        for _ in range(3):
            assert torch.equal(graphs(given).frames_BTD, encoder(given).frames_BTD)
    assert heard.reasons == {"graphs": "encoder: capture failed: CUDA error: operation not permitted"}


@pytest.fixture
def encoder():
    return recognizer(MODELS / "rnnt").model.encoder


@torch.inference_mode()
def test_replays_equal_encoder(encoder, simulated_cuda: SimulatedCuda) -> None:
    graphs = EncoderGraphs(encoder, DEVICE, never)
    batches = [[200, 130, 1], [210, 9], [190, 190, 64], [64], [203, 202, 201, 5], [61]]
    for seed, lengths in enumerate(batches * 2):
        given = features(encoder, lengths, seed)
        expected, found = encoder(given), graphs(given)
        assert found.lengths_B.tolist() == expected.lengths_B.tolist()
        for row, length in enumerate(expected.lengths_B.tolist()):
            torch.testing.assert_close(
                found.frames_BTD[row, :length], expected.frames_BTD[row, :length], atol=2e-5, rtol=2e-4
            )
    assert (len(simulated_cuda.captured), simulated_cuda.enqueued) == (4, 8)


@torch.inference_mode()
def test_results_not_overwritten(encoder, simulated_cuda: SimulatedCuda) -> None:
    graphs = EncoderGraphs(encoder, DEVICE, never)
    graphs(features(encoder, [100]))
    first = graphs(features(encoder, [100], seed=1))
    kept = first.frames_BTD.clone()
    graphs(features(encoder, [100], seed=2))
    assert torch.equal(first.frames_BTD, kept)


@torch.inference_mode()
def test_large_batches_and_limit(encoder, simulated_cuda: SimulatedCuda, monkeypatch) -> None:
    monkeypatch.setattr(encoder_graphs, "_MAX_GRAPHS", 2)
    monkeypatch.setattr(encoder_graphs, "_MAX_FRAMES", 64)
    graphs = EncoderGraphs(encoder, DEVICE, never)
    for _ in range(3):
        graphs(features(encoder, [520, 520]))
    assert not simulated_cuda.captured
    for num_captured, length in enumerate((64, 128, 192, 64, 128), start=1):
        for _ in range(2):
            graphs(features(encoder, [length]))
        assert len(simulated_cuda.captured) == num_captured
    assert len(simulated_cuda.live) == 1


@torch.inference_mode()
def test_failed_capture_reported_once(encoder, simulated_cuda: SimulatedCuda) -> None:
    reasons: list[str] = []
    graphs = EncoderGraphs(encoder, DEVICE, lambda reason: reasons.append(str(reason)))
    for _ in range(3):
        graphs(features(encoder, [200]))  # still running when the next is captured
    simulated_cuda.failures["instantiate"] = [RuntimeError("no")]
    given = features(encoder, [100, 30])
    expected = encoder(given).frames_BTD
    for _ in range(4):
        assert torch.equal(graphs(given).frames_BTD, expected)
    assert reasons == ["capture failed: no"]
    assert not simulated_cuda.live


@torch.inference_mode()
def test_out_of_memory_is_raised(encoder, simulated_cuda: SimulatedCuda) -> None:
    graphs = EncoderGraphs(encoder, DEVICE, never)
    given = features(encoder, [100, 30])
    graphs(given)
    simulated_cuda.failures["capture_begin"] = [torch.OutOfMemoryError("CUDA out of memory")] * 2
    with pytest.raises(torch.OutOfMemoryError):
        graphs(given)
    graphs(given)
    assert simulated_cuda.enqueued == 1


def test_graphs_freed_with_object(encoder, simulated_cuda: SimulatedCuda) -> None:
    graphs = EncoderGraphs(encoder, DEVICE, never)
    with torch.inference_mode():
        for _ in range(2):
            graphs(features(encoder, [64]))
    assert len(simulated_cuda.live) == 1
    del graphs
    assert not simulated_cuda.live


@pytest.mark.cuda
@torch.inference_mode()
def test_device_replays_equal_encoder(monkeypatch) -> None:
    monkeypatch.setattr(encoder_graphs, "_MAX_GRAPHS", 3)
    built = Recognizer.build(checkpoint(MODELS / "rnnt"), "cuda", "fp32", Options(cuda_graphs="full"), print)
    encoder = built.model.encoder
    for seed, length in enumerate((64, 128, 192, 64, 256, 320, 64, 128) * 2):
        given = features(encoder, [length, length // 2], seed)
        given = Features(given.mel_BMT.cuda(), given.lengths_B.cuda())
        expected = encoder(given)
        for _ in range(2):
            found = built.encoder(given)
            for row, num_frames in enumerate(expected.lengths_B.tolist()):
                torch.testing.assert_close(
                    found.frames_BTD[row, :num_frames], expected.frames_BTD[row, :num_frames], atol=1e-3, rtol=1e-2
                )
            torch.cuda.empty_cache()
