"""The process of one device. It loads the model, then launches the kernels of the batches that lie in shared memory.

It opens no file and makes no text: beside the thread that launches, only one waits for messages. On a GPU that is what keeps
the device busy, because every Python thread delays each launch (docs/log.md, "who launches kernels").
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastscribe._system.process_settings import limit_openmp_spin, quick_start
from fastscribe.audio.failures import to_failure
from fastscribe.errors import DeviceFailed, FastscribeError, UsageError, first_line
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.arena import SharedMemory
from fastscribe.pipeline.workers.messages import listen, open_channel
from fastscribe.types import AudioInfo, Batch, Failure, Hypothesis, Utterance

if TYPE_CHECKING:
    from fastscribe.pipeline.engine import Engine, Outcome

_SHARED_MEMORY = 0.95  # of a GPU with several processes is for tensors; each has a context and kernels beside them
_WAITING = 2  # batches that are sent ahead of the engine's own, so that it never waits for a message


def main() -> None:
    """Serve the coordinator until it closes stdin."""
    serve(load)


def serve(load: Callable[[messages.Start, SharedMemory, Callable[[str], None]], Engine]) -> None:
    """Serve the coordinator with the engine that `load` returns."""
    channel = open_channel()
    limit_openmp_spin()
    start = channel.receive()
    if start is not None:
        _serve(channel, start, load)
    os._exit(0)


def load(start: messages.Start, memory: SharedMemory, say: Callable[[str], None]) -> Engine:
    """Load the model. Raises what a device or a checkpoint raises."""
    with quick_start():
        import torch

        from fastscribe.checkpoint.reader import read_for_run
        from fastscribe.cuda.device import register, say_unpinned
        from fastscribe.pipeline.engine import Engine
        from fastscribe.pipeline.recognizer import Recognizer

    if start.device == "cpu":
        torch.set_num_threads(start.processors)
    elif start.memory_share < 1.0:
        torch.cuda.set_per_process_memory_fraction(_SHARED_MEMORY * start.memory_share)
    pinning: list[Thread] = []
    if start.device != "cpu" and torch.cuda.is_available():
        pinning = memory.pin_with(partial(register, say=say), lambda error: say_unpinned(first_line(error), say))
    recognizer = Recognizer.build(
        read_for_run(start.model, start.options), start.device, start.dtype, start.options, say
    )
    for thread in pinning:
        thread.join()
    return Engine(recognizer, say)


def _serve(
    channel: messages.Channel,
    start: messages.Start,
    load: Callable[[messages.Start, SharedMemory, Callable[[str], None]], Engine],
) -> None:
    assert start.shared is not None
    memory = SharedMemory(start.shared)
    inbox = _Inbox(channel)
    try:
        engine = load(start, memory, lambda line: channel.send(messages.Say(line)))
        recognizer, options = engine.recognizer, start.options
        measures = options.batch_frames == "auto" or (options.batch_frames is None and options.batch_size is None)
        budget = recognizer.choose_budget() if measures else engine.budget
        channel.send(
            messages.Ready(
                recognizer.facts,
                budget,
                engine.max_in_flight + _WAITING,
                recognizer.peak_bytes(),
                recognizer.sample_rate,
                native=recognizer.device.type == "cuda",
            )
        )
    except Exception as error:  # whatever a device or a checkpoint raises
        channel.send(_refused(error))
        return
    try:
        while True:
            message = inbox.get()
            if isinstance(message, messages.Begin):
                try:
                    _Run(channel, inbox, engine, memory, message).serve()
                finally:
                    engine.drop()
    except (UsageError, DeviceFailed) as error:  # the coordinator ends the run, or hands the work to other processes
        channel.send(_refused(error))
    except Exception as error:  # a mistake of ours
        traceback.print_exc()
        with suppress(OSError):
            channel.send(_refused(error))


def _refused(error: Exception) -> messages.Refused:
    if isinstance(error, FastscribeError) and not isinstance(error, DeviceFailed):
        return messages.Refused(error)
    cause = error.__cause__ if isinstance(error, DeviceFailed) else None
    return messages.Refused(RuntimeError(first_line(cause or error)))


class _Inbox:
    """Messages that have arrived."""

    def __init__(self, channel: messages.Channel) -> None:
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._ended_run = -1
        listen(channel, self._receive)

    def get(self, wait: bool = True) -> Any:
        """Return the next message; without `wait`, None if there is none."""
        try:
            return self._messages.get(wait)
        except Empty:
            return None

    def has_ended(self, run: int) -> bool:
        return run <= self._ended_run

    def _receive(self, message: Any) -> None:
        if isinstance(message, messages.End):
            self._ended_run = message.run
        self._messages.put(message)


class _Run:
    """A run on this device."""

    def __init__(
        self,
        channel: messages.Channel,
        inbox: _Inbox,
        engine: Engine,
        memory: SharedMemory,
        begin: messages.Begin,
    ) -> None:
        self._channel, self._inbox, self._engine, self._memory = channel, inbox, engine, memory
        self._run = begin.run
        engine.budget, engine.stopwatch = replace(begin.budget), Stopwatch()
        self._num_pushed = 0  # rows without a result
        self._last_sent, self._waited_s = perf_counter(), 0.0

    def serve(self) -> None:
        """Decode until the run ends."""
        from fastscribe.cuda.device import short_switch_interval

        with short_switch_interval(self._engine.device):
            while not self._inbox.has_ended(self._run):
                self._take_message()

    def _take_message(self) -> None:
        """Begin the next batch, or finish the oldest one while there is none."""
        start = perf_counter()
        message = self._inbox.get(wait=not self._num_pushed)
        self._waited_s += perf_counter() - start
        if message is None:
            self._send(self._engine.advance())
            return
        if isinstance(message, messages.Work) and message.run == self._run:
            self._num_pushed += len(message.rows)
            self._send(self._engine.push(self._batch(message)))

    def _batch(self, work: messages.Work) -> Batch:
        """Return the batch in shared memory. Its utterances are rows: nothing else is known of them here."""
        from fastscribe.cuda.device import host_array

        arrays = work.layout.placed(self._memory.view(work.place, work.layout.num_bytes))
        audio = AudioInfo("", "", work.layout.sample_rate, 1, work.layout.shape[1], index=work.batch)
        if work.constraints:
            rows = zip(work.rows, work.constraints, strict=True)
            utterances = tuple(
                Utterance(replace(audio, boost=boost, language=language), row, 0, work.purpose)
                for row, (boost, language) in rows
            )
        else:
            utterances = tuple(Utterance(audio, row, 0, work.purpose) for row in work.rows)
        allocate = partial(host_array, device=self._engine.device)
        return arrays.batch(utterances, work.rows, work.lengths_B, allocate)

    def _send(self, outcomes: Iterable[Outcome]) -> None:
        for batch, outcome in outcomes:
            audio, rows = batch.utterances[0].audio, [one.start for one in batch.utterances]
            self._num_pushed -= len(rows)
            results = to_failure(audio, "model", outcome) if isinstance(outcome, Exception) else outcome
            self._send_results(audio.index, rows, results)

    def _send_results(self, batch: int, rows: Sequence[int], results: Sequence[Hypothesis] | Failure) -> None:
        now, seconds = perf_counter(), self._engine.stopwatch.seconds
        busy_s = max(0.0, now - self._last_sent - self._waited_s)
        stage_s = {**seconds, "wait_for_audio": self._waited_s}
        self._last_sent, self._waited_s = now, 0.0
        seconds.clear()
        peak_bytes, budget_frames = self._engine.recognizer.peak_bytes(), self._engine.budget.frames
        pinned_bytes = self._memory.pinned_bytes
        self._channel.send(
            messages.Results(self._run, batch, rows, results, stage_s, busy_s, peak_bytes, budget_frames, pinned_bytes)
        )
