"""The samples of FFmpeg's frames, as arrays [S, C], at their rate or at another: S samples, C channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import soxr
from av.audio.resampler import AudioResampler

from fastscribe.audio.channel_layout import choose
from fastscribe.audio.mixing import mix_weights
from fastscribe.types import AnyArray, Float32Array

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame

_MOST_PLANES = 7  # PyAV looks for one behind the last, and there is no room for it in a frame of eight


class FrameSamples:
    """Takes the samples out of a track's frames. Setting up a conversion takes longer than a frame, so the last is kept."""

    def __init__(self) -> None:
        self._resampler: AudioResampler | None = None
        self._kind: tuple[str, str, int] | None = None  # of the frames that it takes

    def of(self, frame: AudioFrame) -> Float32Array:
        """Return a frame's samples [S, C] as float32; integers are scaled to [-1, 1)."""
        channels, is_planar = frame.layout.nb_channels, frame.format.is_planar
        if frame.format.name.startswith("s64") or (is_planar and channels > _MOST_PLANES):
            frame, is_planar = self._packed(frame), False
        array: AnyArray = frame.to_ndarray()
        samples_SC: AnyArray = array.T if is_planar else array.reshape(-1, channels)
        if samples_SC.dtype.kind == "f":
            return samples_SC.astype(np.float32, copy=False)
        if samples_SC.dtype == np.uint8:
            return np.asarray(samples_SC.astype(np.float32) / 128 - 1, np.float32)
        return np.asarray(samples_SC.astype(np.float32) / 2.0 ** (8 * samples_SC.itemsize - 1), np.float32)

    def _packed(self, frame: AudioFrame) -> AudioFrame:
        """Return a frame whose channels are in one array."""
        kind = frame.format.name, frame.layout.name, frame.sample_rate
        if self._resampler is None or self._kind != kind:
            self._resampler, self._kind = AudioResampler("dbl", frame.layout, frame.sample_rate), kind
        [packed] = self._resampler.resample(frame)
        return packed


def mixed(samples_SC: Float32Array, names: list[str]) -> Float32Array:
    """Return frames of another number of channels than the first, as where a film follows stereo, as one channel [S, 1].

    Args:
        samples_SC: The frames.
        names: What each channel is for; none: unknown.
    """
    weights_C = mix_weights(choose(None, len(names), names)[2]) if len(names) > 2 else None
    if weights_C is None:
        return np.asarray(samples_SC.mean(axis=1, keepdims=True))
    return np.asarray(samples_SC @ weights_C[:, None], np.float32)


class RateConverter:
    """A run of frames at one rate, converted to another.

    Args:
        rate: Of the frames.
        to_rate: Of the track.
        channels: Their number.
        at: Position of the first sample, at `to_rate`.
    """

    def __init__(self, rate: int, to_rate: int, channels: int, at: int) -> None:
        self.rate, self.at = rate, at
        self._stream = soxr.ResampleStream(rate, to_rate, channels, dtype="float32", quality="HQ")
        self._begin, self._given, self._to_rate, self._channels = at, 0, to_rate, channels

    def convert(self, samples_SC: Float32Array) -> tuple[int, int, Float32Array]:
        """Return (where the samples given so far end, where the next converted ones begin, these); some come out later."""
        self._given += len(samples_SC)
        at, made_SC = self.at, self._make(samples_SC, False)
        return self._begin + round(self._given * self._to_rate / self.rate), at, made_SC

    def rest(self) -> Float32Array:
        """Return the samples that have not come out. The converter cannot be used after it."""
        return self._make(np.empty((0, self._channels), np.float32), True)

    def _make(self, samples_SC: Float32Array, is_last: bool) -> Float32Array:
        made_SC: Float32Array = self._stream.resample_chunk(np.ascontiguousarray(samples_SC), last=is_last)
        made_SC = made_SC.reshape(-1, self._channels)
        self.at += len(made_SC)
        return made_SC
