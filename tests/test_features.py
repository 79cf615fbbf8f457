"""The front end against a slow definition in numpy, at the lengths where frames begin and end."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fastscribe.features import LogMel, mel_filters
from tests.conftest import MODELS, checkpoint

CONFIG = checkpoint(MODELS / "rnnt").config.features


def slow_log_mel(samples: np.ndarray, config) -> np.ndarray:
    """One recording, frame by frame, in float64."""
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
def test_a_batch_equals_the_slow_definition(normalize: str) -> None:
    config = dataclasses.replace(CONFIG, normalize=normalize)
    random = np.random.default_rng(0)
    lengths = [8000, 4801, 4800, 4799, 321, 320]
    samples = np.zeros((len(lengths), max(lengths)), np.float32)
    for row, length in zip(samples, lengths, strict=True):
        row[:length] = 0.1 * random.standard_normal(length)
    features = LogMel(config)(torch.from_numpy(samples), torch.tensor(lengths))
    assert features.lengths_B.tolist() == [length // 160 for length in lengths]
    for row, length in enumerate(lengths):
        expected = slow_log_mel(samples[row, :length].astype(float), config)
        ours = features.mel_BMT[row].numpy()
        np.testing.assert_allclose(ours[:, : length // 160], expected, atol=2e-3)
        assert not ours[:, length // 160 :].any()


@pytest.mark.parametrize("length", [1, 159, 160, 161, 320])
def test_edges_of_a_frame(length: int) -> None:
    features = LogMel(CONFIG)(torch.randn(1, length), torch.tensor([length]))
    assert features.lengths_B.tolist() == [length // 160]
    assert features.mel_BMT.shape == (1, CONFIG.num_mels, max(1, length // 160))
    assert torch.isfinite(features.mel_BMT).all()


def test_int16_is_float_divided_by_32768() -> None:
    samples = torch.randint(-32768, 32767, (2, 1600), dtype=torch.int16)
    lengths = torch.tensor([1600, 900])
    whole = LogMel(CONFIG)
    a, b = whole(samples, lengths), whole(samples.float() / 32768, lengths)
    assert torch.equal(a.mel_BMT, b.mel_BMT)


def test_filters_are_triangles_of_unit_area_on_the_slaney_scale() -> None:
    filters = mel_filters(CONFIG)
    hz_per_bin = CONFIG.sample_rate / CONFIG.n_fft
    assert filters.shape == (80, 257)
    assert (filters >= 0).all()
    np.testing.assert_allclose(filters[20:].sum(axis=1) * hz_per_bin, 1.0, atol=0.12)
    plain = mel_filters(dataclasses.replace(CONFIG, mel_norm=None))
    assert plain.max() <= 1.0
