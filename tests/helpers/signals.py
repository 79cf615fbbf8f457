"""Sounds without speech that a recorder meets, made from their definitions: 16 kHz, float32, from a seed."""

from __future__ import annotations

import numpy as np

from fastscribe.types import Float32Array

RATE = 16_000
_DTMF = {"1": (697, 1209), "5": (770, 1336), "9": (852, 1477), "0": (941, 1336), "#": (941, 1477)}


def signals(seconds: float, seed: int = 0) -> dict[str, Float32Array]:
    """Return each kind of sound, `seconds` long, by its name."""
    rng = np.random.default_rng(seed)
    at_S = np.arange(round(seconds * RATE)) / RATE
    dial = _tones(at_S, 350, 440)
    keys = rng.choice(list(_DTMF), len(at_S))[(at_S / 0.2).astype(int)]
    dtmf = np.select([keys == key for key in _DTMF], [_tones(at_S, *pair) for pair in _DTMF.values()])
    made = {
        "dial tone": dial,
        "busy tone": _tones(at_S, 480, 620) * (at_S % 1.0 < 0.5),
        "fast busy tone": _tones(at_S, 480, 620) * (at_S % 0.5 < 0.25),
        "ringback": _tones(at_S, 440, 480) * (at_S % 6.0 < 2.0),
        "european ringback": _tones(at_S, 425) * (at_S % 5.0 < 1.0),
        "dtmf": dtmf * (at_S % 0.2 < 0.1),
        "slow dtmf": dtmf * (at_S % 0.2 < 0.15),
        "beeps": _tones(at_S, 1000) * (at_S % 1.5 < 0.3),
        "alarm": np.where(at_S % 1.0 < 0.5, _tones(at_S, 800), _tones(at_S, 1000)),
        "off-hook": _tones(at_S, 1400, 2060, 2450, 2600) * (at_S % 0.2 < 0.1),
        "mains hum": _tones(at_S, 50, 100, 150, 250),
        "brown noise": _noise(rng, len(at_S), 1.0),
        "pink noise": _noise(rng, len(at_S), 0.5),
        "white noise": _noise(rng, len(at_S), 0.0),
        "wavering noise": _noise(rng, len(at_S), 0.0) * (1.1 - np.cos(2 * np.pi * 3 * at_S)),
        "plucked chords": _plucked(rng, len(at_S)),
        "plucked melody": _plucked(rng, len(at_S), 0.5, (2.0,)),
        "drums": _drums(rng, len(at_S)),
        "typing": _typing(rng, len(at_S)),
    }
    level = np.float32(0.1)
    return {
        name: (level * sound / max(float(sound.std()), 1e-9)).clip(-1, 1).astype(np.float32)
        for name, sound in made.items()
    }


def _tones(at_S: np.ndarray, *hertz: float) -> np.ndarray:
    return np.sum([np.sin(2 * np.pi * one * at_S) for one in hertz], axis=0)


def _noise(rng: np.random.Generator, length: int, slope: float) -> np.ndarray:
    """Return noise whose amplitude falls with frequency to the power of `slope`."""
    hertz = np.maximum(np.fft.rfftfreq(length, 1 / RATE), 20.0)
    return np.fft.irfft(np.fft.rfft(rng.standard_normal(length)) / hertz**slope, length)


def _plucked(
    rng: np.random.Generator, length: int, every_s: float = 1.2, ratios: tuple[float, ...] = (1.0, 1.25, 1.5, 2.0)
) -> np.ndarray:
    """Return chords of plucked strings (Karplus and Strong, 1983)."""
    sound = np.zeros(length)
    for start in range(0, length, round(every_s * RATE)):
        root = 110 * 2 ** (rng.integers(0, 12) / 12)
        for ratio in ratios:
            period = round(RATE / (root * ratio))
            string, parts = rng.uniform(-1, 1, period), []
            for _ in range(-(-min(length - start, 2 * RATE) // period)):
                parts.append(string)
                string = 0.998 * (string + np.roll(string, -1)) / 2
            note = np.concatenate(parts)[: length - start]
            sound[start : start + len(note)] += note
    return sound


def _drums(rng: np.random.Generator, length: int, beat_s: float = 0.25) -> np.ndarray:
    """Return a bass drum, a snare and a cymbal in turns, a stroke every beat."""
    sound, at_S = np.zeros(length), np.arange(RATE // 2) / RATE
    bass = np.sin(2 * np.pi * (50 * at_S + 10 * (1 - np.exp(-30 * at_S)))) * np.exp(-12 * at_S)
    for number, start in enumerate(range(0, length, round(beat_s * RATE))):
        stroke = 0.25 * np.diff(rng.standard_normal(len(at_S) + 1)) * np.exp(-45 * at_S)  # the cymbal
        if number % 4 == 0:
            stroke += bass
        elif number % 4 == 2:
            stroke += 0.6 * rng.standard_normal(len(at_S)) * np.exp(-18 * at_S)
        sound[start : start + len(stroke)] += stroke[: length - start]
    return sound


def _typing(rng: np.random.Generator, length: int) -> np.ndarray:
    """Return clicks of keys at random times, about six a second, over faint noise."""
    sound = 0.003 * rng.standard_normal(length)
    at = 0
    while (at := at + int(RATE * rng.gamma(4.0, 0.04))) < length:
        count = min(int(RATE * rng.uniform(0.01, 0.03)), length - at)
        decay = np.exp(-np.arange(count) / (0.004 * RATE))
        sound[at : at + count] += rng.uniform(0.3, 1.0) * decay * rng.standard_normal(count)
    return sound
