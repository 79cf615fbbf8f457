"""The loader: threads read utterances into batches of waveforms while the device is busy.

Decoding and resampling release the interpreter lock, so threads suffice. Work under the lock is kept small, because it
limits files per second (scripts/benchmarks/host.py). The caller allocates each batch's memory, so that it can
be pinned; each thread decodes straight into its rows. batching.py chooses the utterances of a batch; the recognizer computes
features. A file that cannot be read is left out of its batch and reported as a Failure beside it.

Dimensions: B batch, S samples, C channels.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from time import monotonic
from typing import Any

import numpy as np

from fastscribe._system.processors import usable_processors
from fastscribe.audio.failures import to_failure
from fastscribe.audio.probe import probe
from fastscribe.audio.rates import context_samples, is_plain_ratio, output_length
from fastscribe.audio.read import read_into, read_native_into, sample_type
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.types import AudioInfo, Batch, Failure, NativeRows, SampleArray, Utterance

# No batch when none of its utterances could be read; a failure comes with the utterance that it cost.
Loaded = tuple[Batch | None, tuple[tuple[Utterance, Failure], ...]]
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], SampleArray]

MAX_WAIT_S = 0.2  # how long the caller waits for a batch of which nothing more is read
_MAX_THREADS = 32
_MAX_SPARE_FRACTION = 32  # one of so many samples of a batch may be spare: padding that costs little


def default_threads() -> int:
    """Return the number of reader threads: the usable processors, less two for the thread that drives the device; 2 to 32."""
    return min(max(2, usable_processors() - 2), _MAX_THREADS)


def load_batches(
    plans: Iterable[Sequence[Utterance]],
    *,
    sample_rate: int,
    channel: int | None,
    threads: int,
    ahead: int,
    allocate: Allocate = np.empty,
    native: bool = False,
) -> Generator[Loaded, None, None]:
    """Yield a batch for each plan, in order unless a file is slow, and prefetch the next ones.

    If a file is slow and the caller waits longer than MAX_WAIT_S, complete batches go first, and the slow file's batch leaves
    without it; the file follows in a batch of its own. At the end all slow files are waited for. Utterances of unopened
    recordings (AudioInfo.unread) are replaced by what their files hold.

    An empty plan means that the next plan may take long: batches in flight are yielded first, then (None, ()). Closing the
    generator drops pending work; a read in progress ends in the background. A recording with several failed utterances has a
    Failure for each.

    Args:
        plans: The utterances of each batch. The caller's thread advances it.
        sample_rate: The model's rate in Hz.
        channel: Channel to read, from 0; None: the mean of all.
        threads: Number of reader threads.
        ahead: Maximum number of batches that are prefetched beside the caller's.
        allocate: allocate(shape, dtype) returns a batch's memory. Called by the caller's thread.
        native: Leave resampling and downmix to the device (types.NativeRows).

    Yields:
        (batch, failures): batch is None if none of its utterances could be read; failures pairs each utterance that could
        not be read with its Failure.
    """
    assert threads > 0 and ahead > 0
    loader = _Loader(_BatchFormat(sample_rate, channel, allocate, native), threads, ahead)
    try:
        for plan in plans:
            if plan:
                loader.submit(plan)
            while (loader.is_full or not plan) and (loaded := loader.pop()) is not None:
                yield loaded
            if not plan:
                yield None, ()
        while (loaded := loader.pop(at_end=True)) is not None:
            yield loaded
    finally:
        loader.close()


@dataclass(frozen=True)
class _BatchFormat:
    """Format of the batches to load."""

    sample_rate: int
    channel: int | None
    allocate: Allocate
    native: bool


class _RowTask:
    """Utterances that several threads process, one row each at a time, with the rows that are done and those that failed."""

    stage = ""

    def __init__(self, utterances: Sequence[Utterance]) -> None:
        self.utterances = list(utterances)
        self.failures: dict[int, Failure] = {}
        self._todo = deque(range(len(utterances)))
        self._done: list[int] = []
        self._num_popped = 0  # of those done, what the caller has had

    def run(self, pool: ReplacingThreadPool, wakeup: Event) -> None:
        """Process rows until none is left. Several threads run this at once."""
        while self._todo and not pool.is_closed:
            try:
                row = self._todo.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                self.process_row(row)
            except BaseException as error:  # one bad file must not stop the rest, whatever is wrong with it
                self.failures[row] = to_failure(self.utterances[row].audio, self.stage, error)
            self._done.append(row)
        wakeup.set()

    def process_row(self, row: int) -> None:
        raise NotImplementedError

    @property
    def num_done(self) -> int:
        return len(self._done)

    @property
    def all_started(self) -> bool:
        return not self._todo

    @property
    def is_complete(self) -> bool:
        return len(self._done) == len(self.utterances)

    def pop_done(self) -> list[int]:
        """Return the rows that are done, each once."""
        rows = self._done[self._num_popped :]
        self._num_popped += len(rows)
        return sorted(rows)

    def failures_of(self, rows: Sequence[int]) -> list[tuple[Utterance, Failure]]:
        return [(self.utterances[row], self.failures[row]) for row in rows if row in self.failures]


class _ProbeTask(_RowTask):
    """A plan with unopened recordings: their files are probed before memory is allocated."""

    stage = "probe"

    def process_row(self, row: int) -> None:
        unread = self.utterances[row].audio.unread
        if unread is not None:
            audio = probe(unread)
            self.utterances[row] = Utterance(audio, 0, audio.num_samples)


class _ReadTask(_RowTask):
    """A batch that threads fill, each its own rows."""

    stage = "load"

    def __init__(self, plan: Sequence[Utterance], format: _BatchFormat) -> None:
        """Allocate the batch's memory by the lengths in the files' headers."""
        super().__init__(plan)
        self._rate, self._channel = format.sample_rate, format.channel
        groups: dict[tuple[int, int], list[int]] = {}
        types = set()
        for row, utterance in enumerate(plan):
            audio = utterance.audio
            if format.native and _is_resampled_on_device(audio, self._rate, self._channel):
                groups.setdefault((audio.sample_rate, audio.channels if self._channel is None else 1), []).append(row)
            else:
                types.add(sample_type(audio, self._rate, self._channel))
        longest = max(output_length(item.num_samples, item.audio.sample_rate, self._rate) for item in plan)
        dtype = np.dtype(np.float32 if np.dtype(np.float32) in types else np.int16)
        self.native = [
            _native_rows(plan, rate, rows, channels, self._rate, format.allocate)
            for (rate, channels), rows in groups.items()
        ]
        # By row of the batch: where it lies in `native`.
        self._native_slots = {row: (group, index) for group in self.native for index, row in enumerate(group.rows)}
        self.samples_BS = format.allocate((len(plan), longest), dtype)
        self.lengths_B = np.zeros(len(plan), np.int64)

    def process_row(self, row: int) -> None:
        row_S, utterance, length = self.samples_BS[row], self.utterances[row], 0
        place = self._native_slots.get(row)
        if place is None:
            length = read_into(row_S, utterance, self._rate, self._channel)
        row_S[length:] = 0
        if place is not None:
            group, index = place
            length = read_native_into(group.samples_BSC[index], group.begin, utterance, self._rate, self._channel)
        self.lengths_B[row] = length

    def batch(self, rows: Sequence[int], allocate: Allocate | None) -> Batch | None:
        """Return a batch of the given rows that have not failed, or None if all have.

        Args:
            rows: Rows that are done.
            allocate: Allocates a copy; None: compact in place, if no thread writes to this memory any more.
        """
        kept = [row for row in rows if row not in self.failures]
        if not kept:
            return None
        lengths_B = self.lengths_B[kept]
        width = _width(int(lengths_B.max()), self.samples_BS.shape[1])
        samples_BS = _gather_rows(self.samples_BS, kept, width, allocate)
        numbers = {row: number for number, row in enumerate(kept)}
        native = (_select_native_rows(group, numbers, allocate) for group in self.native)
        utterances = tuple(self.utterances[row] for row in kept)
        return Batch(utterances, samples_BS, lengths_B, tuple(group for group in native if group is not None))


class _Loader:
    """Batches in flight and the threads that fill them. Used by the caller's thread."""

    def __init__(self, format: _BatchFormat, threads: int, ahead: int) -> None:
        self._format, self._threads, self._ahead = format, threads, ahead
        self._pool = ReplacingThreadPool(threads, "read")
        self._wakeup = Event()  # some thread has come to the end of its share
        self._in_flight: list[_RowTask] = []  # oldest first
        self._late: list[
            _RowTask
        ] = []  # let past: threads are at all that is missing, so there are no more than threads
        self._failures: list[tuple[Utterance, Failure]] = []  # of files that nobody could open, not yet given out

    def close(self) -> None:
        self._pool.close()

    @property
    def is_full(self) -> bool:
        return self._num_reading() > self._ahead or len(self._in_flight) > 2 * self._ahead

    def submit(self, plan: Sequence[Utterance]) -> None:
        is_unread = any(utterance.audio.unread is not None for utterance in plan)
        rows = _ProbeTask(plan) if is_unread else _ReadTask(plan, self._format)
        self._in_flight.append(rows)
        self._dispatch(rows, self._threads)

    def pop(self, at_end: bool = False) -> Loaded | None:
        """Return the next batch.

        None: only late batches are in flight; with `at_end`, nothing is in flight.
        """
        watched: tuple[_RowTask, int] | None = None
        deadline = 0.0
        while True:
            self._wakeup.clear()
            self._start_probed()
            for rows in (*self._late, *self._in_flight[:1]):
                if isinstance(rows, _ReadTask) and rows.is_complete:
                    return self._pop_complete(rows)
            if not self._in_flight and not (at_end and self._late):
                loaded = self._pop_partial(self._late)
                if loaded is not None or not self._in_flight:
                    return loaded
                continue
            oldest = (self._in_flight or self._late)[0]
            if watched != (oldest, oldest.num_done):
                watched, deadline = (oldest, oldest.num_done), monotonic() + MAX_WAIT_S
            if not self._wakeup.wait(max(0.0, deadline - monotonic())) and watched == (oldest, oldest.num_done):
                loaded = self._pop_other(oldest)
                if loaded is not None:
                    return loaded
                watched = None

    def _pop_other(self, slow: _RowTask) -> Loaded | None:
        """Return a batch, or part of one, that can leave before `slow`, the oldest, which has made no progress for a while."""
        if slow in self._in_flight and slow.all_started:
            self._in_flight.remove(slow)
            self._late.append(slow)
        elif not slow.all_started and self._pool.is_queue_empty:  # those at work on it may hang all together
            self._dispatch(slow, 1)
        for rows in self._in_flight:
            if isinstance(rows, _ReadTask) and rows.is_complete:
                return self._pop_complete(rows)
        return self._pop_partial([*self._late, *self._in_flight[:1]])

    def _pop_partial(self, slow: Sequence[_RowTask]) -> Loaded | None:
        """Return the rows that are done of an incomplete batch, copied, because threads still write to the batch's memory."""
        for rows in slow:
            if isinstance(rows, _ProbeTask):
                self._in_flight += self._start_reading(rows)
            elif isinstance(rows, _ReadTask) and (done := rows.pop_done()):
                return rows.batch(done, self._format.allocate), self._pop_failures(rows, done)
        return (None, self._pop_failures()) if self._failures else None

    def _pop_complete(self, rows: _ReadTask) -> Loaded:
        (self._late if rows in self._late else self._in_flight).remove(rows)
        done = rows.pop_done()
        return rows.batch(done, None), self._pop_failures(rows, done)

    def _pop_failures(
        self, rows: _RowTask | None = None, done: Sequence[int] = ()
    ) -> tuple[tuple[Utterance, Failure], ...]:
        """Return the failures among the given rows and those that have not been returned yet."""
        found, self._failures = self._failures, []
        return (*found, *(rows.failures_of(done) if rows is not None else ()))

    def _start_probed(self) -> None:
        """Allocate and start the batches whose files are all probed, if no more than `ahead` batches are being read."""
        for late in list(self._late):
            if isinstance(late, _ProbeTask) and late.is_complete:
                self._late.remove(late)
                self._in_flight += self._start_reading(late)
        for rows in list(self._in_flight):
            may_begin = rows is self._in_flight[0] or self._num_reading() <= self._ahead
            if isinstance(rows, _ProbeTask) and rows.is_complete and may_begin:
                place = self._in_flight.index(rows)
                self._in_flight[place : place + 1] = self._start_reading(rows)

    def _start_reading(self, rows: _ProbeTask) -> list[_ReadTask]:
        """Start a batch of the recordings that were probed since the last call, if any could be."""
        done = rows.pop_done()
        self._failures += rows.failures_of(done)
        plan = [rows.utterances[row] for row in done if row not in rows.failures]
        if not plan:
            return []
        reading = _ReadTask(plan, self._format)
        self._dispatch(reading, self._threads)
        return [reading]

    def _num_reading(self) -> int:
        return sum(isinstance(rows, _ReadTask) for rows in self._in_flight)

    def _dispatch(self, rows: _RowTask, threads: int) -> None:
        for _ in range(min(threads, len(rows.utterances))):
            self._pool.submit(partial(rows.run, self._pool, self._wakeup))


def _is_resampled_on_device(audio: AudioInfo, sample_rate: int, channel: int | None) -> bool:
    downmixed = audio.channels > 1 and channel is None
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
    places = [place for place, row in enumerate(group.rows) if row in numbers]
    if not places:
        return None
    samples_BSC = _gather_rows(group.samples_BSC, places, group.samples_BSC.shape[1], allocate)
    return NativeRows(group.rate, tuple(numbers[group.rows[place]] for place in places), group.begin, samples_BSC)


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
