"""Recordings as batches of samples, decoded by threads ahead of the model and kept in memory as far as they may be.

A recording that cannot be read is left out of its batch, and said once; a run of days does not end for it.

Shapes: B batch, S samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch

from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.audio.source import Source
from fastscribe.errors import AudioError
from fastscribe.training.buckets import Indices
from fastscribe.training.manifest import Example

_BATCHES_AHEAD = 3


@dataclass(frozen=True)
class Rows:
    """Some examples with their samples, zero beyond each row's length."""

    examples: Indices
    samples_BS: torch.Tensor  # int16
    lengths_B: torch.Tensor


class Feed:
    """Reads `examples`, by their indices. Thread-safe."""

    def __init__(
        self,
        examples: Sequence[Example],
        sample_rate: int,
        cache_bytes: float,
        threads: int,
        say: Callable[[str], None],
    ) -> None:
        self._examples, self._sample_rate, self._say = examples, sample_rate, say
        self._left_bytes, self._threads = cache_bytes, threads
        self._cached: dict[int, np.ndarray] = {}
        self._unreadable: set[int] = set()
        self._lock = Lock()

    def batches(self, plan: Sequence[Indices]) -> Iterator[Rows]:
        """In order; a batch of nothing readable has no rows."""
        with ThreadPoolExecutor(self._threads, "decode") as pool:
            ahead: deque[tuple[Indices, list[Future[np.ndarray | None]]]] = deque()
            for indices in plan:
                ahead.append((indices, [pool.submit(self._samples, int(index)) for index in indices]))
                if len(ahead) > _BATCHES_AHEAD:
                    yield _rows(*ahead.popleft())
            while ahead:
                yield _rows(*ahead.popleft())

    def _samples(self, index: int) -> np.ndarray | None:
        cached = self._cached.get(index)
        if cached is not None or index in self._unreadable:
            return cached
        example = self._examples[index]
        try:
            samples_S = self._decoded(example)
        except AudioError as error:
            with self._lock:
                self._unreadable.add(index)
            self._say(f"left out: {error}")
            return None
        with self._lock:
            if samples_S.nbytes <= self._left_bytes and index not in self._cached:
                self._left_bytes -= samples_S.nbytes
                self._cached[index] = samples_S
        return samples_S

    def _decoded(self, example: Example) -> np.ndarray:
        cut = example.offset_s or None, example.duration_s
        audio = probe(Source(example.path, example.path, example.path, None, *cut))
        samples_S = read(audio, 0, audio.num_samples, sample_rate=self._sample_rate, channel=None)
        if samples_S.dtype == np.int16:
            return samples_S
        return np.clip(np.rint(samples_S * 32768.0), -32768, 32767).astype(np.int16)


def _rows(indices: Indices, futures: Sequence[Future[np.ndarray | None]]) -> Rows:
    read_rows = [(index, future.result()) for index, future in zip(indices, futures, strict=True)]
    rows = [(index, samples_S) for index, samples_S in read_rows if samples_S is not None]
    lengths = [len(samples_S) for _, samples_S in rows]
    samples_BS = np.zeros((len(rows), max(lengths, default=0)), np.int16)
    for row_S, (_, samples_S) in zip(samples_BS, rows, strict=True):
        row_S[: len(samples_S)] = samples_S
    kept = np.array([index for index, _ in rows], dtype=np.int64)
    return Rows(kept, torch.from_numpy(samples_BS), torch.tensor(lengths, dtype=torch.long))
