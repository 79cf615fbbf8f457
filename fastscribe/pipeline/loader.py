"""The loader: threads read utterances into batches of waveforms while the device is busy.

Decoding and resampling release the interpreter lock, so threads suffice. Work under the lock is kept small, because it
limits files per second (scripts/benchmarks/host.py). The caller allocates each batch's memory, so that it can
be pinned; each thread decodes straight into its rows. batching.py chooses the utterances of a batch; the recognizer computes
features. A file that cannot be read is left out of its batch and reported as a Failure beside it. An utterance of digital
silence is left out too, with an empty result: no model is given it, because many write words where there is nothing to hear.
Long digital silence within an utterance is cut out of its row (segmentation/silence.py).

Dimensions: B batch, S samples, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import TIMEOUT_MAX, Event
from typing import Any

import numpy as np

from fastscribe._system.processors import usable_processors
from fastscribe.audio.failures import to_failure
from fastscribe.audio.probe import probe
from fastscribe.audio.rates import context_samples, is_plain_ratio, output_length
from fastscribe.audio.read import read_into, read_native_into, sample_type
from fastscribe.pipeline.idle import IDLE, LATER, Idle, Later
from fastscribe.pipeline.prefetch import Group, Prefetcher
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.segmentation.silence import cut_out, find_zeros, mono_zeros
from fastscribe.types import AudioInfo, Batch, Cut, Failure, Hypothesis, NativeRows, SampleArray, Utterance

# An utterance that is not decoded, with its result: empty for digital silence.
Settled = tuple[Utterance, Failure | Hypothesis]
Loaded = tuple[Batch | None, tuple[Settled, ...]]  # no batch when none of its utterances is to be decoded
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], SampleArray]

_MAX_THREADS = 32
REMOTE_THREADS = 32  # they wait for answers, whatever the number of processors
_LOOK_SAMPLES = 256
_MAX_SPARE_FRACTION = 32  # up to 1/32 of a batch's width may be padding that compaction would remove


def default_threads(processors: int | None = None) -> int:
    """Return the number of reader threads: the processors, less two for the thread that drives the device; 2 to 32.

    Args:
        processors: Processors to use; None: all usable ones.
    """
    return min(max(2, (usable_processors() if processors is None else processors) - 2), _MAX_THREADS)


def load_batches(
    plans: Iterable[Sequence[Utterance] | Idle | Later],
    *,
    pool: ReplacingThreadPool,
    sample_rate: int,
    ahead: int,
    allocate: Allocate = np.empty,
    native: bool = False,
) -> Generator[Loaded | Idle, None, None]:
    """Yield a batch for each plan, in order unless a file is slow (pipeline/prefetch.py), and prefetch the next ones.

    A slow file follows in a batch of its own. At the end all slow files are waited for. Utterances of unopened recordings
    (AudioInfo.unread) are replaced by utterances with the real lengths.

    IDLE among the plans means that the next plan may take long: batches in flight are yielded first, then IDLE. LATER means
    that there is none at the moment: the oldest batch in flight is yielded, or IDLE if there is none. Closing the
    generator drops pending work; a read in progress ends in the background. A recording with several failed utterances has a
    Failure for each.

    Args:
        plans: The utterances of each batch. The caller's thread advances it.
        pool: Reads the files.
        sample_rate: The model's rate in Hz.
        ahead: Maximum number of batches that are prefetched beside the caller's.
        allocate: allocate(shape, dtype) returns a batch's memory. Called by the caller's thread.
        native: Leave resampling and downmix to the device (types.NativeRows).

    Yields:
        (batch, settled): batch is None if none of its utterances is to be decoded; settled pairs each utterance that could
        not be read with its Failure, and each one of digital silence with an empty Hypothesis.
    """
    assert ahead > 0
    loader = _Loader(_BatchFormat(sample_rate, allocate, native), pool, ahead)
    try:
        for plan in plans:
            if plan is LATER:
                yield loader.pop() or IDLE
                continue
            if plan is not IDLE:
                loader.submit(plan)
            while (plan is IDLE or loader.is_full) and (loaded := loader.pop()) is not None:
                yield loaded
            if plan is IDLE:
                yield IDLE
        while (loaded := loader.pop(at_end=True)) is not None:
            yield loaded
    finally:
        loader.close()


@dataclass(frozen=True)
class _BatchFormat:
    """Format of the batches to load."""

    sample_rate: int
    allocate: Allocate
    native: bool


class _ProbeGroup(Group):
    """A batch with unopened recordings: its files are probed before memory is allocated."""

    def __init__(self, plan: Sequence[Utterance]) -> None:
        super().__init__(len(plan))
        self.utterances = list(plan)

    def call(self, index: int) -> None:
        unread = self.utterances[index].audio.unread
        if unread is not None:
            audio = probe(unread)
            self.utterances[index] = replace(
                self.utterances[index], audio=audio, start=0, num_samples=audio.num_samples
            )


class _ReadGroup(Group):
    """A batch whose rows threads fill, a row a call."""

    def __init__(self, plan: Sequence[Utterance], format: _BatchFormat) -> None:
        """Allocate the batch's memory by the lengths in the files' headers."""
        super().__init__(len(plan))
        self.utterances = plan
        self._rate = format.sample_rate
        groups: dict[tuple[int, int], list[int]] = {}
        types = set()
        for row, utterance in enumerate(plan):
            audio = utterance.audio
            if format.native and _is_resampled_on_device(audio, self._rate):
                groups.setdefault((audio.sample_rate, audio.channels if audio.channel is None else 1), []).append(row)
            else:
                types.add(sample_type(audio, self._rate))
        longest = max(output_length(item.num_samples, item.audio.sample_rate, self._rate) for item in plan)
        dtype = np.dtype(np.float32 if np.dtype(np.float32) in types else np.int16)
        self.native = [
            _native_rows(plan, rate, rows, channels, self._rate, format.allocate)
            for (rate, channels), rows in groups.items()
        ]
        # Row of the batch -> (its group in `native`, its index there).
        self._native_slots = {row: (group, index) for group in self.native for index, row in enumerate(group.rows)}
        self.samples_BS = format.allocate((len(plan), longest), dtype)
        self.lengths_B = np.zeros(len(plan), np.int64)
        self.silent: set[int] = set()  # rows of digital silence
        self.cuts: dict[int, tuple[Cut, ...]] = {}  # by row: digital silence that it lacks

    def call(self, index: int) -> None:
        row_S, utterance, length = self.samples_BS[index], self.utterances[index], 0
        native_slot = self._native_slots.get(index)
        if native_slot is None:
            length = read_into(row_S, utterance, self._rate)
        row_S[length:] = 0
        samples, rate, num_samples = row_S, self._rate, length
        if native_slot is not None:
            group, slot = native_slot
            samples, rate = group.samples_BSC[slot, group.begin :], group.rate
            length = read_native_into(group.samples_BSC[slot], group.begin, utterance, self._rate)
            num_samples = min(utterance.num_samples, length * rate // self._rate)
        if is_zero(samples[:num_samples]):
            self.silent.add(index)
        elif utterance.purpose == "words" and (zeros := find_zeros(samples[:num_samples], rate)):
            self.cuts[index] = cut_out(samples, zeros, rate)
            length -= round(sum(cut.duration_s for cut in self.cuts[index]) * self._rate)
        self.lengths_B[index] = length

    def batch(self, rows: Sequence[int], allocate: Allocate) -> Batch | None:
        """Return a batch of those of the popped rows that are to be decoded, or None if there is none.

        It is a copy in memory from `allocate` while threads still write to the group's memory, else the group's memory,
        compacted in place.
        """
        kept = [row for row in rows if row not in self.errors and row not in self.silent]
        if not kept:
            return None
        copy_to = None if self.all_popped else allocate
        lengths_B = self.lengths_B[kept]
        width = _width(int(lengths_B.max()), self.samples_BS.shape[1])
        samples_BS = _gather_rows(self.samples_BS, kept, width, copy_to)
        numbers = {row: number for number, row in enumerate(kept)}
        native = (_select_native_rows(group, numbers, copy_to) for group in self.native)
        utterances = tuple(self.utterances[row] for row in kept)
        cuts = tuple(self.cuts.get(row, ()) for row in kept)
        groups = tuple(group for group in native if group is not None)
        return Batch(utterances, samples_BS, lengths_B, groups, cuts if any(cuts) else ())


class _Loader:
    """Batches in flight: those with unopened recordings are probed first. The caller's thread uses it."""

    def __init__(self, format: _BatchFormat, pool: ReplacingThreadPool, ahead: int) -> None:
        self._format, self._ahead = format, ahead
        self._wakeup = Event()
        self._probes = Prefetcher[_ProbeGroup](pool, self._wakeup.set)
        self._reads = Prefetcher[_ReadGroup](pool, self._wakeup.set)
        self._failures: list[Settled] = []  # of probed files, not yet returned

    @property
    def is_full(self) -> bool:
        return len(self._reads) > self._ahead or len(self._probes) + len(self._reads) > 2 * self._ahead

    def submit(self, plan: Sequence[Utterance]) -> None:
        if len(self._probes) or any(utterance.audio.unread is not None for utterance in plan):
            self._probes.submit(_ProbeGroup(plan))
        else:
            self._reads.submit(_ReadGroup(plan, self._format))

    def pop(self, at_end: bool = False) -> Loaded | None:
        """Wait for the next batch and return it. None: only late ones are in flight; with `at_end`, none is."""
        while True:
            self._wakeup.clear()
            self._read_probed()
            if (part := self._reads.poll()) is not None:
                return self._loaded(*part)
            if self._failures:
                failures, self._failures = tuple(self._failures), []
                return None, failures
            stages = self._probes, self._reads
            if not any(len(stage) or (at_end and stage.has_late) for stage in stages):
                return None
            polled = stages if len(self._reads) <= self._ahead else (self._reads,)  # as _read_probed() does
            self._wakeup.wait(min(TIMEOUT_MAX, *(stage.remaining_s() for stage in polled)))

    def close(self) -> None:
        self._probes.close()
        self._reads.close()

    def _read_probed(self) -> None:
        """Start to read the batches whose files are probed, if no more than `ahead` batches are being read."""
        while len(self._reads) <= self._ahead and (part := self._probes.poll()) is not None:
            group, done = part
            self._failures += _failures(group, done, "probe")
            if plan := [group.utterances[index] for index in done if index not in group.errors]:
                self._reads.submit(_ReadGroup(plan, self._format))

    def _loaded(self, group: _ReadGroup, done: Sequence[int]) -> Loaded:
        silent: list[Settled] = [(group.utterances[index], Hypothesis()) for index in done if index in group.silent]
        return group.batch(done, self._format.allocate), (*_failures(group, done, "load"), *silent)


def is_zero(samples: SampleArray) -> bool:
    """Return True if the average of the channels is 0 throughout; a look at the middle spares a pass over nearly all.

    Args:
        samples: [S], or [S, C].
    """
    middle = len(samples) // 2
    return bool(mono_zeros(samples[middle : middle + _LOOK_SAMPLES]).all() and mono_zeros(samples).all())


def _failures(group: _ProbeGroup | _ReadGroup, done: Sequence[int], stage: str) -> list[Settled]:
    failed = [index for index in done if index in group.errors]
    return [
        (group.utterances[index], to_failure(group.utterances[index].audio, stage, group.errors[index]))
        for index in failed
    ]


def _is_resampled_on_device(audio: AudioInfo, sample_rate: int) -> bool:
    downmixed = audio.channels > 1 and audio.channel is None
    return (downmixed or audio.sample_rate != sample_rate) and is_plain_ratio(audio.sample_rate, sample_rate)


def _native_rows(
    plan: Sequence[Utterance], rate: int, rows: Sequence[int], channels: int, sample_rate: int, allocate: Allocate
) -> NativeRows:
    margin = context_samples(rate, sample_rate)
    longest = max(plan[row].num_samples for row in rows)
    dtype = np.dtype(np.int16 if all(plan[row].audio.is_int16 for row in rows) else np.float32)
    samples_BSC = allocate((len(rows), margin + longest + margin, channels), dtype)
    return NativeRows(rate, tuple(rows), margin, samples_BSC)


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
    if allocate is not None:
        gathered = allocate(shape, samples.dtype)
    elif shape == samples.shape:
        return samples
    else:
        gathered = samples.reshape(-1)[: math.prod(shape)].reshape(shape)
    for index, row in enumerate(rows):
        gathered[index] = samples[row, :width]
    return gathered


def collate(utterances: Sequence[Utterance], waves: Sequence[SampleArray]) -> Batch:
    """Return a batch of waves that are in memory already. load_batches() gives the same result; a test compares them.

    Args:
        utterances: One per wave.
        waves: Mono at the model's rate, one-dimensional, int16 or float32 in [-1, 1].

    Returns:
        A batch, zero-padded to the longest wave: int16 if all waves are, else float32 with the int16 ones scaled to [-1, 1].
    """
    assert len(utterances) == len(waves) > 0
    all_int16 = all(wave.dtype == np.int16 for wave in waves)
    lengths_B = np.array([len(wave) for wave in waves], dtype=np.int64)
    samples_BS = np.zeros((len(waves), int(lengths_B.max())), dtype=np.int16 if all_int16 else np.float32)
    for row, wave in zip(samples_BS, waves, strict=True):
        row[: len(wave)] = wave
        if wave.dtype == np.int16 and not all_int16:
            row[: len(wave)] *= np.float32(1 / 32768)
    return Batch(tuple(utterances), samples_BS, lengths_B)
