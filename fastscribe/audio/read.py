"""Samples of one stretch of one recording: mono, at the rate asked for.

Downmix and resampling are those of NeMo's AudioSegment (float32 mean over channels, then soxr HQ, length rounded up),
so that a whole recording gives the same samples. A stretch is resampled with some of its neighbourhood on either side,
which is cut off again: no seam is audible where a recording was split. Batches are put together in loader.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import soundfile
import soxr

from fastscribe.audio.formats import MISSING_TOLERANCE_S
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo

CONTEXT_S = 0.05  # several times the length of soxr's HQ filter


def read(audio: AudioInfo, start: int, num_samples: int, *, sample_rate: int, channel: int | None) -> np.ndarray:
    """One-dimensional samples from `start` (native samples, counted from audio.start) at `sample_rate`.

    int16 where the file holds 16-bit samples that need neither downmix nor resampling, else float32 in [-1, 1].
    `channel` counts from 0; None is the mean of all. Raises AudioError: no such channel, damaged, truncated, without
    samples, NaN or infinite samples.
    """
    assert start >= 0 and start + num_samples <= audio.num_samples
    before, after = _context(audio, start, num_samples, sample_rate)
    wanted = before + num_samples + after
    with _opened(audio, channel) as sound:
        _seek(sound, audio.start + start - before)
        keep_int16 = sound.subtype == "PCM_16" and audio.sample_rate == sample_rate
        mono = _read_mono(sound, wanted, channel, keep_int16)
    _check_length(audio, wanted, len(mono))
    _check_finite(audio, mono)
    got = min(num_samples, len(mono) - before)
    if got <= 0:
        raise AudioError(audio.path, "no samples could be read")
    return mono if audio.sample_rate == sample_rate else _resample(mono, audio.sample_rate, sample_rate, before, got)


def blocks(audio: AudioInfo, *, channel: int | None, block_samples: int) -> Iterator[np.ndarray]:
    """The recording at its own rate in float32 mono blocks of `block_samples`, the last shorter. Raises AudioError."""
    with _opened(audio, channel) as sound:
        _seek(sound, audio.start)
        left = audio.num_samples
        ended = False
        while left > 0 and not ended:
            mono = _read_mono(sound, min(block_samples, left), channel, keep_int16=False)
            _check_finite(audio, mono)
            ended = len(mono) < min(block_samples, left)
            left -= len(mono)
            if len(mono):
                yield mono
    _check_length(audio, audio.num_samples, audio.num_samples - left)


@contextmanager
def _opened(audio: AudioInfo, channel: int | None) -> Iterator[soundfile.SoundFile]:
    if channel is not None and not 0 <= channel < audio.channels:
        problem = f"channel {channel} was asked for, but it has {audio.channels} (counted from 0)"
        raise AudioError(audio.path, problem)
    try:
        with soundfile.SoundFile(audio.file or audio.path) as sound:
            if (sound.samplerate, sound.channels) != (audio.sample_rate, audio.channels):
                raise AudioError(audio.path, "changed since the run began")
            yield sound
    except soundfile.SoundFileError as error:
        reason = getattr(error, "error_string", str(error))
        raise AudioError(audio.path, f"cannot be decoded, damaged or truncated (libsndfile: {reason})") from error


def _seek(sound: soundfile.SoundFile, position: int) -> None:
    if position:  # a seek to where an MP3 decoder already is costs it the last bit of precision
        sound.seek(position)


def _read_mono(sound: soundfile.SoundFile, num_samples: int, channel: int | None, keep_int16: bool) -> np.ndarray:
    one_channel = channel is not None or sound.channels == 1
    dtype = "int16" if keep_int16 and one_channel else "float32"
    samples_SC = sound.read(num_samples, dtype=dtype, always_2d=True)
    if one_channel:
        return np.ascontiguousarray(samples_SC[:, channel or 0])
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and found right after
        return np.mean(samples_SC, axis=-1)


def _check_finite(audio: AudioInfo, mono: np.ndarray) -> None:
    if mono.dtype != np.int16 and not np.isfinite(mono).all():
        raise AudioError(audio.path, "holds NaN or infinite samples")


def _check_length(audio: AudioInfo, promised: int, got: int) -> None:
    """Short by a little is an estimated length (MP3); short by more is a damaged file."""
    if promised - got > MISSING_TOLERANCE_S * audio.sample_rate:
        expected_s, got_s = promised / audio.sample_rate, got / audio.sample_rate
        raise AudioError(audio.path, f"truncated or damaged: {expected_s:.2f} s expected, {got_s:.2f} s decoded")


def _context(audio: AudioInfo, start: int, num_samples: int, sample_rate: int) -> tuple[int, int]:
    """Native samples to read before and after a stretch. `before` is a whole number of samples at the new rate too."""
    if audio.sample_rate == sample_rate:
        return 0, 0
    step = audio.sample_rate // math.gcd(audio.sample_rate, sample_rate)
    margin = math.ceil(CONTEXT_S * audio.sample_rate / step) * step
    return min(margin, start // step * step), min(margin, audio.num_samples - start - num_samples)


def _resample(mono: np.ndarray, native_rate: int, sample_rate: int, before: int, num_samples: int) -> np.ndarray:
    resampled = soxr.resample(mono, native_rate, sample_rate, quality="HQ")
    begin = before * sample_rate // native_rate
    length = math.ceil(num_samples * (float(sample_rate) / native_rate))  # librosa's rule, rounding included
    piece = resampled[begin : begin + length]
    return np.pad(piece, (0, length - len(piece)))
