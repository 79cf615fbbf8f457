"""Samples in memory: from a caller's array, and read through the methods of soundfile.SoundFile that read.py uses.

Dimensions: S samples, C channels.
"""

from __future__ import annotations

import numpy as np

from fastscribe.types import AnyArray, SampleArray, Samples


def to_samples(array: AnyArray, channels_first: bool) -> SampleArray:
    """Copy a caller's samples into the form that the readers use.

    Args:
        array: [S] or [S, C]; int16, other integers of 8 or 32 bits (scaled to [-1, 1)), or floats in [-1, 1].
        channels_first: True: two-dimensional arrays are [C, S].

    Returns:
        A copy [S, C], because the caller may use the memory again: int16 stays int16, all else is float32.

    Raises:
        ValueError: another dtype, another number of dimensions, no channels, or surely the other order of dimensions; one line.
    """
    if array.ndim not in (1, 2):
        raise ValueError(f"an array of {array.ndim} dimensions: give [samples], or one with a dimension for channels")
    shaped = array[:, None] if array.ndim == 1 else array.T if channels_first else array
    if shaped.shape[1] == 0:
        raise ValueError(f"an array of shape {array.shape}: it holds no channels")
    if shaped.shape[1] > shaped.shape[0] > 0:
        order = "[channels, samples]" if channels_first else "[samples, channels]"
        raise ValueError(f"an array of shape {array.shape}: it is {order} here, so this one must be transposed")
    kind, bits = shaped.dtype.kind, 8 * shaped.dtype.itemsize
    if (kind, bits) == ("i", 16):
        return np.array(shaped, np.int16, order="C")
    if kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):  # the readers report infinite samples
            return np.array(shaped, np.float32, order="C")
    if (kind, bits) not in (("u", 8), ("i", 8), ("i", 32)):
        raise ValueError(f"an array of {array.dtype}: give int16, int32, uint8, int8, or floats in [-1, 1]")
    centred = shaped.astype(np.float32)
    if kind == "u":
        centred -= 128
    return np.asarray(centred / np.float32(2.0 ** (bits - 1)), np.float32)


class SampleReader:
    """A Samples with a position. For one thread at a time."""

    format = "samples"

    def __init__(self, samples: Samples) -> None:
        self._samples_SC = samples.samples_SC
        self.samplerate, self.channels = samples.sample_rate, samples.samples_SC.shape[1]
        self.subtype = "PCM_16" if samples.is_int16 else "FLOAT"
        self._position = 0

    def seek(self, position: int) -> None:
        self._position = position

    def buffer_read_into(self, samples_SC: SampleArray, dtype: str) -> int:
        """Fill samples [S, C] of this dtype from the front; return the number read, which is lower at the end."""
        span_SC = self._samples_SC[self._position : self._position + len(samples_SC)]
        samples_SC[: len(span_SC)] = span_SC
        if span_SC.dtype == np.int16 and dtype == "float32":
            np.multiply(samples_SC[: len(span_SC)], np.float32(1 / 32768), out=samples_SC[: len(span_SC)])
        self._position += len(span_SC)
        return len(span_SC)

    def close(self) -> None:
        pass
