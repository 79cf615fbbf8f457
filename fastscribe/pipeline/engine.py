"""The engine: batches in, hypotheses out, with the stages of several batches overlapped on one device.

    copy stream     samples to the device, resampled | batch i+2
    model stream    features, encoder                | batch i+1
    decode stream   decoder, results to the host     | batch i      (high priority: its short steps wait for each other)
    host            text of batch i-1, in the caller between two results

The host submits the encoder of batch i+1 before it waits for the results of batch i, and it reads no device value before
the event that follows it. So a GPU always has queued work. Attention decoders do read values between stretches of a batch,
while the next batch is encoded; beam search reads them at every step, and has not been run on a GPU yet. One thread drives
everything on purpose: a second Python thread that assembles text would delay every kernel launch (docs/log.md, "who
launches kernels").

On a CPU, push() returns when its batch is done. Its rows are divided into parts that run side by side, each through all stages
on its own cores: two threads that share one operator after the other wait for each other. A failed batch is split in two and
retried; a transcription's that ran out of memory also shrinks the budget of later batches.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import TypeVar

import numpy as np
import torch

from fastscribe._system.standard_streams import log_to_stderr
from fastscribe._system.thread_shares import equal_parts, set_own_threads, share
from fastscribe.audio.failures import drop_frames
from fastscribe.config import DEFAULT_MAX_UTTERANCE_S
from fastscribe.cuda.device import (
    UNPINNED,
    Event,
    StageTimes,
    recover,
    shared_stream,
    synchronize,
    to_host,
)
from fastscribe.errors import DeviceFailed, ModelOutputError, UsageError, is_out_of_memory
from fastscribe.fast_paths import RefusedPath
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.text.hypothesis_columns import problems_of
from fastscribe.types import WORDS, Batch, Frames, Hypothesis, Int32Array, Int64Array

S = TypeVar("S")
T = TypeVar("T")
# Failed rows form batches of their own, with their error.
Outcome = tuple[Batch, "Sequence[Hypothesis] | Exception"]
_Result = tuple[StageTimes, Sequence[Hypothesis]] | Exception  # of a part of a batch

_MAX_DECODING = 2  # batches in the decoder; each holds its encoder output
_MIN_PART_S = 8.0  # audio of a part of a batch on a CPU: each part reads all weights
# Twice the threads take half the time times this; 1.12 and 1.26 were measured (docs/log.md, 2026-11-24).
_DOUBLING_COST = 1.2
_LOCKS: dict[int, Lock] = {}  # by process: a fork lacks the thread that holds its parent's


def _threads_lock() -> Lock:
    """Return this process's lock. A thread holds it to change torch's number of threads, or to read its own for good."""
    return _LOCKS.setdefault(os.getpid(), Lock())


@dataclass(frozen=True)
class _Encoded:
    """A batch whose encoder output is being computed. It references every tensor that a stream may still read."""

    batch: Batch
    samples_BS: torch.Tensor
    lengths_B: torch.Tensor
    frames: Frames
    times: StageTimes
    ready: Event


@dataclass(frozen=True)
class _Decoded:
    """A batch whose packed results are on their way to the host."""

    encoded: _Encoded
    packed: torch.Tensor
    packed_on_host: Int32Array
    ready: Event


class Engine:
    """Runs a Recognizer's stages for a stream of batches on one device. Not thread-safe.

    Args:
        recognizer: The model, decoder and device.
        say: Called with one line if host memory cannot be pinned.
    """

    def __init__(self, recognizer: Recognizer, say: Callable[[str], None] = log_to_stderr) -> None:
        self.recognizer = recognizer
        self._say, self._num_unpinned = say, UNPINNED.count
        self.device = recognizer.device
        self.budget = Budget(math.inf)
        self.stopwatch = Stopwatch()
        overlap = self.device.type != "cpu"
        self._max_encoded, self._max_decoded = (1, _MAX_DECODING) if overlap else (0, 0)
        self._copy, self._model, self._decode = (
            shared_stream(self.device, role) for role in ("copy", "model", "decode")
        )
        synchronize(self.device)  # the weights were copied on another stream
        self._encoded: deque[_Encoded] = deque()
        self._decoded: deque[_Decoded] = deque()

    @property
    def max_in_flight(self) -> int:
        """Batches that are pushed before the results of the first come out, without that one."""
        return self._max_encoded + self._max_decoded

    def stream(self, batches: Iterable[Batch]) -> Iterator[Outcome]:
        """Yield the results of all batches: in order, except for the parts of a batch that was retried."""
        for batch in batches:
            yield from self.push(batch)
        yield from self.drain()

    def push(self, batch: Batch) -> Iterator[Outcome]:
        """Submit a batch and yield the results that are ready: of earlier batches, on a CPU of this one.

        Raises:
            DeviceFailed: The GPU is lost, or the machine refuses memory.
            UsageError: A graph mode that the user names is unavailable.
        """
        with _threads_lock() if self.device.type == "cpu" else nullcontext():
            parts = self._parts(batch)
            results = self._run_side_by_side(batch, parts) if len(parts) > 1 else []
        if results:
            yield from self._gather(batch, parts, results)
            return
        encoded = _attempt(self._encode, batch)
        if isinstance(encoded, Exception):
            was_alone = self._is_idle()
            yield from self.drain()
            yield from self._retry_in_halves(batch, encoded, was_alone)
            return
        self._encoded.append(encoded)
        yield from self._finish(self._max_encoded, self._max_decoded)

    def _parts(self, batch: Batch) -> list[list[int]]:
        """Return the rows of parts with about as many samples; one part unless the device is a CPU's cores."""
        if self.device.type != "cpu" or not self.recognizer.stages(batch).runs_in_parts:
            return equal_shares(batch.lengths_B, 1)
        worthwhile = int(batch.lengths_B.sum() / (_MIN_PART_S * self.recognizer.sample_rate))
        return fastest_shares(batch.lengths_B, worthwhile, torch.get_num_threads())

    def _run_side_by_side(self, batch: Batch, rows: list[list[int]]) -> list[_Result]:
        """Run the parts of a batch, each in a thread with an equal number of the threads that operators take.

        torch knows one number of threads for those to come, so push() holds the lock while it is another one.
        """
        parts = [select_rows(batch, part) for part in rows]
        results: list[_Result] = [RuntimeError("not run")] * len(parts)
        num_threads = torch.get_num_threads()

        def work(start: int, stop: int) -> None:
            set_own_threads(max(1, num_threads // len(parts)), num_threads)
            for number in range(start, stop):
                results[number] = _attempt(self._all_stages, parts[number])

        try:
            share(equal_parts(len(parts), len(parts)), work, level=1)
        finally:
            torch.set_num_threads(num_threads)
        return results

    def _gather(self, batch: Batch, rows: list[list[int]], results: Sequence[_Result]) -> Iterator[Outcome]:
        """Yield what the parts of a batch gave; parts that failed are retried."""
        failed: list[tuple[Batch, Exception]] = []
        found: dict[int, Hypothesis] = {}
        for numbers, result in zip(rows, results, strict=True):
            if isinstance(result, Exception):
                failed.append((select_rows(batch, numbers), result))
                continue
            times, hypotheses = result
            times.add_to(self.stopwatch.add, 1 / len(rows))
            found |= zip(numbers, hypotheses, strict=True)
        if found:  # together: they took as long as one batch, which is the speed that a time limit learns
            kept = sorted(found)
            yield from _outcomes(select_rows(batch, kept) if failed else batch, [found[row] for row in kept])
        for part, error in failed:
            yield from self._retry_in_halves(part, error, was_alone=False)

    def _all_stages(self, batch: Batch) -> tuple[StageTimes, Sequence[Hypothesis]]:
        encoded = self._encode(batch)
        decoded = self._submit(encoded)
        return encoded.times, self._read_hypotheses(decoded)

    def advance(self) -> Iterator[Outcome]:
        """Bring the oldest batch in flight one step further, and yield its results if they are ready then. Raises as push()."""
        if self._encoded:
            yield from self._finish(len(self._encoded) - 1, len(self._decoded) + 1)
        else:
            yield from self._finish(0, max(0, len(self._decoded) - 1))

    def drain(self) -> Iterator[Outcome]:
        """Yield the results of all batches in flight. Raises as push()."""
        yield from self._finish(0, 0)

    def drop(self) -> None:
        """Drop the batches in flight, after the device has stopped working on them."""
        if not self._is_idle():
            recover(self.device)  # ignores a lost device: it is reported already, or its results are not needed
        self._encoded.clear()
        self._decoded.clear()

    def _finish(self, max_encoded: int, max_decoded: int) -> Iterator[Outcome]:
        """Decode and read the oldest batches until at most max_encoded and max_decoded are in flight."""
        self._say_unpinned()
        while len(self._encoded) > max_encoded or len(self._decoded) > max_decoded:
            while len(self._encoded) > max_encoded:
                yield from self._start_decoding(self._encoded.popleft())
            while len(self._decoded) > max_decoded:
                yield from self._read(self._decoded.popleft())

    def _say_unpinned(self) -> None:
        """Say once that copies are slower, as soon as an array could not be pinned since this engine was made."""
        if UNPINNED.count > self._num_unpinned:
            self._num_unpinned = sys.maxsize
            line = f"host memory cannot be pinned ({UNPINNED.reason}): copies to and from the GPU are slower"
            self._say(RefusedPath("pinning", UNPINNED.reason, line))

    def _start_decoding(self, encoded: _Encoded) -> Iterator[Outcome]:
        batch = encoded.batch
        decoded = _attempt(self._submit, encoded)
        del encoded  # if this failed, the retry needs its memory
        if isinstance(decoded, Exception):
            yield from self._retry_in_halves(batch, decoded, self._is_idle())
        else:
            self._decoded.append(decoded)

    def _read(self, decoded: _Decoded) -> Iterator[Outcome]:
        batch = decoded.encoded.batch
        hypotheses = _attempt(self._hypotheses, decoded)
        del decoded  # see _start_decoding
        if isinstance(hypotheses, Exception):
            yield from self._retry_in_halves(batch, hypotheses, self._is_idle())
        else:
            yield from _outcomes(batch, hypotheses)

    def _encode(self, batch: Batch) -> _Encoded:
        times, stages = StageTimes(self.device), self.recognizer.stages(batch)
        with self._copy.activate(), times.time("copy"):
            samples_BS, lengths_B = self.recognizer.upload(batch)
        self._model.wait_event(self._copy.record_event())
        with self._model.activate():
            with times.time("features"):
                features = stages.features(samples_BS, lengths_B)
            with times.time("encode"):
                frames = stages.encode(features)
                if batch.purpose == WORDS:
                    frames = self.recognizer.with_constraints(frames, batch)
        return _Encoded(batch, samples_BS, lengths_B, frames, times, self._model.record_event())

    def _submit(self, encoded: _Encoded) -> _Decoded:
        self._decode.wait_event(encoded.ready)
        with self._decode.activate(), encoded.times.time("decode"):
            packed = self.recognizer.stages(encoded.batch).submit(encoded.frames)
            packed_on_host = to_host(packed)
        return _Decoded(encoded, packed, packed_on_host, self._decode.record_event())

    def _hypotheses(self, decoded: _Decoded) -> Sequence[Hypothesis]:
        decoded.ready.synchronize()
        decoded.encoded.times.add_to(self.stopwatch.add)
        return self._read_hypotheses(decoded)

    def _read_hypotheses(self, decoded: _Decoded) -> Sequence[Hypothesis]:
        with self._decode.activate():  # decodes the batch again if its buffers overflowed
            stages = self.recognizer.stages(decoded.encoded.batch)
            return stages.read(decoded.packed_on_host, decoded.encoded.frames)

    def _is_idle(self) -> bool:
        return not self._encoded and not self._decoded

    def _retry_in_halves(self, batch: Batch, error: Exception, was_alone: bool) -> Iterator[Outcome]:
        """Retry the two halves of a failed batch, each alone on the device, so that one bad recording does not fail the others.

        A single row is retried once if other batches were in flight beside it.
        """
        lost = recover(self.device)
        if lost is not None:
            raise DeviceFailed(self.recognizer.facts.device_name, lost) from lost
        if is_out_of_memory(error) and batch.purpose == WORDS:  # the budget is of the recognizer's frames
            self.budget.shrink(len(batch.utterances), self.recognizer.num_frames(batch))
        if len(batch.utterances) > 1:
            middle = len(batch.utterances) // 2
            for rows in (range(middle), range(middle, len(batch.utterances))):
                yield from self._run_isolated(select_rows(batch, rows))
        elif was_alone:
            if self._lacks_memory(batch, error):
                raise DeviceFailed(self.recognizer.facts.device_name, error) from error
            yield batch, error
        else:
            yield from self._run_isolated(batch)

    def _lacks_memory(self, batch: Batch, error: Exception) -> bool:
        """Return True if the machine refuses memory for a row of a usual length: no recording is to blame."""
        is_usual = batch.lengths_B.max() <= DEFAULT_MAX_UTTERANCE_S * self.recognizer.sample_rate
        is_of_words = self.device.type == "cpu" and batch.purpose == WORDS  # without its voices, a recording has a text
        return bool(is_usual) and is_of_words and is_out_of_memory(error)

    def _run_isolated(self, batch: Batch) -> Iterator[Outcome]:
        yield from self.drain()
        yield from self.push(batch)
        yield from self.drain()


def _attempt(call: Callable[[S], T], argument: S) -> T | Exception:
    """Return the call's result, or the exception without its tracebacks, whose frames would keep tensors alive."""
    try:
        return call(argument)
    except UsageError:  # an unavailable mode that the user names ends the run
        raise
    except Exception as error:  # anything that a model or its device raises: the batch is retried in halves
        drop_frames(error)
        return error


def _outcomes(batch: Batch, hypotheses: Sequence[Hypothesis]) -> Iterator[Outcome]:
    """Yield the batch with its hypotheses, or in parts if some rows failed."""
    problems = problems_of(hypotheses)
    if not problems:
        yield batch, hypotheses
        return
    for problem, run in groupby(range(len(hypotheses)), lambda row: problems.get(row, "")):
        numbers = list(run)
        found = ModelOutputError(problem) if problem else hypotheses[numbers[0] : numbers[-1] + 1]
        yield select_rows(batch, numbers), found


def fastest_shares(sizes_B: Int64Array, max_parts: int, num_threads: int) -> list[list[int]]:
    """Divide rows into as many parts, of one or more threads each, as are done first.

    One part is the fastest where a long row would keep one thread busy while the others have nothing to do.
    """

    def duration(parts: list[list[int]]) -> float:
        threads = num_threads // len(parts)
        longest = max(int(sizes_B[part].sum()) for part in parts)
        return longest / threads * math.pow(_DOUBLING_COST, math.log2(threads))

    counts = range(max(1, min(max_parts, num_threads, len(sizes_B))), 0, -1)
    return min((equal_shares(sizes_B, count) for count in counts), key=duration)


def equal_shares(sizes_B: Int64Array, num_parts: int) -> list[list[int]]:
    """Divide rows into parts of about equal sums. Neighbours stay together if that makes no part a tenth too large: they are
    of similar lengths."""
    if num_parts == 1:
        return [list(range(len(sizes_B)))]
    ends_B, sizes_B = np.cumsum(sizes_B), np.asarray(sizes_B)
    fair = ends_B[-1] / num_parts
    part_B = ((ends_B - sizes_B / 2) / fair).astype(np.int64).clip(max=num_parts - 1)  # an empty last row is beyond
    if np.bincount(part_B, weights=sizes_B, minlength=num_parts).max() > 1.1 * fair:
        sums = np.zeros(num_parts)
        for row in np.argsort(-sizes_B, kind="stable"):
            part_B[row] = sums.argmin()
            sums[part_B[row]] += sizes_B[row]
    return [rows for rows in (np.flatnonzero(part_B == part).tolist() for part in range(num_parts)) if rows]


def select_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return some rows of a batch, padded to the longest of them."""
    kept = list(rows)
    lengths_B = batch.lengths_B[kept]
    native = tuple(group for group in (group.select(kept) for group in batch.native) if group.rows)
    samples_BS = np.ascontiguousarray(batch.samples_BS[kept, : int(lengths_B.max())])
    cuts = tuple(batch.cuts[row] for row in kept) if batch.cuts else ()
    return Batch(tuple(batch.utterances[row] for row in kept), samples_BS, lengths_B, native, cuts)
