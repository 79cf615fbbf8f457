"""Audio that costs what speech costs: made up, deterministic, any amount of it, in memory or as files.

It has voiced syllables with formants, unvoiced ones, pauses and a noise floor, so that it compresses like speech and moves
a model's features about as fast; it says nothing. A pool is synthesised once and recordings are cut from it at random,
each with a level and a noise of its own. Waves are int16 at 16 kHz unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import repeat
from pathlib import Path

import numpy as np
import soundfile
import soxr

from fastscribe.types import Float32Array, Float64Array, Int16Array

RATE_HZ = 16000
_POOL_S = 60.0
_HARMONICS = 24
_NOISE_FLOOR = 0.004  # of full scale, about -48 dB
# The Open ASR Leaderboard's English sets: mean 7.85 s, and the longest of 128 about four times that.
_MEAN_S, _SIGMA, _MIN_S, _MAX_S = 7.85, 0.7, 1.0, 35.0


def leaderboard_lengths_s(count: int, seed: int) -> Float64Array:
    """Lognormal lengths, clipped, then scaled to the leaderboard's mean."""
    normal = np.random.default_rng(seed).standard_normal(count)
    lengths_s = np.clip(np.exp(_SIGMA * normal) * _MEAN_S * np.exp(-(_SIGMA**2) / 2), _MIN_S, _MAX_S)
    scaled_s: Float64Array = lengths_s * (_MEAN_S / lengths_s.mean())
    return scaled_s


def waves(lengths_s: Sequence[float] | Float64Array, seed: int) -> list[Int16Array]:
    """One int16 wave a length, no two alike; the same seed makes the same waves."""
    pool, noise = _pool(), _noise()
    rng = np.random.default_rng(seed)
    return [_cut(pool, noise, round(float(length_s) * RATE_HZ), rng) for length_s in lengths_s]


def _cut(pool: Float32Array, noise: Float32Array, num_samples: int, rng: np.random.Generator) -> Int16Array:
    speech = _from(pool, int(rng.integers(len(pool))), num_samples)
    hiss = _from(noise, int(rng.integers(len(noise))), num_samples)
    mixed: Float32Array = speech * np.float32(rng.uniform(4000, 16000)) + hiss * np.float32(rng.uniform(20, 200))
    return mixed.astype(np.int16)


def _from(pool: Float32Array, start: int, num_samples: int) -> Float32Array:
    """A stretch of the pool, which goes round."""
    repeats = (start + num_samples) // len(pool) + 1
    return (np.tile(pool, repeats) if repeats > 1 else pool)[start : start + num_samples]


@cache
def _noise() -> Float32Array:
    return np.random.default_rng(1).standard_normal(int(20 * RATE_HZ) + 7, dtype=np.float32)


@cache
def _pool() -> Float32Array:
    """float32 in about [-1, 1]."""
    rng = np.random.default_rng(0)
    parts: list[Float32Array] = []
    num_samples = 0
    while num_samples < _POOL_S * RATE_HZ:
        parts.append(_syllable(rng))
        num_samples += len(parts[-1])
    return np.concatenate(parts)


def _syllable(rng: np.random.Generator) -> Float32Array:
    """A tenth to a third of a second: voiced, unvoiced or a pause."""
    time_S = np.arange(int(rng.uniform(0.08, 0.32) * RATE_HZ)) / RATE_HZ
    kind = rng.random()
    floor = rng.standard_normal(len(time_S)) * _NOISE_FLOOR
    envelope = np.sin(np.pi * np.arange(len(time_S)) / len(time_S)) ** 0.5
    if kind < 0.15:
        return floor.astype(np.float32)
    if kind < 0.35:
        hiss = np.diff(rng.standard_normal(len(time_S) + 1))  # more treble than bass
        return np.asarray(0.08 * rng.uniform(0.3, 1.0) * envelope * hiss + floor, np.float32)
    pitch_hz = rng.uniform(90, 230) * (1 + 0.15 * rng.uniform(-1, 1) * np.linspace(-1, 1, len(time_S)))
    phase_S = 2 * np.pi * np.cumsum(pitch_hz) / RATE_HZ
    formants_hz = rng.uniform((250, 800, 1800), (850, 2300, 3400))
    harmonics = np.arange(1, _HARMONICS + 1)
    distance = (harmonics[:, None] * pitch_hz.mean() - formants_hz) / (90, 140, 220)
    gains = (np.exp(-0.5 * distance**2) * (1.0, 0.6, 0.3)).sum(1) + 0.02
    voiced: Float64Array = (gains[:, None] * np.sin(harmonics[:, None] * phase_S)).sum(0)
    return (voiced * envelope * rng.uniform(0.2, 1.0) / float(gains.sum()) + floor).astype(np.float32)


def write_files(
    folder: Path, waves: Sequence[Int16Array], extension: str, threads: int, rate_hz: int = RATE_HZ, channels: int = 1
) -> list[Path]:
    """Sixteen-bit files (or MP3) 00000.flac, 00001.flac .. in `folder`; other rates and two channels are made from the wave."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05d}.{extension}" for number in range(len(waves))]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_write, paths, waves, repeat(rate_hz), repeat(channels)))
    return paths


def _write(path: Path, wave: Int16Array, rate_hz: int, channels: int) -> None:
    if rate_hz != RATE_HZ:
        wave = soxr.resample(wave, RATE_HZ, rate_hz)
    if channels == 2:  # not quite the same on both sides, or a codec would store one
        wave = np.stack([wave, wave // 2 + np.roll(wave, 31) // 4], axis=1)
    soundfile.write(path, wave, rate_hz, subtype=None if path.suffix == ".mp3" else "PCM_16")
