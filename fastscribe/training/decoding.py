"""Decode a span of a recording to 16-bit samples.

Shapes: S samples.
"""

from __future__ import annotations

import numpy as np

from fastscribe.audio.media import FilePart
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.errors import AudioError
from fastscribe.training.corpus import Example
from fastscribe.types import AudioInfo, File, Float32Array, Int16Array, Source


def probed(example: Example, offset_s: float, duration_s: float) -> AudioInfo:
    """Read the header of the example's recording, and cut the span out of it. Raises AudioError."""
    file: File = example.path
    if example.num_bytes:
        file = FilePart(example.path, example.start, example.num_bytes)
    name = shown_name(example)
    audio = probe(Source(name, file, name, None, offset_s or None, duration_s, channel=example.channel))
    if audio.missing_channel is not None:  # another one may have other words
        raise AudioError(
            name, f"channel {audio.missing_channel} was asked for, but it has {audio.channels} (counted from 0)"
        )
    return audio


def shown_name(example: Example) -> str:
    """Return what messages call the example's recording."""
    return f"{example.path} at byte {example.start}" if example.num_bytes else example.path


def samples_of(audio: AudioInfo, sample_rate: int) -> Int16Array:
    """Return the samples [S] of what was probed. Raises AudioError."""
    samples_S = read(audio, 0, audio.num_samples, sample_rate=sample_rate)
    if samples_S.dtype == np.int16:
        return samples_S.astype(np.int16, copy=False)
    scaled_S: Float32Array = np.clip(np.rint(samples_S * 32768.0), -32768, 32767)
    return scaled_S.astype(np.int16)


def decode(example: Example, sample_rate: int, offset_s: float, duration_s: float) -> Int16Array:
    """Return a span [S] of the example's recording. Raises AudioError."""
    return samples_of(probed(example, offset_s, duration_s), sample_rate)
