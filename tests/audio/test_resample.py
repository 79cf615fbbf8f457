"""The device's resampler against soxr, analytic signals, and row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import soundfile
import soxr
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.audio import resample as resampling
from fastscribe.audio.probe import probe
from fastscribe.audio.read import context_samples, output_length, read
from fastscribe.audio.resample import fill
from fastscribe.types import AudioInfo, Batch, NativeRows, Source, Utterance
from tests.helpers.loading import load_batches

NEW = 16_000
RATES = [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000]


def resample(waves: list[np.ndarray], rate: int, sample_rate: int = NEW) -> list[np.ndarray]:
    """Waves [S] or [S, C], each a whole recording."""
    waves = [wave[:, None] if wave.ndim == 1 else wave for wave in waves]
    lengths = np.array([output_length(len(wave), rate, sample_rate) for wave in waves])
    begin, longest = context_samples(rate, sample_rate), max(map(len, waves))
    samples_BSC = np.zeros((len(waves), begin + longest + begin, waves[0].shape[1]), waves[0].dtype)
    for samples_SC, wave in zip(samples_BSC, waves, strict=True):
        samples_SC[begin : begin + len(wave)] = wave
    utterances = tuple(Utterance(AudioInfo("a", "a", rate, 1, len(wave)), 0, len(wave)) for wave in waves)
    native = NativeRows(rate, tuple(range(len(waves))), begin, samples_BSC)
    empty_BS = np.zeros((len(waves), lengths.max()), np.int16)
    filled_BS = fill(Batch(utterances, empty_BS, lengths, (native,)), torch.from_numpy(empty_BS), sample_rate).numpy()
    assert all(not row[length:].any() for row, length in zip(filled_BS, lengths, strict=True))
    return [row[:length] for row, length in zip(filled_BS, lengths, strict=True)]


def db(part: np.ndarray, whole: np.ndarray) -> float:
    return float(20 * np.log10(np.sqrt(np.mean(np.square(part))) / np.sqrt(np.mean(np.square(whole))) + 1e-12))


@pytest.mark.parametrize(
    ("rate", "new_rate"),
    [*((rate, NEW) for rate in RATES), *((44_100, new_rate) for new_rate in (8_000, 22_050, 48_000))],
)
def test_passband_sweep(rate, new_rate):
    """Compare with the new samples of the same function of time; soxr agrees with them to 78 dB."""
    seconds, highest = 2, 0.9 * min(rate, new_rate) / 2

    def sweep(num_samples: int, at_rate: int) -> np.ndarray:
        times = np.arange(num_samples) / at_rate
        return 0.5 * np.sin(math.pi * highest / seconds * times**2)

    ours = resample([sweep(seconds * rate, rate).astype(np.float32)], rate, new_rate)[0]
    true = sweep(len(ours), new_rate)
    inside = slice(new_rate // 10, -new_rate // 10)
    assert db(ours[inside] - true[inside], true[inside]) < -120


@pytest.mark.parametrize("rate", [rate for rate in RATES if rate > NEW])
def test_stopband_rejected(rate):
    times = np.arange(rate) / rate
    for hertz in (8_010, 9_000, 0.49 * rate):
        tone = np.sin(2 * math.pi * hertz * times).astype(np.float32)
        ours = resample([tone], rate)[0]
        assert db(ours[1600:-1600], tone) < -100


def test_no_drift():
    rate, seconds = 11_025, 300
    wave = np.zeros(seconds * rate, np.int16)
    wave[-rate:] = 1000 * np.sin(2 * math.pi * 440 * np.arange(rate) / rate)
    late, alone = resample([wave], rate)[0], resample([wave[-2 * rate :]], rate)[0]
    assert len(late) == seconds * NEW
    np.testing.assert_allclose(late[-NEW:], alone[-NEW:], atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    rate=st.sampled_from(RATES),
    channels=st.integers(1, 3),
    as_int16=st.booleans(),
)
def test_rows_are_independent(lengths, rate, channels, as_int16):
    rng = np.random.default_rng(0)
    waves = [rng.integers(-9999, 9999, (length, channels)).astype(np.int16) for length in lengths]
    waves = waves if as_int16 else [wave.astype(np.float32) / 32768 for wave in waves]
    together = resample(waves, rate)
    for wave, found in zip(waves, together, strict=True):
        scaled = wave.astype(np.float32) / (32768 if as_int16 else 1)
        [alone] = resample([scaled.mean(axis=1)], rate)
        np.testing.assert_allclose(found, alone, atol=1e-6)


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_chunks_change_nothing(monkeypatch, rate):
    rng = np.random.default_rng(0)
    waves = [rng.normal(0, 0.1, (length, 2)).astype(np.float32) for length in (1, 3 * rate, rate, 2 * rate, rate)]
    whole = resample(waves, rate)
    for bytes_at_once in (1, 200_000, 2_000_000):  # a block, a part of a row, and some rows at once
        monkeypatch.setattr(resampling, "_BYTES_AT_ONCE", bytes_at_once)
        for ours, expected in zip(resample(waves, rate), whole, strict=True):
            np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_batch_filled_on_device(tmp_path):
    """End to end: whole and cut files, native and plain, against the CPU path."""
    rng = np.random.default_rng(0)
    plan = []
    for number, (rate, channels, subtype) in enumerate(
        [(NEW, 1, None), (44_100, 2, None), (44_100, 1, None), (NEW, 2, None), (48_000, 2, "FLOAT"), (8_000, 1, None)]
    ):
        path = tmp_path / f"{number}.wav"
        soft = soxr.resample(rng.normal(0, 0.1, (8_000, channels)), 6_000, rate)  # nothing in the transition band
        soundfile.write(path, soft, rate, subtype=subtype)
        audio = probe(Source(str(path), str(path), path.name))
        cut = audio.num_samples // 3
        plan += [
            Utterance(audio, 0, audio.num_samples),
            Utterance(audio, 0, cut),
            Utterance(audio, cut, audio.num_samples - cut),
        ]
    [(batch, failures)] = load_batches([plan], sample_rate=NEW, threads=2, ahead=1, native=True)
    assert failures == () and len(batch.native) == 5
    filled_BS = fill(batch, torch.from_numpy(batch.samples_BS), NEW)
    assert filled_BS.dtype == torch.float32
    for row, utterance, length in zip(filled_BS.numpy(), plan, batch.lengths_B, strict=True):
        wave = read(utterance.audio, utterance.start, utterance.num_samples, sample_rate=NEW)
        wave = wave / 32768 if wave.dtype == np.int16 else wave
        assert len(wave) == length and not row[length:].any()
        assert db(row[: length - 1] - wave[:-1], wave) < -60


def test_select_renumbers_rows():
    native = NativeRows(8_000, (1, 3, 4), 0, np.arange(3)[:, None, None])
    picked = native.select([4, 0, 1])
    assert picked.rows == (0, 2) and picked.samples_BSC.ravel().tolist() == [2, 0]
    assert native.select(range(2, 4)).rows == (1,)
    together = native.select([0, 3, 4])
    assert together.rows == (1, 2) and np.shares_memory(together.samples_BSC, native.samples_BSC)
    assert native.select([0, 2]).rows == ()
