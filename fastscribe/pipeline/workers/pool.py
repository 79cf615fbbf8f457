"""Several devices as the executor of a run: batches are handed out as processes ask for them, and results come back.

This process has no model. A device whose process dies hands its batches to the others (dispatch.py) and gets a new process; one
that dies again and again without a result is given up. When the last is given up, the run stops. A process that has batches and
answers nothing for much longer than any batch has taken is ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from fastscribe import errors
from fastscribe.audio.failures import to_failure
from fastscribe.config import Options
from fastscribe.errors import DeviceFailed, FastscribeError, RecordingKilledProcess, UsageError, first_line
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import ModelFacts, Outcome, Plan
from fastscribe.pipeline.idle import IDLE, Idle
from fastscribe.pipeline.stats import DeviceShare, Stopwatch
from fastscribe.pipeline.time_limit import TimeLimit
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.devices import Device
from fastscribe.pipeline.workers.dispatch import Dispatch, Task
from fastscribe.pipeline.workers.process import StderrRelay, WorkerProcess
from fastscribe.types import AudioInfo, Failure, Hypothesis, Utterance

MAX_DEATHS = 3  # in a row, without a result in between; a device that dies once more is given up
MIN_SILENT_S, MAX_BATCH_TIMES = (
    600.0,
    10.0,
)  # silence that ends a process: seconds, and times the longest before an answer
_WAIT_S = 0.5  # Windows does not interrupt a longer wait by Ctrl-C


@dataclass
class _Slot:
    """A device and its process, or the latest of them."""

    device: Device
    process: WorkerProcess
    share: DeviceShare
    ready: messages.Ready | None = None
    refused: messages.Refused | None = None
    death: str = ""  # why it could not start
    is_given_up: bool = False
    deaths_in_a_row: int = 0
    silent_s: float = 0.0  # since the process got work or answered
    sent: messages.Sent = field(default_factory=messages.Sent)  # recordings that the process has


class WorkerPool:
    """See Executor. Each device loads the model in a process of its own.

    Args:
        devices: The devices.
        start: The model and its options.
        num_frames: Returns an utterance's length in encoder frames.
        say: Called with one line for the user at a time.

    Raises:
        FastscribeError: Every process refused the options or the model; the first one's reason.
        DeviceFailed: No process could be started for another reason.
        UsageError: The processes decode in different ways.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        start: messages.Start,
        num_frames: Callable[[Utterance], int],
        say: Callable[[str], None],
    ) -> None:
        self._start, self._num_frames, self._tell = start, num_frames, say
        self._told: set[str] = set()
        self._relay = StderrRelay()
        self._events: SimpleQueue[tuple[WorkerProcess, Any]] = SimpleQueue()
        self._run, self._budget, self._stopwatch = 0, Budget(1.0), Stopwatch()
        self._limit: TimeLimit | None = None
        self._longest_s, self._looked_at = 0.0, perf_counter()  # time of a batch; when silence was last measured
        self._dispatch = Dispatch(num_frames)
        self._last_death = ""
        self._processes: list[WorkerProcess] = []  # all that may live
        self._finalizer = weakref.finalize(self, _kill_all, self._processes)
        try:
            self._slots = [_Slot(one, self._new_process(one), DeviceShare(one.name, "")) for one in devices]
            while any(slot.ready is None and not slot.is_given_up for slot in self._slots):
                for _ in self._receive():
                    pass
            self._facts = self._common_facts()
            for slot in self._slots:
                if slot.is_given_up:
                    self._tell(f"{slot.device.process_name} {slot.death}; the others go on")
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @property
    def num_devices(self) -> int:
        return sum(not slot.is_given_up for slot in self._slots)

    @property
    def budget(self) -> Budget:
        return self._budget

    def choose_budget(self) -> Budget:
        budgets = [slot.ready.budget for slot in self._slots if slot.ready is not None]
        return Budget(
            min(one.frames for one in budgets),
            min(one.quadratic_at_frames for one in budgets),
            max(one.overhead_frames_per_row for one in budgets),
            min(one.max_padding for one in budgets),
        )

    def begin(self, options: Options, budget: Budget, stopwatch: Stopwatch, limit: TimeLimit | None = None) -> None:
        self._check_usable()
        self._run, self._budget, self._stopwatch, self._limit = self._run + 1, budget, stopwatch, limit
        self._dispatch = Dispatch(self._num_frames)
        for number, slot in enumerate(self._slots):
            slot.sent = messages.Sent()
            slot.share = DeviceShare(slot.device.name, slot.share.device, peak_bytes=slot.share.peak_bytes)
            if slot.ready is not None:
                self._begin_on(number)

    def execute(self, plans: Iterable[Plan | Idle]) -> Generator[Outcome | Idle, None, None]:
        waiting, has_plans = iter(plans), True
        while has_plans or self._dispatch.is_busy:
            is_source_slow = False
            while has_plans and not is_source_slow and self._dispatch.has_room():
                plan = next(waiting, None)
                if plan is None or not self._fits(plan):
                    has_plans = False
                elif plan is IDLE:
                    is_source_slow = True
                else:
                    yield from self._hand_out(self._dispatch.assign(plan))
            yield from self._balance(has_plans)
            yield IDLE
            # A slow source is asked again at once if a device has nothing to do.
            if self._dispatch.is_busy or (has_plans and not self._dispatch.has_room()):
                yield from self._receive(wait=not (is_source_slow and self._dispatch.has_idle()))
            yield from self._end_silent()
            self._check_usable()

    def release(self, index: int) -> None:
        for slot in self._slots:
            slot.sent.release(index)

    def end(self) -> None:
        for slot in self._slots:
            if slot.ready is not None:
                slot.process.send(messages.End(self._run))
            slot.sent = messages.Sent()  # it keeps the caller's data
        self._dispatch = Dispatch(self._num_frames)

    def close(self) -> None:
        self._finalizer()

    def peak_bytes(self) -> int:
        return max(share.peak_bytes for share in self.shares())

    def shares(self) -> list[DeviceShare]:
        """Return a share for each device, those of a GPU's processes added."""
        found: dict[str, DeviceShare] = {}
        for share in (slot.share for slot in self._slots):
            found[share.name] = found[share.name].plus(share) if share.name in found else share
        return list(found.values())

    # --- batches -----------------------------------------------------------------------------------------------------

    def _fits(self, plan: Plan | Idle) -> bool:
        """Return False if the run's limit allows no more work."""
        return self._limit is None or self._limit.begin(0.0 if plan is IDLE else _audio_s(plan))

    def _count_done(self, utterances: Plan, is_decoded: bool) -> None:
        """Tell the run's limit about utterances with a result. Their lengths are those that it was asked about."""
        if self._limit is not None:
            self._limit.done(_audio_s(utterances), is_decoded)

    def _balance(self, has_plans: bool) -> Iterator[Outcome]:
        """Retry what a dead process had; at the end of the batches, share them out again."""
        while (task := self._dispatch.assign_suspect()) is not None:
            yield from self._hand_out(task)
        while not has_plans and (stolen := self._dispatch.steal()) is not None:
            robbed, task = stolen
            self._slots[robbed].process.send(messages.Cancel(self._run, task.number))
            yield from self._hand_out(task)

    def _hand_out(self, task: Task) -> Iterator[Outcome]:
        """Send a batch to its process. Yield failures of recordings whose data cannot be sent."""
        slot = self._slots[task.worker]
        recordings: list[AudioInfo] = []
        for key, utterance in list(task.left.items()):
            audio = utterance.audio
            if not slot.sent.lacks(audio):
                continue
            try:
                recordings.append(slot.sent.add(audio))
            except Exception as error:  # any that a caller's file object raises
                self._dispatch.finish(task.number, key)
                self._count_done((utterance,), is_decoded=False)
                yield (utterance,), (to_failure(audio, "load", error),)
        spans = tuple((key, one.num_samples) for key, one in task.left.items())
        if spans:
            slot.process.send(messages.Work(self._run, task.number, spans, tuple(recordings)))
        slot.sent.forget(slot.process.send)  # behind the work, which may share an object or data with it

    def _receive(self, wait: bool = True) -> Iterator[Outcome]:
        """Handle the messages that have come; with `wait`, wait a moment for the first."""
        while True:
            try:
                process, message = self._events.get(wait, _WAIT_S)
            except Empty:
                return
            wait = False
            number = next((number for number, slot in enumerate(self._slots) if slot.process is process), None)
            if number is not None:
                yield from self._handle(number, message)

    def _handle(self, number: int, message: Any) -> Iterator[Outcome]:
        slot = self._slots[number]
        if message is None:
            yield from self._died(number)
        elif isinstance(message, messages.Ready):
            slot.ready, slot.share.device = message, message.facts.device_name
            slot.share.peak_bytes = max(slot.share.peak_bytes, message.peak_bytes)
            if self._run:  # a new process in the middle of a run
                self._begin_on(number)
        elif isinstance(message, messages.Refused):
            slot.refused = message
            if slot.ready is not None and message.error_type == UsageError.__name__:
                raise UsageError(message.message)
        elif isinstance(message, messages.Say):
            self._say(message.line)
        elif message.run == self._run and isinstance(message, messages.Hungry):
            self._dispatch.mark_stuck(number)
        elif message.run == self._run:
            yield from self._results(slot, message)

    def _results(self, slot: _Slot, message: messages.Results) -> Iterator[Outcome]:
        self._longest_s, slot.silent_s = max(self._longest_s, slot.silent_s), 0.0
        for stage, seconds in message.stage_s.items():
            self._stopwatch.add(stage, seconds)
        self._budget.frames = min(self._budget.frames, message.budget_frames)
        slot.sent.opened(message.probed)
        finished = [
            (self._dispatch.finish(message.batch, key), result)
            for key, result in zip(message.keys, message.results, strict=True)
        ]
        new = [(utterance, result) for utterance, result in finished if utterance is not None]
        utterances = [_probed(utterance, message.probed) for utterance, _ in new]
        results = [_with_row(result, utterance.audio) for utterance, result in new]
        slot.share.busy_s += message.busy_s
        slot.share.peak_bytes = max(slot.share.peak_bytes, message.peak_bytes)
        if not utterances:
            return
        slot.share.batches += isinstance(results[0], Hypothesis)
        slot.share.utterances += len(utterances)
        slot.share.audio_s += sum(utterance.duration_s for utterance in utterances)
        slot.deaths_in_a_row = 0
        self._count_done([utterance for utterance, _ in new], isinstance(results[0], Hypothesis))
        yield utterances, results

    # --- processes ---------------------------------------------------------------------------------------------------

    def _new_process(self, device: Device) -> WorkerProcess:
        events = self._events  # a thread that held the pool itself would keep it from being collected
        try:
            process = WorkerProcess(device, self._start, lambda *event: events.put(event), self._relay)
        except (OSError, RuntimeError) as error:  # the system has no room for a process, or for its threads
            raise DeviceFailed(device.name, error) from error
        self._processes.append(process)
        return process

    def _begin_on(self, number: int) -> None:
        slot = self._slots[number]
        assert slot.ready is not None
        slot.process.send(messages.Begin(self._run, self._budget))
        self._dispatch.add_worker(number, slot.ready.max_in_flight)

    def _end_silent(self) -> Iterator[Outcome]:
        """Replace processes that hang. The time in which this process does something else does not count."""
        now = perf_counter()
        passed_s, self._looked_at = min(now - self._looked_at, 2 * _WAIT_S), now
        for number, slot in enumerate(self._slots):
            slot.silent_s = slot.silent_s + passed_s if self._dispatch.is_working(number) else 0.0
            if self._longest_s and slot.silent_s > max(MIN_SILENT_S, MAX_BATCH_TIMES * self._longest_s):
                yield from self._died(number, f"has not answered for {slot.silent_s:.0f} s and is ended")

    def _died(self, number: int, reason: str | None = None) -> Iterator[Outcome]:
        """Replace a dead process, or one that hangs for the reason, and hand over its batches."""
        slot = self._slots[number]
        if slot.process not in self._processes:  # it is given up already, or the pool is closed
            return
        reason = slot.process.reason() if reason is None else reason
        slot.process.kill()
        if slot.refused is not None:
            reason = f"failed: {slot.refused.message}"
        was_ready, was_refused = slot.ready is not None, slot.refused is not None
        self._processes.remove(slot.process)
        slot.ready, slot.sent, slot.silent_s = None, messages.Sent(), 0.0
        death = self._dispatch.remove_worker(number)
        slot.share.died += was_ready
        slot.deaths_in_a_row += 1
        slot.is_given_up = not self._run or (was_refused and not was_ready) or slot.deaths_in_a_row > MAX_DEATHS
        killed = RecordingKilledProcess(reason)
        if self._run and not slot.is_given_up:
            try:
                slot.process, slot.refused = self._new_process(slot.device), None
            except DeviceFailed as failed:
                why = first_line(failed.__cause__ or failed)
                reason, slot.is_given_up = f"{reason} and cannot be started again ({why})", True
        slot.death = self._last_death = reason
        if not self._run:  # the pool says so once it knows whether another one could start
            return
        self._say_death(slot, reason, death.num_handed_over)
        self._check_usable()
        for utterance in death.given_up:
            self._count_done((utterance,), is_decoded=False)
            yield (utterance,), (to_failure(utterance.audio, "model", killed),)

    def _check_usable(self) -> None:
        """Raise UsageError after close(), and DeviceFailed if no device is left."""
        if not self._finalizer.alive:
            raise UsageError("the processes of --devices are closed: load the model again")
        if all(slot.is_given_up for slot in self._slots):
            raise self._failed(f"the last process {self._last_death}")

    def _failed(self, reason: str) -> DeviceFailed:
        return DeviceFailed(", ".join(slot.device.name for slot in self._slots), RuntimeError(reason))

    def _say_death(self, slot: _Slot, reason: str, num_handed_over: int) -> None:
        what = "utterance goes" if num_handed_over == 1 else "utterances go"
        others = f"; {num_handed_over:,} {what} to other processes" if num_handed_over else ""
        after = "it is not used any more" if slot.is_given_up else "a new process is started"
        self._tell(f"{slot.device.process_name} {reason}{others}; {after}")

    def _say(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

    def _common_facts(self) -> ModelFacts:
        """Return what the processes say of the model, which must be the same but for the device's name."""
        found = [slot.ready.facts for slot in self._slots if slot.ready is not None]
        if not found:
            refused = next((slot.refused for slot in self._slots if slot.refused is not None), None)
            raise (_error(refused) if refused is not None else self._failed("no process could be started"))
        names = list(dict.fromkeys(one.device_name for one in found))
        facts = replace(found[0], device_name=", ".join(names))
        for slot in self._slots:
            if slot.ready is not None and replace(slot.ready.facts, device_name=facts.device_name) != facts:
                raise UsageError(
                    f"--devices: {self._slots[0].device.name} would decode in {found[0].dtype}, {slot.device.name} in "
                    f"{slot.ready.facts.dtype}: choose with --dtype"
                )
        return facts


def _audio_s(utterances: Plan) -> float:
    return sum(utterance.duration_s for utterance in utterances)


def _probed(utterance: Utterance, probed: Any) -> Utterance:
    """Return an utterance whose recording was opened only now, with its real length."""
    audio = probed.get(utterance.audio.index)
    if audio is None:
        return utterance
    return Utterance(messages.returned(audio, utterance.audio), 0, audio.num_samples)


def _with_row(result: Hypothesis | Failure, audio: AudioInfo) -> Hypothesis | Failure:
    return replace(result, row=audio.row, given_key=audio.given_key) if isinstance(result, Failure) else result


def _error(refused: messages.Refused) -> Exception:
    """Return the error that a process ended with."""
    kind = getattr(errors, refused.error_type, None)
    if not (isinstance(kind, type) and issubclass(kind, FastscribeError)):
        return DeviceFailed("every process", RuntimeError(refused.message))
    error = kind.__new__(kind)
    ValueError.__init__(error, refused.message)  # its own constructor would build the message again
    return error


def _kill_all(processes: list[WorkerProcess]) -> None:
    while processes:
        processes.pop().kill()
