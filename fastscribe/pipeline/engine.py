"""Batches in, hypotheses out, as fast as one device goes.

    copy stream   samples to the device, resampled | batch i+2
    model stream  features, encoder                | batch i+1
    decode stream decoder, results to the host     | batch i      (high priority: its steps are short and wait for each other)
    host          text of batch i-1, in the caller's hands between two results

The host asks for batch i+1's encoder before it looks at batch i's results, and touches no value on the device before
the event after them, so a GPU always has work waiting (attention decoders do look, between stretches of a batch, beside
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

from fastscribe.cuda.device import Event, StageTimes, is_out_of_memory, recover, shared_stream, synchronize, to_host
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

_DECODING_AT_ONCE = 2  # batches whose results the host has not asked for yet; each holds its encoder output


@dataclass(frozen=True)
class _Encoded:
    """A batch whose encoder output is on its way. Holds every tensor that a stream may still read."""

    batch: Batch
    samples_BS: torch.Tensor
    lengths_B: torch.Tensor
    frames: Frames
    times: StageTimes
    ready: Event


@dataclass(frozen=True)
class _Decoded:
    encoded: _Encoded
    packed: torch.Tensor
    packed_on_host: Int32Array
    ready: Event


class Engine:
    """One device's pipeline around a Recognizer. Used by one thread."""

    def __init__(self, recognizer: Recognizer) -> None:
        self.recognizer = recognizer
        self.device = recognizer.device
        self.budget = Budget(math.inf)
        self.stopwatch = Stopwatch()
        overlap = self.device.type != "cpu"
        self._encoded_left, self._decoded_left = (1, _DECODING_AT_ONCE) if overlap else (0, 0)
        self._copy, self._model, self._decode = (
            shared_stream(self.device, role) for role in ("copy", "model", "decode")
        )
        synchronize(self.device)  # the weights were copied on another stream
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
            yield from self._again(batch, encoded, was_alone)
            return
        self._encoded.append(encoded)
        yield from self._finish(self._encoded_left, self._decoded_left)

    def drain(self) -> Iterator[Outcome]:
        """Yields the results of everything under way."""
        yield from self._finish(0, 0)

    def close(self) -> None:
        """Forgets what is under way, once the device has stopped working on it."""
        if not self._is_idle():
            recover(self.device)  # a device that is lost has been reported, or nobody waits for its results
        self._encoded.clear()
        self._decoded.clear()

    def _finish(self, encoded_left: int, decoded_left: int) -> Iterator[Outcome]:
        """Decodes and reads the oldest batches until only so many are left in each state."""
        while len(self._encoded) > encoded_left or len(self._decoded) > decoded_left:
            while len(self._encoded) > encoded_left:
                yield from self._start_decoding(self._encoded.popleft())
            while len(self._decoded) > decoded_left:
                yield from self._read(self._decoded.popleft())

    def _start_decoding(self, encoded: _Encoded) -> Iterator[Outcome]:
        batch = encoded.batch
        decoded = _attempt(self._submit, encoded)
        del encoded  # if this failed, its memory is wanted
        if isinstance(decoded, Exception):
            yield from self._again(batch, decoded, self._is_idle())
        else:
            self._decoded.append(decoded)

    def _read(self, decoded: _Decoded) -> Iterator[Outcome]:
        batch = decoded.encoded.batch
        hypotheses = _attempt(self._hypotheses, decoded)
        del decoded  # see _start_decoding
        if isinstance(hypotheses, Exception):
            yield from self._again(batch, hypotheses, self._is_idle())
        else:
            yield from _outcomes(batch, hypotheses)

    def _encode(self, batch: Batch) -> _Encoded:
        times = StageTimes(self.device)
        with self._copy.activate(), times.time("copy"):
            samples_BS, lengths_B = self.recognizer.upload(batch)
        self._model.wait_event(self._copy.record_event())
        with self._model.activate():
            with times.time("features"):
                features = self.recognizer.features(samples_BS, lengths_B)
            with times.time("encode"):
                frames = self.recognizer.encode(features)
        return _Encoded(batch, samples_BS, lengths_B, frames, times, self._model.record_event())

    def _submit(self, encoded: _Encoded) -> _Decoded:
        self._decode.wait_event(encoded.ready)
        with self._decode.activate(), encoded.times.time("decode"):
            packed = checked.submit(self.recognizer.decoder, encoded.frames)
            packed_on_host = to_host(packed)
        return _Decoded(encoded, packed, packed_on_host, self._decode.record_event())

    def _hypotheses(self, decoded: _Decoded) -> list[Hypothesis]:
        decoded.ready.synchronize()
        decoded.encoded.times.add_to(self.stopwatch)
        with self._decode.activate():  # should a row have run out of room, the batch is decoded again
            return checked.read(self.recognizer.decoder, decoded.packed_on_host, decoded.encoded.frames)

    def _is_idle(self) -> bool:
        return not self._encoded and not self._decoded

    def _again(self, batch: Batch, error: Exception, was_alone: bool) -> Iterator[Outcome]:
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
                yield from self._alone(part(batch, rows))
        elif was_alone:
            yield batch, error
        else:
            yield from self._alone(batch)

    def _alone(self, batch: Batch) -> Iterator[Outcome]:
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
        yield part(batch, rows), ModelOutputError(problem) if problem else hypotheses[rows]


def part(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch, padded to their own longest."""
    lengths_B = batch.lengths_B[rows]
    kept = range(*rows.indices(len(batch.utterances)))
    native = tuple(group for group in (group.only(kept) for group in batch.native) if group.rows)
    samples_BS = np.ascontiguousarray(batch.samples_BS[rows, : int(lengths_B.max())])
    return Batch(batch.utterances[rows], samples_BS, lengths_B, native)
