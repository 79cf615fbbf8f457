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

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from threading import Event

import numpy as np

from fastscribe._system.processors import usable_processors
from fastscribe.audio.failures import to_failure
from fastscribe.audio.probe import probe
from fastscribe.errors import ModelClosed
from fastscribe.pipeline.batch_layout import Allocate, BatchLayout, ReadRow
from fastscribe.pipeline.interfaces import IDLE, Idle
from fastscribe.pipeline.prefetch import Group, Prefetcher
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.types import Batch, Failure, Hypothesis, Int64Array, Utterance

# An utterance that is not decoded, with its result: empty for digital silence.
Settled = tuple[Utterance, Failure | Hypothesis]
Loaded = tuple[Batch | None, tuple[Settled, ...]]  # no batch when none of its utterances is to be decoded

_MAX_THREADS = 32
_CHECK_INTERVAL_S = 0.5  # a wait for a batch looks this often whether the model was closed
REMOTE_THREADS = 32  # they wait for answers, whatever the number of processors


def default_threads() -> int:
    """Return the number of reader threads: the usable processors, less two for the thread that drives the device; 2 to 32."""
    return min(max(2, usable_processors() - 2), _MAX_THREADS)


def load_batches(
    plans: Iterable[Sequence[Utterance] | Idle],
    *,
    pool: ReplacingThreadPool,
    sample_rate: int,
    ahead: int,
    allocate: Allocate = np.empty,
    native: bool = False,
    least_samples: int = 0,
) -> Generator[Loaded | Idle, None, None]:
    """Yield a batch for each plan, in order unless a file is slow (pipeline/prefetch.py), and prefetch the next ones.

    A slow file follows in a batch of its own. At the end all slow files are waited for. Utterances of unopened recordings
    (AudioInfo.unread) are replaced by utterances with the real lengths.

    IDLE among the plans means that the next plan may take long: batches in flight are yielded first, then IDLE. Closing the
    generator drops pending work; a read in progress ends in the background. A recording with several failed utterances has a
    Failure for each.

    Args:
        plans: The utterances of each batch. The caller's thread advances it.
        pool: Reads the files. Another thread may close it.
        sample_rate: The model's rate in Hz.
        ahead: Maximum number of batches that are prefetched beside the caller's.
        allocate: allocate(shape, dtype) returns a batch's memory. Called by the caller's thread.
        native: Leave resampling and downmix to the device (types.NativeRows).
        least_samples: As ModelFacts.least_samples.

    Yields:
        (batch, settled): batch is None if none of its utterances is to be decoded; settled pairs each utterance that could
        not be read with its Failure, and each one of digital silence with an empty Hypothesis.

    Raises:
        ModelClosed: The pool was closed.
    """
    assert ahead > 0
    wakeup = Event()
    reads = Prefetcher[_ReadGroup](pool, wakeup.set)
    try:
        for plan in plans:
            if plan is not IDLE:
                reads.submit(_ReadGroup(plan, BatchLayout.of(plan, sample_rate, native, least_samples), allocate))
            while (plan is IDLE or len(reads) > ahead) and (loaded := _next(reads, pool, wakeup)) is not None:
                yield loaded
            if plan is IDLE:
                yield IDLE
        while (loaded := _next(reads, pool, wakeup, at_end=True)) is not None:
            yield loaded
    finally:
        reads.close()


class RowGroup(Group):
    """A batch whose rows are read, a row a call.

    Attributes:
        utterances: Of the batch, with what reading them has shown.
        rows: Those that are read.
    """

    def __init__(self, plan: Sequence[Utterance]) -> None:
        super().__init__(len(plan))
        self.utterances = list(plan)
        self.rows: dict[int, ReadRow] = {}

    def keep(self, index: int, row: ReadRow) -> None:
        """Keep a row that was read."""
        self.rows[index] = row
        self.utterances[index] = row.noted(self.utterances[index])

    def failure(self, row: int) -> Failure:
        """Return the Failure of a row that could not be read."""
        audio = self.utterances[row].audio
        return to_failure(audio, "load" if audio.unread is None else "probe", self.errors[row])

    def lengths(self, rows: Sequence[int]) -> Int64Array:
        """Return the lengths [B] of some rows in samples at the model's rate."""
        return np.array([self.rows[row].length for row in rows], np.int64)

    def sort_out(self, done: Sequence[int]) -> tuple[list[int], list[tuple[int, Failure | Hypothesis]]]:
        """Return the rows that are to be decoded; and with their results those that could not be read, and digital silence."""
        failed = [(row, self.failure(row)) for row in done if row not in self.rows]
        silent = [(row, Hypothesis()) for row in done if row in self.rows and self.rows[row].is_silent]
        return [row for row in done if row in self.rows and not self.rows[row].is_silent], [*failed, *silent]


class _ReadGroup(RowGroup):
    """A batch whose rows threads fill."""

    def __init__(self, plan: Sequence[Utterance], layout: BatchLayout, allocate: Allocate) -> None:
        super().__init__(plan)
        self._arrays, self._allocate = layout.allocate(allocate), allocate

    def call(self, index: int) -> None:
        utterance = self.utterances[index]
        if utterance.audio.unread is not None:
            audio = probe(utterance.audio.unread)
            utterance = replace(utterance, audio=audio, start=0, num_samples=audio.num_samples)
            self.utterances[index] = utterance
        self.keep(index, self._arrays.read(index, utterance))

    def batch(self, rows: Sequence[int]) -> Batch | None:
        """Return a batch of some popped rows that are to be decoded; None if there is none.

        It is a copy while threads still write to the group's memory, else the group's memory, compacted in place.
        """
        if not rows:
            return None
        utterances = tuple(self.utterances[row] for row in rows)
        batch = self._arrays.batch(utterances, rows, self.lengths(rows), None if self.all_popped else self._allocate)
        cuts = tuple(self.rows[row].cuts for row in rows)
        return replace(batch, cuts=cuts) if any(cuts) else batch


def _next(
    reads: Prefetcher[_ReadGroup], pool: ReplacingThreadPool, wakeup: Event, at_end: bool = False
) -> Loaded | None:
    """Wait for the next batch and return it. None: only late ones are in flight; with `at_end`, none is."""
    while not pool.is_closed:
        wakeup.clear()
        if (part := reads.poll()) is not None:
            group, done = part
            rows, settled = group.sort_out(done)
            return group.batch(rows), tuple((group.utterances[row], result) for row, result in settled)
        if not len(reads) and not (at_end and reads.has_late):
            return None
        wakeup.wait(min(_CHECK_INTERVAL_S, reads.remaining_s()))
    raise ModelClosed
