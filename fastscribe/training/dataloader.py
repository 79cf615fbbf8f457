"""Load recordings as batches of samples. Threads decode ahead of the model; a cache of limited size keeps the samples.

The loader skips a recording that it cannot read and reports it once, so that a run of days goes on. It also skips a
recording that is much shorter than its manifest says, because its text does not match the audio.

Shapes: B batch, S samples, L samples of a room's impulse response.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch

from fastscribe.cuda.device import host_array
from fastscribe.errors import AudioError
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.training.backgrounds import BackgroundReader, probed, samples_of, shown_name
from fastscribe.training.buckets import Indices
from fastscribe.training.corpus import Example
from fastscribe.types import Int16Array

_BATCHES_AHEAD = 3
_MIN_S = 0.1
_MAX_SAMPLED = 40
_HOST = torch.device("cpu")
_MIN_SHARE = 0.8  # of the duration that the manifest gives


@dataclass(frozen=True)
class AudioBatch:
    """Examples, as the plan numbers them, with their samples, padded with zeros."""

    examples: Indices
    samples_BS: torch.Tensor  # int16
    lengths_B: torch.Tensor
    noise_BS: torch.Tensor | None = None  # recorded noise, int16; zeros in rows without it
    rooms_BL: torch.Tensor | None = None  # impulse responses of recorded rooms, as noise_BS

    def slice_rows(self, which: slice) -> AudioBatch:
        lengths_B = self.lengths_B[which]
        samples_BS = self.samples_BS[which, : int(lengths_B.max())]
        backgrounds = (rows if rows is None else rows[which] for rows in (self.noise_BS, self.rooms_BL))
        return AudioBatch(self.examples[which], samples_BS, lengths_B, *backgrounds)


class AudioDataLoader:
    """Reads `examples`, by their indices. Thread-safe.

    Recordings shorter than `min_duration_s` are skipped. Batches lie
    where copies to `device` are fast. `note` is called once with each recording that cannot be used, and why.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        sample_rate: int,
        cache_bytes: float,
        threads: int,
        say: Callable[[str], None],
        min_duration_s: float = 0.0,
        device: torch.device = _HOST,
        note: Callable[[Example, AudioError], None] = lambda example, error: None,
    ) -> None:
        self._examples, self._sample_rate, self._say, self._note = examples, sample_rate, say, note
        self._left_bytes, self._threads, self._min_duration_s = cache_bytes, threads, max(_MIN_S, min_duration_s)
        self._cached: dict[int, Int16Array] = {}
        self._is_tried, self._is_unreadable = bytearray(len(examples)), bytearray(len(examples))
        self.num_tried = self.num_unreadable = 0  # examples that it has tried to read, and those that it could not
        self._lock, self._device = Lock(), device

    def batches(
        self, plan: Sequence[Indices], drawn: Indices | None = None, backgrounds: BackgroundReader | None = None
    ) -> Iterator[AudioBatch]:
        """Yield the planned batches in order; a batch has no rows if none of its examples can be read.

        Args:
            plan: indices of examples, or positions in `drawn`.
            drawn: indices of examples; None: the plan has these.
            backgrounds: reads the noise and the rooms of the plan's positions; None: there are none.
        """

        def row(position: int) -> _Row | None:
            samples_S = self._samples(position if drawn is None else int(drawn[position]))
            if samples_S is None or backgrounds is None:
                return None if samples_S is None else _Row(samples_S)
            return _Row(samples_S, backgrounds.noise(position, len(samples_S)), backgrounds.room(position))

        pool, started = ReplacingThreadPool(self._threads, "decode"), deque[Future[AudioBatch]]()
        try:
            for indices in plan:
                started.append(_start(indices, row, pool, self._device))
                if len(started) > _BATCHES_AHEAD:
                    yield started.popleft().result()
            while started:
                yield started.popleft().result()
        finally:
            pool.close()

    def try_some(self) -> list[Example]:
        """Read up to _MAX_SAMPLED examples, spread over all, so that those that cannot be used are known before training.

        Returns:
            The others.
        """
        count = min(_MAX_SAMPLED, len(self._examples))
        chosen = np.unique(np.linspace(0, len(self._examples) - 1, count, dtype=np.int64))
        for _ in self.batches([chosen]):
            pass
        return [self._examples[index] for index in chosen.tolist() if not self._is_unreadable[index]]

    def _samples(self, index: int) -> Int16Array | None:
        cached = self._cached.get(index)
        if cached is not None or self._is_unreadable[index]:
            return cached
        try:
            samples_S = self._decode(self._examples[index])
        except AudioError as error:
            with self._lock:
                is_known = self._is_unreadable[index]
                self._count_tried(index)
                self.num_unreadable += not is_known
                self._is_unreadable[index] = True
            if not is_known:
                self._say(f"left out: {error}")
                self._note(self._examples[index], error)
            return None
        with self._lock:
            self._count_tried(index)
            if samples_S.nbytes <= self._left_bytes and index not in self._cached:
                self._left_bytes -= samples_S.nbytes
                self._cached[index] = samples_S
        return samples_S

    def _count_tried(self, index: int) -> None:
        self.num_tried += not self._is_tried[index]
        self._is_tried[index] = True

    def _decode(self, example: Example) -> Int16Array:
        audio = probed(example, example.offset_s, example.duration_s)
        lasts_s = audio.num_samples / audio.sample_rate
        if lasts_s < self._min_duration_s:
            problem = f"too short for the model, which needs {self._min_duration_s:.2f} s to learn from"
            raise AudioError(shown_name(example), f"lasts {lasts_s:.2f} s: {problem}")
        if lasts_s < _MIN_SHARE * example.duration_s:
            problem = f"the manifest gives {example.duration_s:.2f} s, so the text may be that of more than it has"
            raise AudioError(shown_name(example), f"lasts {lasts_s:.2f} s: {problem}")
        return samples_of(audio, self._sample_rate)


def is_cut_short(example: Example) -> bool:
    """True if an example is the start of a recording that goes on long after the duration stated; False if it is gone."""
    if example.offset_s:
        return False
    try:
        return example.duration_s < _MIN_SHARE * probed(example, 0.0, None).duration_s
    except AudioError:  # training says so, and leaves it out on all ranks
        return False


class _Row(NamedTuple):
    """The samples of a row, and the recorded noise [S] and room [L] to augment it with."""

    samples_S: Int16Array
    noise_S: Int16Array | None = None
    room_L: Int16Array | None = None


def _start(
    indices: Indices, row: Callable[[int], _Row | None], pool: ReplacingThreadPool, device: torch.device
) -> Future[AudioBatch]:
    """Let threads decode a batch's examples, one a task. The thread that is last assembles them."""
    batch, rows, num_done = Future[AudioBatch](), dict[int, _Row | None](), count(1)

    def decode(place: int) -> None:
        try:
            rows[place] = row(int(indices[place]))
            if next(num_done) == len(indices):
                batch.set_result(_assemble(indices, [rows[place] for place in range(len(indices))], device))
        except BaseException as error:  # for the consumer
            with suppress(InvalidStateError):  # another example has failed
                batch.set_exception(error)

    for place in range(len(indices)):
        pool.submit(partial(decode, place))
    if not len(indices):
        batch.set_result(_assemble(indices, [], device))
    return batch


def _assemble(indices: Indices, decoded: Sequence[_Row | None], device: torch.device) -> AudioBatch:
    rows = [(index, row) for index, row in zip(indices, decoded, strict=True) if row is not None]
    samples = [row.samples_S for _, row in rows]
    kept = np.array([index for index, _ in rows], dtype=np.int64)
    lengths_B = torch.tensor([len(samples_S) for samples_S in samples], dtype=torch.long)
    noise_BS = _padded_if_any([row.noise_S for _, row in rows], device)
    rooms_BL = _padded_if_any([row.room_L for _, row in rows], device)
    return AudioBatch(kept, padded(samples, device), lengths_B, noise_BS, rooms_BL)


def _padded_if_any(rows: Sequence[Int16Array | None], device: torch.device) -> torch.Tensor | None:
    if all(row is None for row in rows):
        return None
    return padded([np.zeros(0, np.int16) if row is None else row for row in rows], device)


def padded(rows: Sequence[Int16Array], device: torch.device) -> torch.Tensor:
    """Return waveforms as int16 rows [B, S], zero-padded to the longest, from where copies to the device are fast."""
    padded_BS = host_array((len(rows), max(map(len, rows), default=0)), np.dtype(np.int16), device)
    for padded_S, row_S in zip(padded_BS, rows, strict=True):
        padded_S[: len(row_S)], padded_S[len(row_S) :] = row_S, 0
    return torch.from_numpy(padded_BS)
