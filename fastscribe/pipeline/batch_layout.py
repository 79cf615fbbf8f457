"""Where the samples of a batch lie: shapes by the files' headers, and reading one row into its place.

A layout has no samples. Threads read into arrays that an executor allocates; helper processes read into the same arrays in
memory that they share with the device's process.

Dimensions: B batch, S samples, C channels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fastscribe.audio.read import (
    context_samples,
    is_plain_ratio,
    output_length,
    read_into,
    read_native_into,
    sample_type,
)
from fastscribe.segmentation.silence import centre, cut_out, find_zeros, mono_zeros
from fastscribe.types import AudioInfo, Batch, Cut, Int64Array, MixNotes, NativeRows, SampleArray, Utterance

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], SampleArray]

_LOOK_SAMPLES = 256
_MAX_SPARE_FRACTION = 32  # up to 1/32 of a batch's width may be padding that compaction would remove
_ALIGN_BYTES = 4096  # of arrays in shared memory


class ReadRow(NamedTuple):
    """A row that was read: its samples at the model's rate, and the digital silence that it lacks."""

    length: int
    is_silent: bool = False  # digital silence alone, which is not decoded
    cuts: tuple[Cut, ...] = ()
    notes: MixNotes | None = None  # as read_into() gives them, if there are any

    def noted(self, utterance: Utterance) -> Utterance:
        """Return the utterance that was read, with what reading it has shown."""
        if self.notes is None:
            return utterance
        from fastscribe.audio.mixing import noted

        return replace(utterance, audio=noted(utterance.audio, self.notes))


@dataclass(frozen=True)
class NativeLayout:
    """The layout of rows that the device resamples (types.NativeRows)."""

    rate: int
    rows: tuple[int, ...]
    begin: int
    shape: tuple[int, int, int]
    dtype: str


@dataclass(frozen=True)
class BatchLayout:
    """The arrays of a batch: all rows at the model's rate, then those that the device resamples."""

    sample_rate: int
    shape: tuple[int, int]
    dtype: str
    native: tuple[NativeLayout, ...] = ()
    least: int = 0  # samples; a shorter utterance of words lies in the middle of as many

    @classmethod
    def of(cls, plan: Sequence[Utterance], sample_rate: int, native: bool, least: int = 0) -> BatchLayout:
        """Lay out a batch by the lengths in the files' headers.

        Args:
            plan: Its utterances.
            sample_rate: The model's rate in Hz.
            native: Leave resampling and downmix to the device, except in rows that get silence.
            least: Samples at the model's rate that a row has at least (ModelFacts.least_samples).
        """
        groups: dict[tuple[int, int], list[int]] = {}
        types = set()
        for row, utterance in enumerate(plan):
            audio = utterance.audio
            is_short = utterance.duration_s * sample_rate < least
            if native and not is_short and _is_resampled_on_device(audio, sample_rate):
                groups.setdefault((audio.sample_rate, audio.native_channels), []).append(row)
            else:
                types.add(sample_type(audio, sample_rate))
        longest = max(least, *(_num_samples(one, sample_rate) for one in plan))
        dtype = "float32" if np.dtype(np.float32) in types else "int16"
        laid_out = (_native(plan, rate, rows, channels, sample_rate) for (rate, channels), rows in groups.items())
        return cls(sample_rate, (len(plan), longest), dtype, tuple(laid_out), least)

    @property
    def arrays(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """Shape and dtype of each array."""
        yield self.shape, self.dtype
        yield from ((one.shape, one.dtype) for one in self.native)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays in one piece of memory."""
        return sum(_num_bytes(*one) for one in self.arrays)

    def allocate(self, allocate: Allocate) -> BatchArrays:
        """Return the arrays in memory of `allocate`."""
        return BatchArrays(self, [allocate(shape, np.dtype(dtype)) for shape, dtype in self.arrays])

    def placed(self, memory: memoryview) -> BatchArrays:
        """Return the arrays in a piece of memory of `num_bytes`, one behind the other."""
        arrays: list[SampleArray] = []
        begin = 0
        for shape, dtype in self.arrays:
            arrays.append(np.frombuffer(memory, dtype, math.prod(shape), begin).reshape(shape))
            begin += _num_bytes(shape, dtype)
        return BatchArrays(self, arrays)


class BatchArrays:
    """The samples of a batch, which are read row by row. Several threads or processes may read different rows."""

    def __init__(self, layout: BatchLayout, arrays: Sequence[SampleArray]) -> None:
        self._rate, self._least = layout.sample_rate, layout.least
        self._samples_BS = arrays[0]
        self._native = [
            NativeRows(one.rate, one.rows, one.begin, array)
            for one, array in zip(layout.native, arrays[1:], strict=True)
        ]
        # By row of the batch: the row's group in `_native`, and its index there.
        self._native_slots = {row: (group, slot) for group in self._native for slot, row in enumerate(group.rows)}

    def read(self, row: int, utterance: Utterance) -> ReadRow:
        """Read an utterance into its row. Raises AudioError."""
        row_S, length = self._samples_BS[row], 0
        notes = MixNotes([], Counter())
        native_slot = self._native_slots.get(row)
        if native_slot is None:
            length = read_into(row_S, utterance, self._rate, notes)
        row_S[length:] = 0
        samples, rate, num_samples = row_S, self._rate, length
        if native_slot is not None:
            group, slot = native_slot
            samples, rate = group.samples_BSC[slot, group.begin :], group.rate
            length = read_native_into(group.samples_BSC[slot], group.begin, utterance, self._rate, notes)
            num_samples = min(utterance.num_samples, length * rate // self._rate)
        if is_zero(samples[:num_samples]):
            return ReadRow(length, is_silent=True)
        cuts: tuple[Cut, ...] = ()
        if utterance.purpose == "words" and (zeros := find_zeros(samples[:num_samples], rate)):
            cuts = cut_out(samples, zeros, rate)
            length -= round(sum(cut.duration_s for cut in cuts) * self._rate)
        if length < self._least and native_slot is None and not cuts and utterance.purpose == "words":
            cuts, length = centre(row_S, length, self._least, self._rate), self._least
        return ReadRow(length, cuts=cuts, notes=notes if any(notes) else None)

    def batch(
        self, utterances: tuple[Utterance, ...], rows: Sequence[int], lengths_B: Int64Array, allocate: Allocate | None
    ) -> Batch:
        """Return a batch of some rows, padded to the longest, without their cuts.

        Args:
            utterances: Of these rows.
            rows: Rows of this batch, in ascending order.
            lengths_B: Their lengths in samples at the model's rate.
            allocate: Makes memory for a copy if some rows are left out; None: they are compacted in place.
        """
        width = _width(int(lengths_B.max()), self._samples_BS.shape[1])
        samples_BS = _gather_rows(self._samples_BS, rows, width, allocate)
        numbers = {row: number for number, row in enumerate(rows)} if self._native else {}
        native = (_select_native_rows(group, numbers, allocate) for group in self._native)
        return Batch(utterances, samples_BS, lengths_B, tuple(group for group in native if group is not None))


def is_zero(samples: SampleArray) -> bool:
    """Return True if the average of the channels is 0 throughout; a look at the middle spares a pass over nearly all.

    Args:
        samples: [S], or [S, C].
    """
    middle = len(samples) // 2
    return bool(mono_zeros(samples[middle : middle + _LOOK_SAMPLES]).all() and mono_zeros(samples).all())


def _num_samples(utterance: Utterance, sample_rate: int) -> int:
    """Return the most samples that an utterance has at a rate. A manifest's promise at that rate is rounded down."""
    length = output_length(utterance.num_samples, utterance.audio.sample_rate, sample_rate)
    return length if utterance.audio.unread is None else length + 1


def _num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // _ALIGN_BYTES) * _ALIGN_BYTES


def _is_resampled_on_device(audio: AudioInfo, sample_rate: int) -> bool:
    return (audio.native_channels > 1 or audio.sample_rate != sample_rate) and is_plain_ratio(
        audio.sample_rate, sample_rate
    )


def _native(plan: Sequence[Utterance], rate: int, rows: Sequence[int], channels: int, sample_rate: int) -> NativeLayout:
    margin = context_samples(rate, sample_rate)
    longest = max(plan[row].num_samples for row in rows)
    dtype = "int16" if all(plan[row].audio.is_int16 for row in rows) else "float32"
    return NativeLayout(rate, tuple(rows), margin, (len(rows), margin + longest + margin, channels), dtype)


def _width(longest: int, promised: int) -> int:
    """Return the batch's width: `promised` if it is only a little too large; moving all rows costs more than padding."""
    return promised if promised - longest <= promised // _MAX_SPARE_FRACTION else longest


def _select_native_rows(group: NativeRows, numbers: Mapping[int, int], allocate: Allocate | None) -> NativeRows | None:
    """Return the group's rows that stay in the batch, renumbered; None if none stays."""
    slots = [slot for slot, row in enumerate(group.rows) if row in numbers]
    if not slots:
        return None
    samples_BSC = _gather_rows(group.samples_BSC, slots, group.samples_BSC.shape[1], allocate)
    return NativeRows(group.rate, tuple(numbers[group.rows[slot]] for slot in slots), group.begin, samples_BSC)


def _gather_rows(samples: SampleArray, rows: Sequence[int], width: int, allocate: Allocate | None) -> SampleArray:
    """Return samples[rows, :width] as a contiguous array: new memory from `allocate`, or compacted in place if that is None.

    Contiguous pinned memory makes copies to a device asynchronous.
    """
    shape = (len(rows), width, *samples.shape[2:])
    if shape == samples.shape:
        return samples
    compacted = samples.reshape(-1)[: math.prod(shape)].reshape(shape)
    gathered = compacted if allocate is None else allocate(shape, samples.dtype)
    for index, row in enumerate(rows):
        gathered[index] = samples[row, :width]
    return gathered
