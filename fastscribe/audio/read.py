"""Samples of one stretch of one recording, read into memory that the caller gives: mono at the rate asked for, or native.

Downmix and resampling are those of NeMo's AudioSegment (float32 mean over channels, then soxr HQ, length rounded up),
so that a whole recording gives the same samples. A stretch is resampled with some of its neighbourhood on either side
(rates.py), which is cut off again. Batches are put together in pipeline/loader.py; audio/resample.py does downmix and
resampling on a GPU.

Dimensions: S samples, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import soundfile
import soxr

from fastscribe.audio.formats import MISSING_TOLERANCE_S
from fastscribe.audio.rates import context, output_length
from fastscribe.audio.sound_file_cache import MIN_CACHED_S, cached_open
from fastscribe.errors import AudioError
from fastscribe.types import AnyArray, AudioInfo, Float32Array, SampleArray, Utterance

_CHANNELS_ADDED_IN_PAIRS = 8  # from here on numpy adds them up in another order


def sample_type(audio: AudioInfo, sample_rate: int, channel: int | None) -> np.dtype[Any]:
    """int16 where the file holds 16-bit samples that need neither downmix nor resampling, else float32."""
    as_it_is = audio.sample_rate == sample_rate and (audio.channels == 1 or channel is not None)
    return np.dtype(np.int16 if audio.is_int16 and as_it_is else np.float32)


def read(audio: AudioInfo, start: int, num_samples: int, *, sample_rate: int, channel: int | None) -> SampleArray:
    """read_into() with memory of its own: one-dimensional, of sample_type()."""
    length = output_length(num_samples, audio.sample_rate, sample_rate)
    row_S = np.empty(length, sample_type(audio, sample_rate, channel))
    return row_S[: read_into(row_S, Utterance(audio, start, num_samples), sample_rate, channel)]


def read_into(row_S: SampleArray, utterance: Utterance, sample_rate: int, channel: int | None) -> int:
    """Fills the front of row_S with the stretch at `sample_rate` and returns the number of samples.

    row_S is float32, then in [-1, 1], or int16 where sample_type() says so. `channel` counts from 0; None is the mean of
    all. Raises AudioError: no such channel, damaged, truncated, without samples, NaN or infinite samples.
    """
    audio = utterance.audio
    assert utterance.start >= 0 and utterance.start + utterance.num_samples <= audio.num_samples
    before, after = context(audio, utterance.start, utterance.num_samples, sample_rate)
    wanted = before + utterance.num_samples + after
    at_the_rate = audio.sample_rate == sample_rate
    mono_S = row_S[:wanted] if at_the_rate else np.empty(wanted, np.float32)
    with _opened(audio, channel, position := audio.start + utterance.start - before) as sound:
        _check_type(audio, sound, row_S.dtype)
        _seek(sound, position)
        got = _read_mono(sound, mono_S, channel)
    kept = _check(audio, mono_S[:got], wanted, before, utterance.num_samples)
    if at_the_rate:
        return kept
    length = output_length(kept, audio.sample_rate, sample_rate)
    resampled_S = soxr.resample(mono_S[:got], audio.sample_rate, sample_rate, quality="HQ")
    begin = before * sample_rate // audio.sample_rate
    piece_S = resampled_S[begin : begin + length]
    row_S[: len(piece_S)] = piece_S
    row_S[len(piece_S) : length] = 0
    return length


def read_native_into(
    rows_SC: SampleArray, begin: int, utterance: Utterance, sample_rate: int, channel: int | None
) -> int:
    """Fills rows_SC with the stretch at its own rate from `begin` on, its neighbourhood around that and zeros elsewhere.

    Returns the number of samples at `sample_rate` that it stands for. rows_SC has all channels, or one if a `channel` is
    asked for; it is float32, or int16 where the file is. Raises what read_into() raises.
    """
    audio = utterance.audio
    before, after = context(audio, utterance.start, utterance.num_samples, sample_rate)
    first, wanted = begin - before, before + utterance.num_samples + after
    stretch_SC = rows_SC[first : first + wanted]
    with _opened(audio, channel, position := audio.start + utterance.start - before) as sound:
        _check_type(audio, sound, rows_SC.dtype)
        _seek(sound, position)
        got = _read_channels(sound, stretch_SC, channel)
    kept = _check(audio, stretch_SC[:got], wanted, before, utterance.num_samples)
    rows_SC[:first] = 0
    rows_SC[first + got :] = 0
    return output_length(kept, audio.sample_rate, sample_rate)


def blocks(audio: AudioInfo, *, channel: int | None, block_samples: int) -> Iterator[Float32Array]:
    """The recording at its own rate in float32 mono blocks of `block_samples`, the last shorter. Raises AudioError."""
    with _opened(audio, channel, audio.start) as sound:
        _seek(sound, audio.start)
        left = audio.num_samples
        ended = False
        while left > 0 and not ended:
            block_S = np.empty(min(block_samples, left), np.float32)
            got = _read_mono(sound, block_S, channel)
            _check_finite(audio, block_S[:got])
            ended = got < len(block_S)
            left -= got
            if got:
                yield block_S[:got]
    _check_length(audio, audio.num_samples, audio.num_samples - left)


@contextmanager
def _opened(audio: AudioInfo, channel: int | None, position: int) -> Iterator[soundfile.SoundFile]:
    if channel is not None and not 0 <= channel < audio.channels:
        problem = f"channel {channel} was asked for, but it has {audio.channels} (counted from 0)"
        raise AudioError(audio.path, problem)
    try:
        with cached_open(audio.file or audio.path, use_cache=position > MIN_CACHED_S * audio.sample_rate) as sound:
            if (sound.samplerate, sound.channels) != (audio.sample_rate, audio.channels):
                raise AudioError(audio.path, "changed since the run began")
            yield sound
    except soundfile.SoundFileError as error:
        reason = getattr(error, "error_string", str(error))
        raise AudioError(audio.path, f"cannot be decoded, damaged or truncated (libsndfile: {reason})") from error


def _check_type(audio: AudioInfo, sound: soundfile.SoundFile, wanted: np.dtype[Any]) -> None:
    if wanted == np.int16 and sound.subtype != "PCM_16":
        raise AudioError(audio.path, "changed since the run began")


def _seek(sound: soundfile.SoundFile, position: int) -> None:
    if position:  # a seek to where an MP3 decoder already is costs it the last bit of precision
        sound.seek(position)


def _read_mono(sound: soundfile.SoundFile, mono_S: SampleArray, channel: int | None) -> int:
    """Fills mono_S from its front as far as the file goes; returns how far."""
    if channel is not None or sound.channels == 1:
        return _read_channels(sound, mono_S[:, None], channel)
    samples_SC = np.empty((len(mono_S), sound.channels), np.float32)
    got = _read_channels(sound, samples_SC, None)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and found right after
        downmix(samples_SC[:got], mono_S[:got])
    return got


def downmix(samples_SC: Float32Array, mono_S: AnyArray) -> None:
    """np.mean over the channels to the last bit, thirty times as fast for two of them."""
    channels = samples_SC.shape[1]
    if channels >= _CHANNELS_ADDED_IN_PAIRS:
        np.mean(samples_SC, axis=-1, out=mono_S)
        return
    mono_S[:] = samples_SC[:, 0]
    for channel in range(1, channels):
        mono_S += samples_SC[:, channel]
    mono_S /= np.float32(channels)


def _read_channels(sound: soundfile.SoundFile, samples_SC: SampleArray, channel: int | None) -> int:
    """All channels, or the one asked for; see _read_mono."""
    if samples_SC.shape[1] == sound.channels:
        return int(sound.buffer_read_into(samples_SC, samples_SC.dtype.name))
    all_SC = np.empty((len(samples_SC), sound.channels), samples_SC.dtype)
    got = int(sound.buffer_read_into(all_SC, all_SC.dtype.name))
    samples_SC[:got, 0] = all_SC[:got, channel]
    return got


def _check(audio: AudioInfo, samples: SampleArray, wanted: int, before: int, num_samples: int) -> int:
    """Judges what was read of a stretch and the `before` samples in front of it; returns how much of it there is."""
    _check_length(audio, wanted, len(samples))
    _check_finite(audio, samples)
    got = min(num_samples, len(samples) - before)
    if got <= 0:
        raise AudioError(audio.path, "no samples could be read")
    return got


def _check_finite(audio: AudioInfo, samples: SampleArray) -> None:
    """Also rejects channels whose sum is too large for a float32, like the mean of them."""
    if samples.dtype == np.int16 or len(samples) == 0:
        return
    channels = samples.shape[1] if samples.ndim == 2 else 1
    largest = float(np.finfo(np.float32).max) / channels
    if not (samples.min() >= -largest and samples.max() <= largest):  # NaN compares as false
        raise AudioError(audio.path, "holds NaN or infinite samples")


def _check_length(audio: AudioInfo, promised: int, got: int) -> None:
    """Short by a little is an estimated length (MP3); short by more is a damaged file."""
    if promised - got > MISSING_TOLERANCE_S * audio.sample_rate:
        expected_s, got_s = promised / audio.sample_rate, got / audio.sample_rate
        raise AudioError(audio.path, f"truncated or damaged: {expected_s:.2f} s expected, {got_s:.2f} s decoded")
