"""Utterances into batches of waveforms, read by threads while the device is busy.

Decoding and resampling release the interpreter lock, so threads are enough; what they do under the lock is kept small,
since it bounds the files a second of the whole process (benchmarks/host.py). A batch's memory is the caller's, so that it
may be pinned, and each thread decodes straight into its rows of it. Which utterances go together is batching's choice;
features are computed elsewhere. A file that cannot be read is left out of its batch and reported beside it.

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

PATIENCE_S = 0.2  # how long the caller waits for a batch of which nothing more is read
_MAX_THREADS = 32
_SPARE_PART = 32  # one of so many samples of a batch may be spare: padding that costs little


def default_threads() -> int:
    """Reader threads for the processors that this process may use: two are left to whoever drives the device."""
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
    """A batch for each plan, in order; while the caller works on one, up to `ahead` more are being read or lie ready.

    Where a file is slow and the caller waits, whole batches go ahead of its own, and its neighbours leave without it; it
    follows by itself. At the end it is waited for. Utterances of recordings that nobody has opened yet (AudioInfo.unread)
    are replaced by what their files hold.

    `allocate(shape, dtype)` gives each batch its memory and is called by the caller's thread, which advances `plans` too.
    An empty plan says that the next may be long in coming: what is under way is given out first, then (None, ()).
    With `native`, what would need resampling or downmixing is left to the device (types.NativeRows). Closing the
    generator drops what is pending; a read under way ends by itself in the background. A Failure names a recording, so
    one whose utterances fail together is reported once for each of them.
    """
    assert threads > 0 and ahead > 0
    loading = _Loading(_Format(sample_rate, channel, allocate, native), threads, ahead)
    try:
        for plan in plans:
            if plan:
                loading.begin(plan)
            while (loading.is_full or not plan) and (loaded := loading.take()) is not None:
                yield loaded
            if not plan:
                yield None, ()
        while (loaded := loading.take(to_the_end=True)) is not None:
            yield loaded
    finally:
        loading.close()


@dataclass(frozen=True)
class _Format:
    """What batches are made of."""

    sample_rate: int
    channel: int | None
    allocate: Allocate
    native: bool


class _Rows:
    """Utterances that threads work on, each by itself; which are done, and which have failed."""

    stage = ""

    def __init__(self, utterances: Sequence[Utterance]) -> None:
        self.utterances = list(utterances)
        self.failures: dict[int, Failure] = {}
        self._todo = deque(range(len(utterances)))
        self._done: list[int] = []
        self._num_given = 0  # of those done, what the caller has had

    def work(self, crew: ReplacingThreadPool, news: Event) -> None:
        """One of several threads' share: as many rows as it comes to."""
        while self._todo and not crew.is_closed:
            try:
                row = self._todo.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                self.do(row)
            except BaseException as error:  # one bad file must not stop the rest, whatever is wrong with it
                self.failures[row] = to_failure(self.utterances[row].audio, self.stage, error)
            self._done.append(row)
        news.set()

    def do(self, row: int) -> None:
        raise NotImplementedError

    @property
    def num_done(self) -> int:
        return len(self._done)

    @property
    def all_begun(self) -> bool:
        return not self._todo

    @property
    def is_whole(self) -> bool:
        return len(self._done) == len(self.utterances)

    def take_done(self) -> list[int]:
        """Rows that are done, each once."""
        rows = self._done[self._num_given :]
        self._num_given += len(rows)
        return sorted(rows)

    def failed(self, rows: Sequence[int]) -> list[tuple[Utterance, Failure]]:
        return [(self.utterances[row], self.failures[row]) for row in rows if row in self.failures]


class _Looking(_Rows):
    """Utterances of which some are known from a manifest alone: their files are looked at before memory is laid out."""

    stage = "probe"

    def do(self, row: int) -> None:
        unread = self.utterances[row].audio.unread
        if unread is not None:
            audio = probe(unread)
            self.utterances[row] = Utterance(audio, 0, audio.num_samples)


class _Reading(_Rows):
    """A batch that threads are filling, each its own rows."""

    stage = "load"

    def __init__(self, plan: Sequence[Utterance], format: _Format) -> None:
        """Takes the memory for it, by the lengths that the files' headers promise."""
        super().__init__(plan)
        self._rate, self._channel = format.sample_rate, format.channel
        groups: dict[tuple[int, int], list[int]] = {}
        types = set()
        for row, utterance in enumerate(plan):
            audio = utterance.audio
            if format.native and _is_for_device(audio, self._rate, self._channel):
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
        self._native_places = {row: (group, index) for group in self.native for index, row in enumerate(group.rows)}
        self.samples_BS = format.allocate((len(plan), longest), dtype)
        self.lengths_B = np.zeros(len(plan), np.int64)

    def do(self, row: int) -> None:
        row_S, utterance, length = self.samples_BS[row], self.utterances[row], 0
        place = self._native_places.get(row)
        if place is None:
            length = read_into(row_S, utterance, self._rate, self._channel)
        row_S[length:] = 0
        if place is not None:
            group, index = place
            length = read_native_into(group.samples_BSC[index], group.begin, utterance, self._rate, self._channel)
        self.lengths_B[row] = length

    def batch(self, rows: Sequence[int], allocate: Allocate | None) -> Batch | None:
        """Of those rows that have not failed, made within the memory it has if no thread uses that any more
        (`allocate` is None), else a copy."""
        kept = [row for row in rows if row not in self.failures]
        if not kept:
            return None
        lengths_B = self.lengths_B[kept]
        width = _width(int(lengths_B.max()), self.samples_BS.shape[1])
        samples_BS = _together(self.samples_BS, kept, width, allocate)
        numbers = {row: number for number, row in enumerate(kept)}
        native = (_renumbered(group, numbers, allocate) for group in self.native)
        utterances = tuple(self.utterances[row] for row in kept)
        return Batch(utterances, samples_BS, lengths_B, tuple(group for group in native if group is not None))


class _Loading:
    """Batches under way, and the threads that work on them. Used by the caller's thread."""

    def __init__(self, format: _Format, threads: int, ahead: int) -> None:
        self._format, self._threads, self._ahead = format, threads, ahead
        self._crew = ReplacingThreadPool(threads, "read")
        self._news = Event()  # some thread has come to the end of its share
        self._under_way: list[_Rows] = []  # oldest first
        self._late: list[_Rows] = []  # let past: threads are at all that is missing, so there are no more than threads
        self._failures: list[tuple[Utterance, Failure]] = []  # of files that nobody could open, not yet given out

    def close(self) -> None:
        self._crew.close()

    @property
    def is_full(self) -> bool:
        return self._num_reading() > self._ahead or len(self._under_way) > 2 * self._ahead

    def begin(self, plan: Sequence[Utterance]) -> None:
        is_unread = any(utterance.audio.unread is not None for utterance in plan)
        rows = _Looking(plan) if is_unread else _Reading(plan, self._format)
        self._under_way.append(rows)
        self._set_to_work(rows, self._threads)

    def take(self, to_the_end: bool = False) -> Loaded | None:
        """The next batch. None: nothing but what is late is under way, or `to_the_end`, nothing at all."""
        watched: tuple[_Rows, int] | None = None
        deadline = 0.0
        while True:
            self._news.clear()
            self._read_what_is_known()
            for rows in (*self._late, *self._under_way[:1]):
                if isinstance(rows, _Reading) and rows.is_whole:
                    return self._give(rows)
            if not self._under_way and not (to_the_end and self._late):
                loaded = self._part_of(self._late)
                if loaded is not None or not self._under_way:
                    return loaded
                continue
            oldest = (self._under_way or self._late)[0]
            if watched != (oldest, oldest.num_done):
                watched, deadline = (oldest, oldest.num_done), monotonic() + PATIENCE_S
            if not self._news.wait(max(0.0, deadline - monotonic())) and watched == (oldest, oldest.num_done):
                loaded = self._instead_of(oldest)
                if loaded is not None:
                    return loaded
                watched = None

    def _instead_of(self, slow: _Rows) -> Loaded | None:
        """What can be given out although nothing has become of the oldest batch for a while."""
        if slow in self._under_way and slow.all_begun:
            self._under_way.remove(slow)
            self._late.append(slow)
        elif not slow.all_begun and self._crew.has_caught_up:  # those at work on it may hang all together
            self._set_to_work(slow, 1)
        for rows in self._under_way:
            if isinstance(rows, _Reading) and rows.is_whole:
                return self._give(rows)
        return self._part_of([*self._late, *self._under_way[:1]])

    def _part_of(self, slow: Sequence[_Rows]) -> Loaded | None:
        """What is there of a batch that misses some, in memory of its own: threads still write to the batch's."""
        for rows in slow:
            if isinstance(rows, _Looking):
                self._under_way += self._known(rows)
            elif isinstance(rows, _Reading) and (done := rows.take_done()):
                return rows.batch(done, self._format.allocate), self._failed(rows, done)
        return (None, self._failed()) if self._failures else None

    def _give(self, rows: _Reading) -> Loaded:
        (self._late if rows in self._late else self._under_way).remove(rows)
        done = rows.take_done()
        return rows.batch(done, None), self._failed(rows, done)

    def _failed(self, rows: _Rows | None = None, done: Sequence[int] = ()) -> tuple[tuple[Utterance, Failure], ...]:
        """The failures among those rows, and what else has failed and has not been told."""
        found, self._failures = self._failures, []
        return (*found, *(rows.failed(done) if rows is not None else ()))

    def _read_what_is_known(self) -> None:
        """Where all files of a batch have been looked at, it gets its memory, unless enough batches are being read."""
        for late in list(self._late):
            if isinstance(late, _Looking) and late.is_whole:
                self._late.remove(late)
                self._under_way += self._known(late)
        for rows in list(self._under_way):
            may_begin = rows is self._under_way[0] or self._num_reading() <= self._ahead
            if isinstance(rows, _Looking) and rows.is_whole and may_begin:
                place = self._under_way.index(rows)
                self._under_way[place : place + 1] = self._known(rows)

    def _known(self, rows: _Looking) -> list[_Reading]:
        """A batch of those that have been looked at since the last time, if any could be."""
        done = rows.take_done()
        self._failures += rows.failed(done)
        plan = [rows.utterances[row] for row in done if row not in rows.failures]
        if not plan:
            return []
        reading = _Reading(plan, self._format)
        self._set_to_work(reading, self._threads)
        return [reading]

    def _num_reading(self) -> int:
        return sum(isinstance(rows, _Reading) for rows in self._under_way)

    def _set_to_work(self, rows: _Rows, threads: int) -> None:
        for _ in range(min(threads, len(rows.utterances))):
            self._crew.submit(partial(rows.work, self._crew, self._news))


def _is_for_device(audio: AudioInfo, sample_rate: int, channel: int | None) -> bool:
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
    """Of the batch. A promise that was an estimate is a little off; moving all rows together pays only where it was a lot."""
    return promised if promised - longest <= promised // _SPARE_PART else longest


def _renumbered(group: NativeRows, numbers: Mapping[int, int], allocate: Allocate | None) -> NativeRows | None:
    """Those of its rows that have a new number in the batch; None if that is none of them."""
    places = [place for place, row in enumerate(group.rows) if row in numbers]
    if not places:
        return None
    samples_BSC = _together(group.samples_BSC, places, group.samples_BSC.shape[1], allocate)
    return NativeRows(group.rate, tuple(numbers[group.rows[place]] for place in places), group.begin, samples_BSC)


def _together(samples: SampleArray, rows: Sequence[int], width: int, allocate: Allocate | None) -> SampleArray:
    """samples[rows, :width] in memory from `allocate`, or if that is None, within its own: contiguous, and pinned where
    that is, so that copies to a device need not wait."""
    shape = (len(rows), width, *samples.shape[2:])
    if allocate is not None:
        together = allocate(shape, samples.dtype)
    elif shape == samples.shape:
        return samples
    else:
        together = samples.reshape(-1)[: math.prod(shape)].reshape(shape)
    for index, row in enumerate(rows):
        together[index] = samples[row, :width]
    return together


def collate(utterances: Sequence[Utterance], waves: Sequence[SampleArray]) -> Batch:
    """The batch of waves that are read already; what load_batches() makes is the same, by a test.

    Zero-padded to the longest wave: int16 when all are, else float32 with the int16 ones scaled to [-1, 1].
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
