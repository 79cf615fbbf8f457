"""The audio of a passage, small enough to lie inside a page: MP3, mono, 16 kHz, about 3 kB a second."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import soundfile

from fastscribe.audio.read import read
from fastscribe.readable.redacted_audio import silenced_samples
from fastscribe.types import AudioInfo, Float32Array, Redaction

_RATE = 16_000


def mp3_clip(audio: AudioInfo, start_s: float, end_s: float, redacted: Sequence[Redaction]) -> bytes:
    """Return the audio between two times, with silence where words were redacted.

    Args:
        audio: The recording or a part of it.
        start_s: Begin, in seconds from the part's begin.
        end_s: End.
        redacted: Times of words that must not be heard.

    Raises:
        AudioError: The recording cannot be read.
    """
    begin = min(max(0, int(start_s * audio.sample_rate)), audio.num_samples - 1)
    length = max(1, min(audio.num_samples, int(end_s * audio.sample_rate)) - begin)
    read_S = read(audio, begin, length, sample_rate=_RATE)
    samples_S: Float32Array = read_S.astype(np.float32) / np.float32(32768 if read_S.dtype == np.int16 else 1)
    for span in redacted:
        first, end = (at - begin for at in silenced_samples(span, audio))
        samples_S[max(0, first * _RATE // audio.sample_rate) : max(0, -(-end * _RATE // audio.sample_rate))] = 0
    encoded = io.BytesIO()
    soundfile.write(encoded, samples_S, _RATE, format="MP3", subtype="MPEG_LAYER_III")
    return encoded.getvalue()
