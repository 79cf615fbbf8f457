"""The process of one device. It loads the model, then decodes the batches that the coordinator sends (messages.py).

It is the executor of a single device with another source of plans: batches come over stdin, and results go to what was stdout.
Batches that have arrived are read ahead of the model as in a run of one process. It prints nothing: lines for the user are
messages, and what libraries print goes to stderr, which the coordinator reads. It ends at once when the coordinator is gone,
however that ended, and leaves Ctrl-C and SIGTERM to it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastscribe._system.collector import without_collector
from fastscribe._system.openmp import limit_openmp_spin
from fastscribe.errors import DeviceFailed, FastscribeError, UsageError, first_line
from fastscribe.pipeline.idle import IDLE, LATER, Idle, Later
from fastscribe.pipeline.workers import messages
from fastscribe.types import AudioInfo, Failure, Hypothesis, Utterance, UtteranceKey

if TYPE_CHECKING:
    from fastscribe.pipeline.executor import Plan
    from fastscribe.pipeline.loader import Loaded
    from fastscribe.pipeline.local import LocalExecutor

_WAIT_S = 0.1  # between two looks at files that hang
_SHARED_MEMORY = 0.95  # of a GPU with several processes is for tensors; each has a context and kernels beside them


def main() -> None:
    """Serve the coordinator until it closes stdin."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel = _open_channel()
    limit_openmp_spin()
    start = channel.receive()
    if start is not None:
        _serve(channel, start)
    os._exit(0)  # without a wait for threads that read recordings


def _open_channel() -> messages.Channel:
    """Take stdin and stdout for messages; what libraries print goes to stderr, and what they read is empty."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return messages.Channel(os.fdopen(reader, "rb"), os.fdopen(writer, "wb"))


def _serve(channel: messages.Channel, start: messages.Start) -> None:
    inbox = _Inbox(channel)
    try:
        local = _load(channel, start)
        options = start.options
        measures = options.batch_frames == "auto" or (options.batch_frames is None and options.batch_size is None)
        budget = local.choose_budget() if measures else local.budget
        channel.send(messages.Ready(local.facts, budget, local.max_in_flight, local.peak_bytes()))
    except Exception as error:  # whatever a device or a checkpoint raises
        channel.send(messages.Refused(type(error).__name__, _one_line(error)))
        return
    try:
        while True:
            message = inbox.get()
            if isinstance(message, messages.Begin):
                with closing(_Run(channel, inbox, local, message, start)) as run:
                    run.serve()
    except (UsageError, DeviceFailed) as error:  # the coordinator ends the run, or hands the work to other processes
        channel.send(messages.Refused(type(error).__name__, _one_line(error)))
    except Exception as error:  # a mistake of ours
        traceback.print_exc()
        with suppress(OSError):
            channel.send(messages.Refused(type(error).__name__, _one_line(error)))


def _load(channel: messages.Channel, start: messages.Start) -> LocalExecutor:
    with without_collector():
        import torch

        from fastscribe.checkpoint.reader import read_for_run
        from fastscribe.pipeline.engine import Engine
        from fastscribe.pipeline.local import LocalExecutor
        from fastscribe.pipeline.recognizer import Recognizer

    def say(line: str) -> None:
        channel.send(messages.Say(line))

    if start.device == "cpu":
        torch.set_num_threads(start.processors)
    elif start.memory_share < 1.0:
        torch.cuda.set_per_process_memory_fraction(_SHARED_MEMORY * start.memory_share)
    recognizer = Recognizer.build(
        read_for_run(start.model, start.options), start.device, start.dtype, start.options, say
    )
    return LocalExecutor(Engine(recognizer))


def _one_line(error: BaseException) -> str:
    if isinstance(error, DeviceFailed) and error.__cause__ is not None:
        return first_line(error.__cause__)
    return " ".join(str(error).split()) if isinstance(error, FastscribeError) else first_line(error)


class _Inbox:
    """Messages that have arrived. A thread receives them, so that the end of the coordinator ends this process at once."""

    def __init__(self, channel: messages.Channel) -> None:
        self._channel = channel
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._cancelled: set[int] = set()  # batches
        self._ended_run = -1
        Thread(target=self._receive, name="inbox", daemon=True).start()

    def get(self, timeout_s: float | None = None) -> Any:
        """Return the next message, or None after the timeout; None: wait for it."""
        try:
            return self._messages.get(timeout_s is None or timeout_s > 0, timeout_s)
        except Empty:
            return None

    def has_ended(self, run: int) -> bool:
        return run <= self._ended_run

    def is_cancelled(self, batch: int) -> bool:
        return batch in self._cancelled

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            if isinstance(message, messages.Cancel):
                self._cancelled.add(message.batch)
                continue
            if isinstance(message, messages.Work):
                self._cancelled.discard(message.batch)  # it may have been cancelled too late, and come again
            elif isinstance(message, messages.End):
                self._ended_run = message.run
                self._cancelled.clear()
            self._messages.put(message)
        os._exit(0)


@dataclass(frozen=True)
class _Ordered(Utterance):
    """An utterance with the batch that it came in; two batches may have one with the same key."""

    batch: int = -1


class _Run:
    """A run on this device."""

    def __init__(
        self,
        channel: messages.Channel,
        inbox: _Inbox,
        local: LocalExecutor,
        begin: messages.Begin,
        start: messages.Start,
    ) -> None:
        from fastscribe.pipeline.loader import default_threads
        from fastscribe.pipeline.stats import Stopwatch

        self._channel, self._inbox, self._local, self._run = channel, inbox, local, begin.run
        self._stopwatch = Stopwatch()
        options = start.options
        if options.threads is None:  # the processors are shared
            options = replace(options, threads=default_threads(start.processors))
        local.begin(options, replace(begin.budget), self._stopwatch)
        self._audio: dict[int, AudioInfo] = {}  # by the recording's index
        self._unanswered: set[tuple[int, UtteranceKey]] = set()  # batch and key
        self._is_idle = False
        self._waited_s = 0.0  # for messages, since the last result
        self._last_sent = perf_counter()

    def serve(self) -> None:
        """Decode until the run ends."""
        from fastscribe.cuda.device import short_switch_interval

        local = self._local
        device = local.engine.recognizer.device
        with closing(local.load(self._plans())) as batches, closing(local.engine), short_switch_interval(device):
            while not self._inbox.has_ended(self._run):
                with self._stopwatch.time("wait_for_audio"):
                    loaded = next(batches, None)
                if loaded is None:
                    return
                self._is_idle = loaded is IDLE
                self._decode(loaded)

    def close(self) -> None:
        from fastscribe.audio.remote_file import forget_objects
        from fastscribe.audio.sound_file_cache import close_held

        self._local.end()
        forget_objects()
        close_held()

    def _plans(self) -> Iterator[Plan | Idle | Later]:
        """Yield the batches that arrive."""
        has_asked = False
        while True:
            start = perf_counter()
            # Waiting is right only when all that is here has been decoded, or hangs.
            message = self._inbox.get((_WAIT_S if self._is_idle else 0.0) if self._unanswered else None)
            self._waited_s += perf_counter() - start
            if message is None:
                if self._is_idle and not has_asked:
                    self._channel.send(messages.Hungry(self._run))
                has_asked = self._is_idle
                yield LATER
            elif isinstance(message, messages.End):
                yield LATER  # serve() looks whether the run has ended; a return would wait for files that hang
            elif isinstance(message, messages.Forget):
                self._forget(message.indices)
            elif isinstance(message, messages.Work) and message.run == self._run:
                has_asked = self._is_idle = False
                yield self._plan(message)

    def _plan(self, work: messages.Work) -> Plan:
        self._audio |= {audio.index: audio for audio in work.recordings}
        self._unanswered |= {(work.batch, key) for key, _ in work.spans}
        return [
            _Ordered(self._recording(index, channel), start, length, purpose, work.batch)
            for (index, channel, start, purpose), length in work.spans
        ]

    def _recording(self, index: int, channel: int | None) -> AudioInfo:
        audio = self._audio[index]
        return audio if audio.channel == channel else replace(audio, channel=channel)

    def _forget(self, indices: tuple[int, ...]) -> None:
        from fastscribe.audio.media import is_held
        from fastscribe.audio.remote_file import RemoteFile
        from fastscribe.audio.sound_file_cache import close_held

        for index in indices:
            audio = self._audio.pop(index, None)
            if audio is None:
                continue
            file = audio.file if audio.unread is None else audio.unread.file
            if isinstance(file, RemoteFile):
                file.drop()
            elif is_held(file):
                close_held(file)

    def _decode(self, loaded: Loaded | Idle) -> None:
        if loaded is not IDLE:
            batch, settled = loaded
            if batch is not None and self._inbox.is_cancelled(_number(batch.utterances)):
                self._answer(batch.utterances)
                loaded = None, settled
        for utterances, results in self._local.decode(loaded):
            self._send(utterances, results)

    def _send(self, utterances: Plan, results: Sequence[Hypothesis | Failure]) -> None:
        keys = self._answer(utterances)
        opened = {one.audio.index: one.audio for one in utterances if self._is_new(one.audio)}
        self._audio |= opened  # more utterances of them may come
        probed = {index: messages.to_return(audio) for index, audio in opened.items()}
        now, seconds = perf_counter(), self._stopwatch.seconds
        wait_for_audio_s = max(0.0, seconds.get("wait_for_audio", 0.0) - self._waited_s)
        busy_s = max(0.0, now - self._last_sent - self._waited_s - wait_for_audio_s)
        stage_s = {**seconds, "wait_for_audio": wait_for_audio_s}
        self._last_sent, self._waited_s = now, 0.0
        seconds.clear()
        peak_bytes, budget_frames = self._local.peak_bytes(), self._local.budget.frames
        self._channel.send(
            messages.Results(
                self._run,
                _number(utterances),
                keys,
                tuple(results),
                probed,
                stage_s,
                busy_s,
                peak_bytes,
                budget_frames,
            )
        )

    def _answer(self, utterances: Plan) -> tuple[UtteranceKey, ...]:
        """Note that nothing is to be done for these any more. Return their keys."""
        keys = tuple(one.key for one in utterances)
        self._unanswered -= {(_number(utterances), key) for key in keys}
        return keys

    def _is_new(self, audio: AudioInfo) -> bool:
        known = self._audio.get(audio.index)
        return known is not None and known.unread is not None and audio.unread is None


def _number(utterances: Plan) -> int:
    """Return the number of the batch that these are of."""
    [number] = {one.batch for one in utterances if isinstance(one, _Ordered)}
    return number


if __name__ == "__main__":
    sys.exit("this is started by fastscribe --devices")
