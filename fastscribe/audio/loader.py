"""Utterances into batches of waveforms, read by threads while the device is busy.

Decoding and resampling release the interpreter lock, so threads are enough; what they do under the lock is kept small,
since it bounds the files a second of the whole process (scripts/bench_host). A batch's memory is the caller's, so that it
may be pinned, and each thread decodes straight into its rows of it. Which utterances go together is batching's choice;
features are computed elsewhere. A file that cannot be read is left out of its batch and reported beside it.

Dimensions: B batch, S samples, C channels.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

import numpy as np

from fastscribe.audio.rates import context_samples, is_plain_ratio, output_length
from fastscribe.audio.read import read_into, read_native_into, sample_type
from fastscribe.audio.source import to_failure
from fastscribe.types import AudioInfo, Batch, Failure, NativeRows, Utterance

# No batch when none of its utterances could be read; a failure comes with the utterance that it cost.
Loaded = tuple[Batch | None, tuple[tuple[Utterance, Failure], ...]]
Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]

_ROWS_A_TASK = 8  # read by one thread one after another; handing over a task costs as much as opening a file
_MOST_THREADS = 32
_SPARE_PART = 32  # one of so many samples of a batch may be spare: padding that costs little


def default_threads() -> int:
    """Reader threads for the processors that this process may use: two are left to whoever drives the device."""
    return min(max(2, _usable_processors() - 2), _MOST_THREADS)


def _usable_processors() -> int:
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:  # a container's share, "max 100000" for no limit
            quota, period = file.read().split()
        return known if quota == "max" else max(1, min(known, int(quota) // int(period)))
    except (OSError, ValueError):
        return known


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

    `allocate(shape, dtype)` gives each batch its memory and is called by the caller's thread, which advances `plans` too.
    An empty plan says that the next may be long in coming: what is under way is given out first, then (None, ()).
    With `native`, what would need resampling or downmixing is left to the device (types.NativeRows). Closing the
    generator drops what is pending; a read under way ends by itself in the background. A Failure names a recording, so
    one whose utterances fail together is reported once for each of them.
    """
    assert threads > 0 and ahead > 0
    pool = ThreadPoolExecutor(threads, thread_name_prefix="read")
    closed = Event()
    waiting: deque[tuple[_Reading, list[Future[None]]]] = deque()
    try:
        for plan in plans:
            if not plan:
                while waiting:
                    yield _finished(*waiting.popleft())
                yield None, ()
                continue
            reading = _begin(plan, sample_rate, channel, allocate, native)
            step = max(1, min(_ROWS_A_TASK, len(plan) // threads))
            tasks = [range(row, min(row + step, len(plan))) for row in range(0, len(plan), step)]
            waiting.append((reading, [pool.submit(reading.read_rows, rows, closed) for rows in tasks]))
            if len(waiting) > ahead:
                yield _finished(*waiting.popleft())
        while waiting:
            yield _finished(*waiting.popleft())
    finally:
        closed.set()
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class _Reading:
    """A batch that threads are filling, each its own rows."""

    utterances: Sequence[Utterance]
    sample_rate: int
    channel: int | None
    samples_BS: np.ndarray
    lengths_B: np.ndarray
    native: list[NativeRows]
    native_rows: dict[int, tuple[NativeRows, int]]  # by row of the batch: where it lies in `native`
    failures: dict[int, Failure] = field(default_factory=dict)

    def read_rows(self, rows: range, closed: Event) -> None:
        for row in rows:
            if closed.is_set():
                return
            try:
                self.lengths_B[row] = self._read_row(row)
            except Exception as error:  # one bad file must not stop the rest, whatever is wrong with it
                self.failures[row] = to_failure(self.utterances[row].audio, "load", error)

    def _read_row(self, row: int) -> int:
        row_S, utterance, length = self.samples_BS[row], self.utterances[row], 0
        place = self.native_rows.get(row)
        if place is None:
            length = read_into(row_S, utterance, self.sample_rate, self.channel)
        row_S[length:] = 0
        if place is not None:
            group, index = place
            rows_SC = group.samples_BSC[index]
            length = read_native_into(rows_SC, group.begin, utterance, self.sample_rate, self.channel)
        return length


def _begin(
    plan: Sequence[Utterance], sample_rate: int, channel: int | None, allocate: Allocate, native: bool
) -> _Reading:
    """The memory for a batch, by the lengths that the files' headers promise."""
    groups: dict[tuple[int, int], list[int]] = {}
    types = set()
    for row, utterance in enumerate(plan):
        audio = utterance.audio
        if native and _is_for_device(audio, sample_rate, channel):
            groups.setdefault((audio.sample_rate, audio.channels if channel is None else 1), []).append(row)
        else:
            types.add(sample_type(audio, sample_rate, channel))
    longest = max(output_length(item.num_samples, item.audio.sample_rate, sample_rate) for item in plan)
    dtype = np.dtype(np.float32 if np.dtype(np.float32) in types else np.int16)
    made = [
        _native_rows(plan, rate, rows, channels, sample_rate, allocate) for (rate, channels), rows in groups.items()
    ]
    places = {row: (group, index) for group in made for index, row in enumerate(group.rows)}
    lengths_B = np.zeros(len(plan), np.int64)
    return _Reading(plan, sample_rate, channel, allocate((len(plan), longest), dtype), lengths_B, made, places)


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


def _finished(reading: _Reading, tasks: Iterable[Future[None]]) -> Loaded:
    for task in tasks:
        task.result()
    failures = tuple((reading.utterances[row], failure) for row, failure in sorted(reading.failures.items()))
    kept = [row for row in range(len(reading.utterances)) if row not in reading.failures]
    if not kept:
        return None, failures
    lengths_B = reading.lengths_B[kept]
    samples_BS = _moved_together(reading.samples_BS, kept, _width(int(lengths_B.max()), reading.samples_BS.shape[1]))
    numbers = {row: number for number, row in enumerate(kept)}
    native = tuple(group for group in (_renumbered(group, numbers) for group in reading.native) if group.rows)
    return Batch(tuple(reading.utterances[row] for row in kept), samples_BS, lengths_B, native), failures


def _width(longest: int, promised: int) -> int:
    """Of the batch. A promise that was an estimate is a little off; moving all rows together pays only where it was a lot."""
    return promised if promised - longest <= promised // _SPARE_PART else longest


def _renumbered(group: NativeRows, numbers: Mapping[int, int]) -> NativeRows:
    """Those of its rows that have a new number in the batch, within the caller's memory."""
    places = [place for place, row in enumerate(group.rows) if row in numbers]
    samples_BSC = _moved_together(group.samples_BSC, places, group.samples_BSC.shape[1])
    return NativeRows(group.rate, tuple(numbers[group.rows[place]] for place in places), group.begin, samples_BSC)


def _moved_together(samples: np.ndarray, rows: Sequence[int], width: int) -> np.ndarray:
    """samples[rows, :width], made within its own memory: contiguous, and pinned where that is, so that copies to a device
    need not wait."""
    if len(rows) == len(samples) and width == samples.shape[1]:
        return samples
    shape = (len(rows), width, *samples.shape[2:])
    together = samples.reshape(-1)[: math.prod(shape)].reshape(shape)
    for index, row in enumerate(rows):
        together[index] = samples[row, :width]
    return together


def collate(utterances: Sequence[Utterance], waves: Sequence[np.ndarray]) -> Batch:
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
