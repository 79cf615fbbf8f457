"""Batches in, hypotheses out, as fast as one device goes.

    copy lane     samples to the device, resampled | batch i+2
    model lane    features, encoder                | batch i+1
    decode lane   decoder, results to the host     | batch i      (high priority: its steps are short and wait for each other)
    host          text of batch i-1, in the caller's hands between two results

The host asks for batch i+1's encoder before it looks at batch i's results, and touches no value on the device before
the mark behind them, so a GPU always has work waiting (attention decoders do look, between stretches of a batch, beside
which the next one's encoder is at work; and beam search at every turn, which no GPU has run yet). One thread drives all
this on purpose: a second Python thread that makes text meanwhile would hold up every kernel launch (docs/log.md, "who
launches kernels").

On a CPU nothing overlaps and each batch is done when `push` returns. A batch that fails is tried again in halves; one
that ran out of memory also lowers the budget that later batches are planned by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch

from fastscribe.cuda.device import Mark, StageTimes, is_out_of_memory, lane, recover, settle, to_host
from fastscribe.decode import checked
from fastscribe.errors import DeviceFailed, ModelOutputError, UsageError
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.types import Batch, Frames, Hypothesis, Int32Array

S = TypeVar("S")
T = TypeVar("T")
# Rows that fail come back with their error, apart from the others of their batch.
Outcome = tuple[Batch, "list[Hypothesis] | Exception"]

_MAX_DECODING = 2  # batches whose results the host has not asked for yet; each holds its encoder output


@dataclass(frozen=True)
class _Encoded:
    """A batch whose encoder output is on its way. Holds every tensor that a lane may still read."""

    batch: Batch
    samples_BS: torch.Tensor
    lengths_B: torch.Tensor
    frames: Frames
    times: StageTimes
    mark: Mark


@dataclass(frozen=True)
class _Decoded:
    encoded: _Encoded
    packed: torch.Tensor
    packed_on_host: Int32Array
    mark: Mark


class Engine:
    """One device's pipeline around a Recognizer. Used by one thread."""

    def __init__(self, recognizer: Recognizer) -> None:
        self.recognizer = recognizer
        self.device = recognizer.device
        self.budget = Budget(math.inf)
        self.stopwatch = Stopwatch()
        overlap = self.device.type != "cpu"
        self._max_encoded, self._max_decoded = (1, _MAX_DECODING) if overlap else (0, 0)
        self._copy, self._model, self._decode = (lane(self.device, role) for role in ("copy", "model", "decode"))
        settle(self.device)  # the weights came by no lane of ours
        self._encoded: deque[_Encoded] = deque()
        self._decoded: deque[_Decoded] = deque()

    def stream(self, batches: Iterable[Batch]) -> Iterator[Outcome]:
        """All batches' results, in order but for those of a batch that failed at first."""
        for batch in batches:
            yield from self.push(batch)
        yield from self.drain()

    def push(self, batch: Batch) -> Iterator[Outcome]:
        """Puts a batch to work and yields what earlier ones (on a CPU this one) have come to."""
        encoded = _attempt(self._encode, batch)
        if isinstance(encoded, Exception):
            was_alone = self._is_idle()
            yield from self.drain()
            yield from self._retry_in_halves(batch, encoded, was_alone)
            return
        self._encoded.append(encoded)
        yield from self._finish(self._max_encoded, self._max_decoded)

    def drain(self) -> Iterator[Outcome]:
        """Yields the results of everything under way."""
        yield from self._finish(0, 0)

    def close(self) -> None:
        """Forgets what is under way, once the device has stopped working on it."""
        if not self._is_idle():
            recover(self.device)  # a device that is lost has been reported, or nobody waits for its results
        self._encoded.clear()
        self._decoded.clear()

    def _finish(self, max_encoded: int, max_decoded: int) -> Iterator[Outcome]:
        """Decodes and reads the oldest batches until only so many are left in each state."""
        while len(self._encoded) > max_encoded or len(self._decoded) > max_decoded:
            while len(self._encoded) > max_encoded:
                yield from self._start_decoding(self._encoded.popleft())
            while len(self._decoded) > max_decoded:
                yield from self._read(self._decoded.popleft())

    def _start_decoding(self, encoded: _Encoded) -> Iterator[Outcome]:
        batch = encoded.batch
        decoded = _attempt(self._submit, encoded)
        del encoded  # if this failed, its memory is wanted
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
        times = StageTimes(self.device)
        with self._copy.work(), times.time("copy"):
            samples_BS, lengths_B = self.recognizer.upload(batch)
        self._model.wait_for(self._copy.mark())
        with self._model.work():
            with times.time("features"):
                features = self.recognizer.features(samples_BS, lengths_B)
            with times.time("encode"):
                frames = self.recognizer.encode(features)
        return _Encoded(batch, samples_BS, lengths_B, frames, times, self._model.mark())

    def _submit(self, encoded: _Encoded) -> _Decoded:
        self._decode.wait_for(encoded.mark)
        with self._decode.work(), encoded.times.time("decode"):
            packed = checked.submit(self.recognizer.decoder, encoded.frames)
            packed_on_host = to_host(packed)
        return _Decoded(encoded, packed, packed_on_host, self._decode.mark())

    def _hypotheses(self, decoded: _Decoded) -> list[Hypothesis]:
        decoded.mark.wait()
        decoded.encoded.times.add_to(self.stopwatch)
        with self._decode.work():  # should a row have run out of room, the batch is decoded again
            return checked.read(self.recognizer.decoder, decoded.packed_on_host, decoded.encoded.frames)

    def _is_idle(self) -> bool:
        return not self._encoded and not self._decoded

    def _retry_in_halves(self, batch: Batch, error: Exception, was_alone: bool) -> Iterator[Outcome]:
        """Halves of a failed batch, one after the other with nothing beside them, so that one recording cannot take its
        neighbours with it. A single row is tried again if it shared the device with other batches."""
        lost = recover(self.device)
        if lost is not None:
            raise DeviceFailed(self.recognizer.device_name, lost) from lost
        if is_out_of_memory(error):
            self.budget.shrink(len(batch.utterances), self.recognizer.num_frames(batch))
        if len(batch.utterances) > 1:
            middle = len(batch.utterances) // 2
            for rows in (slice(None, middle), slice(middle, None)):
                yield from self._run_isolated(slice_batch(batch, rows))
        elif was_alone:
            yield batch, error
        else:
            yield from self._run_isolated(batch)

    def _run_isolated(self, batch: Batch) -> Iterator[Outcome]:
        yield from self.drain()
        yield from self.push(batch)
        yield from self.drain()


def _attempt(call: Callable[[S], T], argument: S) -> T | Exception:
    """What the call returns, or what it raised, without tracebacks, whose frames would hold on to the memory."""
    try:
        return call(argument)
    except UsageError:  # a mode asked for by name that cannot be had ends the run
        raise
    except Exception as error:  # whatever a model and its device can raise: the batch is tried again in parts
        linked: BaseException | None = error
        while linked is not None:
            linked.__traceback__ = None
            linked = linked.__cause__ or linked.__context__
        return error


def _outcomes(batch: Batch, hypotheses: list[Hypothesis]) -> Iterator[Outcome]:
    """The batch with its hypotheses, or where some rows have none but a problem, its parts."""
    if not any(hypothesis.problem for hypothesis in hypotheses):
        yield batch, hypotheses
        return
    for problem, run in groupby(range(len(hypotheses)), lambda row: hypotheses[row].problem):
        numbers = list(run)
        rows = slice(numbers[0], numbers[-1] + 1)
        yield slice_batch(batch, rows), ModelOutputError(problem) if problem else hypotheses[rows]


def slice_batch(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch, padded to their own longest."""
    lengths_B = batch.lengths_B[rows]
    kept = range(*rows.indices(len(batch.utterances)))
    native = tuple(group for group in (group.select(kept) for group in batch.native) if group.rows)
    samples_BS = np.ascontiguousarray(batch.samples_BS[rows, : int(lengths_B.max())])
    return Batch(batch.utterances[rows], samples_BS, lengths_B, native)
