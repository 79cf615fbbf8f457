"""Samples equal NeMo's, pieces join without seams, and a damaged file is never read as a short one."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from fastscribe.audio.mixing import downmix
from fastscribe.audio.probe import probe
from fastscribe.audio.read import blocks, read
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Source
from tests.audio.test_probe import patched

RATE = 16_000


def noise(num_samples: int, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, (num_samples, channels)).astype(np.float32)


def recording(path: Path, samples: np.ndarray, rate: int = RATE, offset_s: float | None = None, **options) -> AudioInfo:
    soundfile.write(path, samples, rate, **options)
    return probe(Source(str(path), str(path), path.name, offset_s=offset_s))


def whole(audio: AudioInfo, sample_rate: int = RATE, channel: int | None = None) -> np.ndarray:
    return read(replace(audio, channel=channel), 0, audio.num_samples, sample_rate=sample_rate)


def problem(audio: AudioInfo, **options) -> str:
    with pytest.raises(AudioError) as caught:
        whole(audio, **options)
    return caught.value.problem


def damaged(path: Path, keep: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


@pytest.mark.parametrize("extension", ["wav", "flac", "aiff"])
def test_int16_mono_unchanged(tmp_path, extension):
    audio = recording(tmp_path / f"a.{extension}", noise(1000), subtype="PCM_16")
    samples = whole(audio)
    assert samples.dtype == np.int16
    np.testing.assert_array_equal(samples, soundfile.read(audio.path, dtype="int16")[0])
    part = read(replace(audio, channel=0), 100, 7, sample_rate=RATE)
    np.testing.assert_array_equal(part, samples[100:107])


@pytest.mark.parametrize("subtype", ["PCM_24", "PCM_U8", "FLOAT", "DOUBLE", "ULAW"])
def test_other_types_are_float(tmp_path, subtype):
    audio = recording(tmp_path / "a.wav", noise(1000), subtype=subtype)
    np.testing.assert_array_equal(whole(audio), soundfile.read(audio.path, dtype="float32")[0])


def test_channels(tmp_path):
    audio = recording(tmp_path / "a.wav", noise(1000, channels=3))
    int16_SC, float_SC = (soundfile.read(audio.path, dtype=dtype)[0] for dtype in ("int16", "float32"))
    mean = whole(audio)
    assert mean.dtype == np.float32
    np.testing.assert_array_equal(mean, np.mean(float_SC, axis=-1))
    picked = whole(audio, channel=2)
    assert picked.dtype == np.int16 and picked.flags.c_contiguous
    np.testing.assert_array_equal(picked, int16_SC[:, 2])


@pytest.mark.parametrize("channels", [2, 3, 5, 6, 7, 8, 9, 16])
@pytest.mark.parametrize("num_samples", [0, 1, 1000])
def test_downmix_is_exact_mean(channels, num_samples):
    samples, mono = noise(num_samples, channels), np.empty(num_samples, np.float32)
    downmix(samples, mono)
    np.testing.assert_array_equal(mono, np.mean(samples, axis=-1))


def test_missing_channel_is_mixed(tmp_path):
    mixed = recording(tmp_path / "a.wav", noise(1000, channels=2))
    audio = probe(Source(mixed.path, mixed.path, "a", channel=2))
    assert (audio.channel, audio.missing_channel) == (None, 2)
    np.testing.assert_array_equal(whole(audio), whole(mixed))


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 44_099, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_whole_file_resampled(tmp_path, rate, channels):
    audio = recording(tmp_path / "a.wav", noise(rate // 3 + 7, channels), rate)
    mono = soundfile.read(audio.path, dtype="float32", always_2d=True)[0].mean(axis=-1)
    expected = soxr.resample(mono, rate, RATE, quality="HQ")
    length = math.ceil(len(mono) * (float(RATE) / rate))
    samples = whole(audio)
    assert samples.dtype == np.float32 and len(samples) == length
    shared = min(length, len(expected))
    np.testing.assert_array_equal(samples[:shared], expected[:shared])
    assert not samples[shared:].any()


@pytest.mark.parametrize("num_samples", [1, 2, 3, 10, 479, 480, 481])
def test_very_short_file_resampled(tmp_path, num_samples):
    audio = recording(tmp_path / "a.wav", noise(num_samples), 48_000)
    assert len(whole(audio)) == math.ceil(num_samples / 3)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_pieces_join_without_seam(tmp_path, rate):
    audio = recording(tmp_path / "a.flac", noise(2 * rate), rate)
    step = rate // math.gcd(rate, RATE)
    edges = [0, 3 * step, rate // 2 // step * step, rate // step * step, audio.num_samples]
    stretches = [read(audio, begin, end - begin, sample_rate=RATE) for begin, end in itertools.pairwise(edges)]
    np.testing.assert_allclose(np.concatenate(stretches), whole(audio), atol=2e-6)


def test_manifest_cut_resampled_alone(tmp_path):
    samples = noise(48_000)
    audio = recording(tmp_path / "a.wav", samples, 48_000, offset_s=0.5, subtype="FLOAT")
    expected = soxr.resample(samples[24_000:, 0], 48_000, RATE, quality="HQ")
    np.testing.assert_array_equal(whole(audio), expected)


@pytest.mark.parametrize("extension", ["mp3", "ogg"])
def test_seek_in_lossy_formats(tmp_path, extension):
    audio = recording(tmp_path / f"a.{extension}", noise(3 * RATE))
    part = read(audio, 17_001, 9_000, sample_rate=RATE)
    np.testing.assert_allclose(part, whole(audio)[17_001:26_001], atol=1e-5)


def test_last_sample_and_beyond(tmp_path):
    audio = recording(tmp_path / "a.wav", noise(RATE))
    assert len(read(audio, RATE - 1, 1, sample_rate=RATE)) == 1
    with pytest.raises(AudioError, match="no samples"):
        read(audio, RATE, 0, sample_rate=RATE)


@pytest.mark.parametrize(
    ("value", "channels"),
    [(np.nan, 1), (np.inf, 1), (-np.inf, 1), (np.nan, 2), (np.inf, 2), (3e38, 2)],  # the last: its mean overflows
)
def test_not_finite_samples(tmp_path, value, channels):
    samples = noise(RATE, channels)
    samples[5000] = value
    assert problem(recording(tmp_path / "a.wav", samples, subtype="FLOAT")) == "holds NaN or infinite samples"


@pytest.mark.parametrize("extension", ["flac", "mp3", "ogg", "aiff"])
def test_file_truncated_after_probe(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    audio = recording(path, noise(3 * RATE))
    damaged(path, keep=0.5)
    assert "truncated" in problem(audio)


def test_wav_shrunk_after_probe(tmp_path):
    audio = recording(tmp_path / "a.wav", noise(2 * RATE))
    damaged(tmp_path / "a.wav", keep=0.5)
    assert problem(audio).startswith("truncated or damaged: 2.00 s expected, 1.00 s decoded")
    with pytest.raises(AudioError, match=r"libsndfile|truncated"):
        read(audio, RATE + 8000, 8000, sample_rate=RATE)


def test_slightly_short_accepted(tmp_path):
    audio = recording(tmp_path / "a.wav", noise(2 * RATE))
    damaged(tmp_path / "a.wav", keep=0.96)
    assert 1.9 * RATE < len(whole(audio)) < 2 * RATE
    assert sum(map(len, blocks(audio, 1000))) == len(whole(audio))


def test_damaged_flac(tmp_path):
    audio = recording(tmp_path / "a.flac", noise(3 * RATE))
    patched(tmp_path / "a.flac", (20_000, bytes(400)))
    assert "damaged" in problem(audio)


def test_file_missing_or_changed(tmp_path):
    audio = recording(tmp_path / "a.wav", noise(RATE))
    recording(tmp_path / "a.wav", noise(RATE), 8_000)
    assert problem(audio) == "changed since the run began"
    (tmp_path / "a.wav").unlink()
    assert "cannot be decoded" in problem(audio)


@pytest.mark.parametrize("block_samples", [1, 999, 1000, 1001, 2500, 9999])
def test_blocks_cover_recording(tmp_path, block_samples):
    audio = recording(tmp_path / "a.wav", noise(2500, channels=2), 8_000, offset_s=500 / 8000)
    pieces = list(blocks(audio, block_samples))
    assert all(len(piece) == block_samples for piece in pieces[:-1])
    np.testing.assert_array_equal(np.concatenate(pieces), whole(audio, sample_rate=8_000))
    assert {piece.dtype for piece in pieces} == {np.dtype(np.float32)}


def test_blocks_of_bad_recording(tmp_path):
    samples = noise(RATE)
    samples[9000] = np.nan
    audio = recording(tmp_path / "a.wav", samples, subtype="FLOAT")
    with pytest.raises(AudioError, match="NaN"):
        list(blocks(audio, 1000))
    audio = recording(tmp_path / "b.wav", noise(RATE))
    damaged(tmp_path / "b.wav", keep=0.5)
    with pytest.raises(AudioError, match="truncated"):
        list(blocks(audio, 1000))
