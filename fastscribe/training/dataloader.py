"""Load recordings as batches of samples. Threads decode ahead of the model; a cache of limited size keeps the samples.

The loader skips a recording that it cannot read and reports it once, so that a run of days goes on. It also skips a
recording that is much shorter than its manifest says, because its text does not match the audio.

Shapes: B batch, S samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event, Lock

import numpy as np
import torch

from fastscribe.audio.file_part import FilePart
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.cuda.device import host_array
from fastscribe.errors import AudioError
from fastscribe.pipeline.prefetch import Group, Prefetcher
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.training.buckets import Indices
from fastscribe.training.corpus import Example
from fastscribe.types import File, Float32Array, Int16Array, Source

_BATCHES_AHEAD = 3
_MIN_S = 0.1
_HOST = torch.device("cpu")
_MIN_SHARE = 0.8  # of the duration that the manifest gives


@dataclass(frozen=True)
class AudioBatch:
    """Examples, as the plan numbers them, with their samples, padded with zeros."""

    examples: Indices
    samples_BS: torch.Tensor  # int16
    lengths_B: torch.Tensor

    def slice_rows(self, which: slice) -> AudioBatch:
        lengths_B = self.lengths_B[which]
        return AudioBatch(self.examples[which], self.samples_BS[which, : int(lengths_B.max())], lengths_B)


class AudioDataLoader:
    """Reads `examples`, by their indices. Thread-safe.

    Recordings shorter than `min_duration_s` are skipped. Batches lie
    where copies to `device` are fast.
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
    ) -> None:
        self._examples, self._sample_rate, self._say = examples, sample_rate, say
        self._left_bytes, self._threads, self._min_duration_s = cache_bytes, threads, max(_MIN_S, min_duration_s)
        self._cached: dict[int, Int16Array] = {}
        self._is_tried, self._is_unreadable = bytearray(len(examples)), bytearray(len(examples))
        self.num_tried = self.num_unreadable = 0  # examples that it has tried to read, and those that it could not
        self._lock, self._device = Lock(), device

    def batches(self, plan: Sequence[Indices], drawn: Indices | None = None) -> Iterator[AudioBatch]:
        """Yield the planned batches in order; a batch has no rows if none of its examples can be read.

        Args:
            plan: indices of examples, or positions in `drawn`.
            drawn: indices of examples; None: the plan has these.
        """
        samples = self._samples if drawn is None else lambda position: self._samples(int(drawn[position]))
        wakeup, pool = Event(), ReplacingThreadPool(self._threads, "decode")
        prefetcher = Prefetcher[_BatchGroup](pool, wakeup.set, in_order=True)
        try:
            for indices in plan:
                prefetcher.submit(_BatchGroup(indices, samples, self._device))
                if len(prefetcher) > _BATCHES_AHEAD:
                    yield _next_batch(prefetcher, wakeup)
            while len(prefetcher):
                yield _next_batch(prefetcher, wakeup)
        finally:
            pool.close()

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
        cut = example.offset_s or None, example.duration_s
        file: File = example.path
        if example.num_bytes:
            file = FilePart(example.path, example.start, example.num_bytes)
        audio = probe(Source(example.path, file, example.path, None, *cut))
        lasts_s = audio.num_samples / audio.sample_rate
        if lasts_s < max(self._min_duration_s, _MIN_SHARE * example.duration_s):
            promised = f"the manifest gives {example.duration_s:.2f} s, and {self._min_duration_s:.2f} s is the least"
            raise AudioError(example.path, f"lasts {lasts_s:.2f} s: {promised}")
        samples_S = read(audio, 0, audio.num_samples, sample_rate=self._sample_rate, channel=example.channel)
        if samples_S.dtype == np.int16:
            return samples_S.astype(np.int16, copy=False)
        scaled_S: Float32Array = np.clip(np.rint(samples_S * 32768.0), -32768, 32767)
        return scaled_S.astype(np.int16)


class _BatchGroup(Group):
    """A batch whose examples threads decode, one a call. The thread that is last assembles them."""

    def __init__(self, indices: Indices, samples: Callable[[int], Int16Array | None], device: torch.device) -> None:
        super().__init__(len(indices))
        self.batch = None if len(indices) else _assemble(indices, [], device)
        self._indices, self._samples, self._device = indices, samples, device
        self._decoded: list[Int16Array | None] = [None] * len(indices)
        self._num_left, self._lock = len(indices), Lock()

    def call(self, index: int) -> None:
        try:
            self._decoded[index] = self._samples(int(self._indices[index]))
        finally:
            with self._lock:
                self._num_left -= 1
                is_last = not self._num_left
            if is_last:
                self.batch = _assemble(self._indices, self._decoded, self._device)


def _next_batch(prefetcher: Prefetcher[_BatchGroup], wakeup: Event) -> AudioBatch:
    while (part := prefetcher.poll()) is None:
        wakeup.wait()
        wakeup.clear()
    group, _ = part
    for error in group.errors.values():
        raise error
    assert group.batch is not None
    return group.batch


def _assemble(indices: Indices, decoded: Sequence[Int16Array | None], device: torch.device) -> AudioBatch:
    rows = [(index, samples_S) for index, samples_S in zip(indices, decoded, strict=True) if samples_S is not None]
    lengths = [len(samples_S) for _, samples_S in rows]
    samples_BS = host_array((len(rows), max(lengths, default=0)), np.dtype(np.int16), device)
    for row_S, (_, samples_S) in zip(samples_BS, rows, strict=True):
        row_S[: len(samples_S)], row_S[len(samples_S) :] = samples_S, 0
    kept = np.array([index for index, _ in rows], dtype=np.int64)
    return AudioBatch(kept, torch.from_numpy(samples_BS), torch.tensor(lengths, dtype=torch.long))
