"""The front end against a numpy reference, at lengths around frame boundaries."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fastscribe.families.blocks import features
from fastscribe.families.blocks.features import LogMel, mel_filters
from tests.conftest import MODELS, checkpoint

CONFIG = checkpoint(MODELS / "rnnt").config.features


def slow_log_mel(samples: np.ndarray, config) -> np.ndarray:
    """Reference: one recording, frame by frame, in float64."""
    emphasised = np.append(samples[0], samples[1:] - config.preemphasis * samples[:-1])
    padded = np.pad(emphasised, config.n_fft // 2)
    window = np.pad(np.hanning(config.win_length), (config.n_fft - config.win_length) // 2)
    frames = []
    for t in range(len(samples) // config.hop_length):
        piece = padded[t * config.hop_length : t * config.hop_length + config.n_fft] * window
        frames.append(np.log(mel_filters(config) @ np.abs(np.fft.rfft(piece)) ** 2 + config.log_guard_value))
    mel = np.array(frames).T
    if config.normalize == "none":
        return mel
    axis = 1 if config.normalize == "per_feature" else None
    mean = mel.mean(axis=axis, keepdims=True)
    deviation = mel.std(axis=axis, ddof=1, keepdims=True) if mel.shape[1] > 1 else 0.0
    return (mel - mean) / (deviation + 1e-5)


@pytest.mark.parametrize("normalize", ["per_feature", "all_features", "none"])
def test_batch_equals_reference(normalize: str) -> None:
    config = dataclasses.replace(CONFIG, normalize=normalize)
    random = np.random.default_rng(0)
    lengths = [8000, 4801, 4800, 4799, 321, 320]
    samples = np.zeros((len(lengths), max(lengths)), np.float32)
    for row, length in zip(samples, lengths, strict=True):
        row[:length] = 0.1 * random.standard_normal(length)
    found = LogMel(config)(torch.from_numpy(samples), torch.tensor(lengths))
    assert found.lengths_B.tolist() == [length // 160 for length in lengths]
    for row, length in enumerate(lengths):
        expected = slow_log_mel(samples[row, :length].astype(float), config)
        ours = found.mel_BMT[row].numpy()
        np.testing.assert_allclose(ours[:, : length // 160], expected, atol=2e-3)
        assert not ours[:, length // 160 :].any()


def test_pieces_of_long_recordings_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    samples_BS, lengths_B = noise([16_000, 15_999, 8_000, 159])
    gain_B1 = torch.tensor([[1.0], [0.5], [3.0], [1.0]])
    whole = LogMel(CONFIG)(samples_BS * gain_B1, lengths_B).mel_BMT
    for frames in (17, 50):
        monkeypatch.setattr(features, "_BYTES_PER_CHUNK", frames * CONFIG.n_fft * 8)
        assert torch.equal(LogMel(CONFIG)(samples_BS, lengths_B, gain_B1).mel_BMT, whole)


@pytest.mark.parametrize("length", [0, 1, 159, 160, 161, 320])
def test_frame_edges(length: int) -> None:
    found = LogMel(CONFIG)(torch.randn(1, length), torch.tensor([length]))
    assert found.lengths_B.tolist() == [length // 160]
    assert found.mel_BMT.shape == (1, CONFIG.num_mels, max(1, length // 160))
    assert torch.isfinite(found.mel_BMT).all()


def test_int16_scale() -> None:
    samples = torch.randint(-32768, 32767, (2, 1600), dtype=torch.int16)
    lengths = torch.tensor([1600, 900])
    whole = LogMel(CONFIG)
    a, b = whole(samples, lengths), whole(samples.float() / 32768, lengths)
    assert torch.equal(a.mel_BMT, b.mel_BMT)


# --- the code path of other devices, on a CPU -----------------------------------------------------------------------

SHORT_BLOCKS = 64  # frames, so that a few seconds make several


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_uses_stft", lambda samples: False)
    monkeypatch.setattr(features, "_FRAMES_PER_BLOCK", SHORT_BLOCKS)


def noise(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of noise, each 20 dB quieter than the last, with non-zero padding."""
    samples_BS = torch.randn(len(lengths), max(lengths), generator=torch.Generator().manual_seed(0))
    return samples_BS * 0.1 ** torch.arange(1, len(lengths) + 1)[:, None], torch.tensor(lengths)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalize": "all_features"},
        {"normalize": "none", "mag_power": 1.0, "window": "none"},
        {"log": False, "preemphasis": None},
        {"win_length": 511, "hop_length": 512},
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [[30_000], [8000, 4801, 4800], [321, 320, 319, 161, 160, 159, 1, 0], [1], [0]])
def test_blocks_equal_stft(monkeypatch: pytest.MonkeyPatch, in_blocks, lengths, changes) -> None:
    log_mel, given = LogMel(dataclasses.replace(CONFIG, **changes)), noise(lengths)
    ours = log_mel(*given)
    monkeypatch.setattr(features, "_uses_stft", lambda samples: True)
    expected = log_mel(*given)
    torch.testing.assert_close(ours.mel_BMT, expected.mel_BMT, atol=1e-4, rtol=1e-4)
    assert torch.equal(ours.lengths_B, expected.lengths_B)


@pytest.mark.parametrize(("batch", "seconds"), [(1, 0), (1, 36_000), (325, 8), (100_000, 1)])
def test_blocks_have_one_shape(monkeypatch: pytest.MonkeyPatch, batch: int, seconds: int) -> None:
    """Meta tensors have no values to wait for. One shape means one FFT plan and bounded memory."""
    shapes = set()
    monkeypatch.setattr(torch.fft, "rfft", lambda frames, real=torch.fft.rfft: shapes.add(frames.shape) or real(frames))
    samples_BS = torch.empty(batch, seconds * 16_000, dtype=torch.int16, device="meta")
    found = LogMel(CONFIG).to("meta")(samples_BS, torch.empty(batch, dtype=torch.int64, device="meta"))
    assert found.mel_BMT.shape == (batch, CONFIG.num_mels, max(1, seconds * 100))
    assert shapes == {(features._FRAMES_PER_BLOCK, CONFIG.n_fft)}
