"""Convert the frames of a track whose sample rate changes to its first rate, as they come."""

from __future__ import annotations

import numpy as np
import soxr

from fastscribe.types import Float32Array


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
