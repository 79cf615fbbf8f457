"""Read the samples of one utterance into the caller's memory: mono at the requested rate, or native.

Downmix and resampling are those of NeMo's AudioSegment (float32 mean over channels, then soxr HQ, length rounded up), so a
whole recording gives the same samples; surround sound and channels that cancel each other are mixed in another way (mixing.py).
An utterance is resampled with some of its neighbourhood on either side, which is cut off again, so that a cut leaves no audible
seam. The part before it is a whole number of samples at either rate, so that positions do not drift. pipeline/loader.py
assembles batches; audio/resample.py does downmix and resampling on a GPU.

Dimensions: S samples, C channels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile
import soxr

from fastscribe.audio.failures import ContainerError, system_problem
from fastscribe.audio.formats import MISSING_TOLERANCE_S
from fastscribe.audio.sound import MIN_CACHED_S, cached_open
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Float32Array, MixNotes, SampleArray, Utterance

if TYPE_CHECKING:
    from fastscribe.audio.sound import OpenSound


CONTEXT_S = 0.05  # several times the length of the resampling filters
_MAX_PHASES = 1280  # in the filter bank on a GPU; 11,025 Hz to 16,000 Hz has 640


def sample_type(audio: AudioInfo, sample_rate: int) -> np.dtype[Any]:
    """Return int16 if the file holds 16-bit samples and needs neither downmix nor resampling, else float32."""
    is_unchanged = audio.sample_rate == sample_rate and (audio.channels == 1 or audio.channel is not None)
    return np.dtype(np.int16 if audio.is_int16 and is_unchanged else np.float32)


def read(
    audio: AudioInfo, start: int, num_samples: int, *, sample_rate: int, notes: MixNotes | None = None
) -> SampleArray:
    """Call read_into() with new memory. Returns [S] in the dtype of sample_type()."""
    length = output_length(num_samples, audio.sample_rate, sample_rate)
    row_S = np.empty(length, sample_type(audio, sample_rate))
    return row_S[: read_into(row_S, Utterance(audio, start, num_samples), sample_rate, notes)]


def read_into(row_S: SampleArray, utterance: Utterance, sample_rate: int, notes: MixNotes | None = None) -> int:
    """Read the utterance at `sample_rate` into the front of row_S.

    Args:
        row_S: [S] of sample_type(): float32 in [-1, 1] or int16. It must hold the whole utterance and its context.
        notes: Gets what the mix of channels shows.

    Returns:
        The number of samples written.

    Raises:
        AudioError: no such channel, damaged, truncated, no samples, or NaN or infinite samples.
    """
    audio = utterance.audio
    assert utterance.start >= 0 and utterance.start + utterance.num_samples <= audio.num_samples
    before, after = context(audio, utterance.start, utterance.num_samples, sample_rate)
    wanted = before + utterance.num_samples + after
    is_same_rate = audio.sample_rate == sample_rate
    mono_S = row_S[:wanted] if is_same_rate else np.empty(wanted, np.float32)
    got, kept = _read_span(utterance, before, mono_S[:, None], row_S.dtype, notes)
    if is_same_rate:
        return kept
    length = output_length(kept, audio.sample_rate, sample_rate)
    resampled_S = soxr.resample(mono_S[:got], audio.sample_rate, sample_rate, quality="HQ")
    begin = before * sample_rate // audio.sample_rate
    piece_S = resampled_S[begin : begin + length]
    row_S[: len(piece_S)] = piece_S
    row_S[len(piece_S) : length] = 0
    return length


def read_native_into(
    rows_SC: SampleArray, begin: int, utterance: Utterance, sample_rate: int, notes: MixNotes | None = None
) -> int:
    """Read the utterance at its native rate into rows_SC from `begin` on, with its context around it and zeros elsewhere.

    Args:
        rows_SC: [S, C] with AudioInfo.native_channels; int16 if the file is, else float32.

    Returns:
        The number of samples that the utterance has at `sample_rate`.

    Raises:
        AudioError: as read_into().
    """
    audio = utterance.audio
    before, after = context(audio, utterance.start, utterance.num_samples, sample_rate)
    first, wanted = begin - before, before + utterance.num_samples + after
    span_SC = rows_SC[first : first + wanted]
    got, kept = _read_span(utterance, before, span_SC, rows_SC.dtype, notes)
    rows_SC[:first] = 0
    rows_SC[first + got :] = 0
    return output_length(kept, audio.sample_rate, sample_rate)


def _read_span(
    utterance: Utterance, before: int, span_SC: SampleArray, dtype: np.dtype[Any], notes: MixNotes | None
) -> tuple[int, int]:
    """Fill a span [S, C] that begins `before` samples before the utterance.

    Returns:
        The samples that were read, and how many of them are the utterance's.
    """
    audio, position = utterance.audio, utterance.audio.start + utterance.start - before
    with _opened(audio, position, notes, is_mono=span_SC.shape[1] == 1) as sound:
        if dtype == np.int16 and sound.subtype != "PCM_16":
            raise AudioError(audio.path, "changed since the run began")
        _seek(sound, position)
        got = _read_channels(sound, span_SC, audio.channel)
    _check_length(audio, len(span_SC), got)
    _check_finite(audio, span_SC[:got])
    kept = min(utterance.num_samples, got - before)
    if kept <= 0:
        raise AudioError(audio.path, "no samples could be read")
    return got, kept


def blocks(audio: AudioInfo, block_samples: int) -> Iterator[Float32Array]:
    """Yield the recording at its native rate in float32 mono blocks [S] of `block_samples`, the last one shorter.

    Raises:
        AudioError: as read_into().
    """
    return (block_SC[:, 0] for block_SC in _in_blocks(audio, block_samples, is_mixed=True))


def channel_blocks(audio: AudioInfo, block_samples: int) -> Iterator[Float32Array]:
    """Yield the same with all channels: blocks [S, C]."""
    return _in_blocks(replace(audio, channel=None), block_samples, is_mixed=False)


def _in_blocks(audio: AudioInfo, block_samples: int, is_mixed: bool) -> Iterator[Float32Array]:
    with _opened(audio, audio.start, is_mixed=is_mixed) as sound:
        _seek(sound, audio.start)
        channels = sound.channels if audio.channel is None else 1
        left = audio.num_samples
        ended = False
        while left > 0 and not ended:
            block = np.empty((min(block_samples, left), channels), np.float32)
            got = _read_channels(sound, block, audio.channel)
            _check_finite(audio, block[:got])
            ended = got < len(block)
            left -= got
            if got:
                yield block[:got]
    _check_length(audio, audio.num_samples, audio.num_samples - left)


@contextmanager
def _opened(
    audio: AudioInfo, position: int, notes: MixNotes | None = None, is_mono: bool = True, is_mixed: bool = True
) -> Iterator[OpenSound]:
    """Open a recording. `is_mixed`: its channels are, if there are several; `is_mono`: to one (mixing.MixedSound)."""
    try:
        use_cache = position > MIN_CACHED_S * audio.sample_rate
        with cached_open(audio.file or audio.path, use_cache, audio.track, audio.reading) as sound:
            if (sound.samplerate, sound.channels) != (audio.sample_rate, audio.channels):
                raise AudioError(audio.path, "changed since the run began")
            if audio.channel is None and audio.channels > 1 and is_mixed:
                from fastscribe.audio.mixing import MixedSound, mix_weights

                yield MixedSound(sound, mix_weights(audio.layout), is_mono, notes or MixNotes([], Counter()))
            else:
                yield sound
    except soundfile.SoundFileError as error:
        reason = getattr(error, "error_string", str(error))
        raise AudioError(audio.path, f"cannot be decoded, damaged or truncated (libsndfile: {reason})") from error
    except ContainerError as error:
        raise AudioError(audio.path, str(error)) from error
    except OSError as error:
        raise AudioError(audio.path, system_problem(error)) from error


def _seek(sound: OpenSound, position: int) -> None:
    if position:  # an MP3 decoder loses the last bit of precision even in a seek to its own position
        sound.seek(position)


def _read_channels(sound: OpenSound, samples_SC: SampleArray, channel: int | None) -> int:
    """Fill samples [S, C] from the front with all channels, or the one that is asked for; return the number read."""
    if samples_SC.shape[1] == sound.channels:
        return int(sound.buffer_read_into(samples_SC, samples_SC.dtype.name))
    all_SC = np.empty((len(samples_SC), sound.channels), samples_SC.dtype)
    got = int(sound.buffer_read_into(all_SC, all_SC.dtype.name))
    samples_SC[:got, 0] = all_SC[:got, channel]
    return got


def _check_finite(audio: AudioInfo, samples: SampleArray) -> None:
    """Reject NaN, infinite samples, and channels whose sum would overflow float32 in the mean."""
    if samples.dtype == np.int16 or len(samples) == 0:
        return
    channels = samples.shape[1] if samples.ndim == 2 else 1
    largest = float(np.finfo(np.float32).max) / channels
    if not (samples.min() >= -largest and samples.max() <= largest):  # NaN compares as false
        raise AudioError(audio.path, "holds NaN or infinite samples")


def _check_length(audio: AudioInfo, promised: int, got: int) -> None:
    """Accept a small shortfall, because MP3 lengths are estimates; a large one is damage."""
    if promised - got > MISSING_TOLERANCE_S * audio.sample_rate:
        expected_s, got_s = promised / audio.sample_rate, got / audio.sample_rate
        raise AudioError(audio.path, f"truncated or damaged: {expected_s:.2f} s expected, {got_s:.2f} s decoded")


def output_length(num_samples: int, native_rate: int, sample_rate: int) -> int:
    """Return the number of samples after resampling, by librosa's rule with its rounding."""
    return math.ceil(num_samples * (float(sample_rate) / native_rate))


def ratio(native_rate: int, sample_rate: int) -> tuple[int, int]:
    """Return (up, down) in lowest terms: `up` new samples last as long as `down` native ones."""
    common = math.gcd(native_rate, sample_rate)
    return sample_rate // common, native_rate // common


def is_plain_ratio(native_rate: int, sample_rate: int) -> bool:
    """Return False for odd rates (44,099 Hz), which would need too many filters, one for each phase."""
    return max(ratio(native_rate, sample_rate)) <= _MAX_PHASES


def context_samples(native_rate: int, sample_rate: int) -> int:
    """Return the native samples of context on either side, a whole number of new samples; 0 for equal rates."""
    if native_rate == sample_rate:
        return 0
    _, down = ratio(native_rate, sample_rate)
    return math.ceil(CONTEXT_S * native_rate / down) * down


def context(audio: AudioInfo, start: int, num_samples: int, sample_rate: int) -> tuple[int, int]:
    """Return the native samples to read before and after an utterance, fewer at the recording's ends."""
    margin = context_samples(audio.sample_rate, sample_rate)
    if margin == 0:
        return 0, 0
    _, down = ratio(audio.sample_rate, sample_rate)
    return min(margin, start // down * down), min(margin, audio.num_samples - start - num_samples)
