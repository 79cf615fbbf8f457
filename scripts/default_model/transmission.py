"""Pass recordings through what speech passes: a telephone, low-rate codecs, an overloaded input, a distant microphone."""

from __future__ import annotations

import io
from collections.abc import Callable

import av
import numpy as np
import soundfile
import soxr

from fastscribe.types import Float32Array

RATE = 16_000
Channel = Callable[[Float32Array, np.random.Generator], Float32Array]


def telephone(samples_S: Float32Array, rng: np.random.Generator) -> Float32Array:
    """8 kHz, 300 to 3,400 Hz, G.711 or GSM."""
    narrow_S = soxr.resample(samples_S, RATE, 8_000)
    hertz = np.fft.rfftfreq(len(narrow_S), 1 / 8_000)
    band = 1 / (1 + (300 / np.maximum(hertz, 1)) ** 8) / (1 + (hertz / 3_400) ** 16)
    narrow_S = np.fft.irfft(np.fft.rfft(narrow_S) * np.sqrt(band), len(narrow_S))
    subtype = rng.choice(("ULAW", "ALAW", "GSM610"))
    coded = io.BytesIO()
    soundfile.write(coded, np.clip(narrow_S, -1, 1), 8_000, format="WAV", subtype=subtype)
    coded.seek(0)
    return _fitted(soxr.resample(soundfile.read(coded, dtype="float32")[0], 8_000, RATE), len(samples_S))


def opus(samples_S: Float32Array, rng: np.random.Generator) -> Float32Array:
    """Opus at 12 to 32 kb/s, at the rates that the codec offers."""
    rate = int(rng.choice((8_000, 12_000, 16_000, 48_000)))
    pcm = np.clip(soxr.resample(samples_S, RATE, rate), -1, 1).astype(np.float32)
    coded = io.BytesIO()
    with av.open(coded, "w", format="ogg") as out:
        stream = out.add_stream("libopus", rate=rate, layout="mono")
        stream.bit_rate = int(rng.choice((12_000, 16_000, 24_000, 32_000)))
        frame = av.AudioFrame.from_ndarray((pcm * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.rate = rate
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    coded.seek(0)
    decoded_S, decoded_rate = soundfile.read(coded, dtype="float32")
    return _fitted(soxr.resample(decoded_S, decoded_rate, RATE), len(samples_S))


def overloaded(samples_S: Float32Array, rng: np.random.Generator) -> Float32Array:
    """Clipped: up to a tenth of the samples reach the limit."""
    limit = float(np.quantile(np.abs(samples_S), 1 - 10 ** rng.uniform(-3, -1)))
    return np.asarray(np.clip(samples_S, -limit, limit) * (rng.uniform(0.3, 0.99) / max(limit, 1e-4)), np.float32)


def room(samples_S: Float32Array, rng: np.random.Generator) -> Float32Array:
    """A few early reflections and a tail of noise that fades."""
    fades_s = rng.uniform(0.15, 0.8)
    count = int(fades_s * RATE)
    response = rng.standard_normal(count) * 10 ** (-3 * np.arange(count) / count) * 10 ** (-rng.uniform(2, 14) / 20)
    response *= 10 ** (-rng.uniform(0, 10) / 20) / max(float(np.linalg.norm(response)), 1e-9)
    response[0] = 1.0
    for _ in range(rng.integers(2, 7)):
        response[rng.integers(int(0.002 * RATE), int(0.06 * RATE))] += rng.uniform(-0.6, 0.6)
    size = len(samples_S) + count
    wet_S = np.fft.irfft(np.fft.rfft(samples_S, size) * np.fft.rfft(response, size), size)[: len(samples_S)]
    return np.asarray(wet_S / float(np.linalg.norm(response)), np.float32)


CHANNELS: dict[str, tuple[Channel, float]] = {  # with their chances
    "room": (room, 0.12),
    "overloaded": (overloaded, 0.06),
    "telephone": (telephone, 0.12),
    "opus": (opus, 0.12),
}


def disturbed(samples_S: Float32Array, rng: np.random.Generator) -> Float32Array:
    """Pass mono samples at 16 kHz through each of CHANNELS with its chance, in their order."""
    for channel, chance in CHANNELS.values():
        if rng.random() < chance and len(samples_S) > RATE // 10:
            samples_S = channel(samples_S, rng)
    return np.asarray(samples_S, np.float32)


def _fitted(samples_S: Float32Array, length: int) -> Float32Array:
    return np.pad(samples_S[:length], (0, max(0, length - len(samples_S))))
