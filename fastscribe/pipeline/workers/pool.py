"""Devices and helpers as the executor of a run: helpers read batches into shared memory, and devices decode them from there.

This process has no model and opens no file. It plans where samples lie, hands each batch that is read to the device with the
least to do, and frees its memory when the last result has come. A device whose process dies hands its batches to the others
(dispatch.py) and gets a new process, which finds the samples where they are; one that dies again and again without a result is
given up. When the last is given up, the run stops. A process that has batches and answers nothing for much longer than any
batch has taken is ended.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from fastscribe._system.limits import raise_soft_limits, usable_bytes
from fastscribe._system.processors import usable_processors
from fastscribe.audio.failures import to_failure
from fastscribe.config import Options, OutputStyle
from fastscribe.errors import (
    DeviceFailed,
    DeviceUnusable,
    FastscribeError,
    ModelClosed,
    RecordingKilledProcess,
    UsageError,
    first_line,
)
from fastscribe.pipeline.batch_layout import BatchLayout
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import HostWork, Outcome, Plan
from fastscribe.pipeline.interfaces import IDLE, Additions, Idle, ModelFacts
from fastscribe.pipeline.prefetch import Prefetcher
from fastscribe.pipeline.preparation import Preparation
from fastscribe.pipeline.stats import DeviceShare, Stopwatch
from fastscribe.pipeline.text_stage import TextStage, local_texts
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.window_buffer import Preparers
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.arena import Arena
from fastscribe.pipeline.workers.devices import Device
from fastscribe.pipeline.workers.dispatch import Dispatch, Task
from fastscribe.pipeline.workers.groups import ITEMS_A_JOB, InputGroup, ReadBatch
from fastscribe.pipeline.workers.helpers import HelperPool
from fastscribe.pipeline.workers.process import StderrRelay, WorkerProcess, kill_all
from fastscribe.pipeline.workers.stages import MakeTextStage, PrepareStage, ReadStage
from fastscribe.pipeline.workers.texts import HelperTexts
from fastscribe.segmentation.silence import with_cuts
from fastscribe.types import AudioInfo, Failure, Hypothesis, Utterance

MAX_DEATHS = 3  # in a row, without a result in between; a device that dies once more is given up
# Silence that ends a process: seconds, and times the longest before an answer.
MIN_SILENT_S, MAX_BATCH_TIMES = 600.0, 10.0
READ_AHEAD = 3  # batches of a device that are being read
MIN_HELPERS = 2  # one may wait for a slow file
MAX_DEVICE_HELPERS = 32  # beyond them the coordinator is what a device waits for
_WAIT_S = 0.5  # Windows does not interrupt a longer wait by Ctrl-C


@dataclass
class _Slot:
    """A device and its process, or the latest of them."""

    number: int
    device: Device
    process: WorkerProcess
    share: DeviceShare
    ready: messages.Ready | None = None
    refused: Exception | None = None
    death: str = ""  # why it could not start
    is_given_up: bool = False
    deaths_in_a_row: int = 0
    silent_s: float = 0.0  # since the process got work or answered


def num_helpers(options: Options, num_devices: int) -> int:
    """Return the number of helpers: Options.threads, else the processors beside the coordinator's and the devices'."""
    free = usable_processors() - 1 - num_devices
    return options.threads or min(max(MIN_HELPERS, free), MAX_DEVICE_HELPERS * num_devices)


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

    Attributes:
        style: Transcripts come rendered for it; None: whole.
        helpers: The helpers.
    """

    opens_files = False

    def __init__(
        self,
        devices: Sequence[Device],
        start: messages.Start,
        num_frames: Callable[[Utterance], int],
        say: Callable[[str], None],
    ) -> None:
        self.style: OutputStyle | None = None
        self._num_frames, self._tell = num_frames, say
        self._told: set[str] = set()
        self._lines: SimpleQueue[str] = SimpleQueue()  # of helpers, which say them in other threads
        self._events: SimpleQueue[tuple[WorkerProcess | None, Any]] = SimpleQueue()  # None: of no device
        self._run, self._budget, self._stopwatch = 0, Budget(1.0), Stopwatch()
        self._longest_s, self._looked_at = 0.0, perf_counter()  # time of a batch; when silence was last measured
        self._last_death = ""
        self._text_s = 0.0  # seconds of helpers for the texts of earlier runs
        self._is_woken = False  # an event wakes it already
        self._processes: list[WorkerProcess] = []  # of devices, all that may live
        self._readers: ReplacingThreadPool | None = None
        self._batches: dict[int, ReadBatch] = {}  # in the arena, by number
        self._reset()
        raise_soft_limits()
        with ExitStack() as opened:
            self._relay = StderrRelay()
            opened.callback(self._relay.close)
            self._arena = Arena.of_machine(usable_bytes(), len(devices))
            opened.callback(self._arena.close)
            if self._arena.refusal is not None:
                why = first_line(self._arena.refusal)
                self._tell(f"the system refuses memory without a file ({why}): samples go through a file in TMPDIR")
            self._start = replace(start, shared=self._arena.file)
            helpers: list[HelperPool] = []
            opened.callback(_end, self._processes, helpers)
            # Devices first: they take longer to start.
            self._slots = [
                _Slot(number, one, self._new_process(one), DeviceShare(one.name, ""))
                for number, one in enumerate(devices)
            ]
            self.helpers = self._new_helpers(start.options)
            helpers.append(self.helpers)
            self._facts, self._ready = self._wait_until_ready()
            self._finalizer = weakref.finalize(self, opened.pop_all().close)

    def _wait_until_ready(self) -> tuple[ModelFacts, messages.Ready]:
        """Return what the processes say of the model, and what one of them has said: later all may be starting again."""
        while any(slot.ready is None and not slot.is_given_up for slot in self._slots):
            for _ in self._receive():
                pass
        facts = self._common_facts()
        for slot in self._slots:
            if slot.is_given_up:
                self._tell(f"{slot.device.process_name} {slot.death}; the others go on")
        return facts, next(slot.ready for slot in self._slots if slot.ready is not None)

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
        budgets = [slot.ready.budget for slot in self._slots if slot.ready is not None] or [self._ready.budget]
        return Budget.smallest(budgets)

    def begin(self, options: Options, budget: Budget, stopwatch: Stopwatch) -> None:
        self._check_usable()
        self._run, self._budget, self._stopwatch = self._run + 1, budget, stopwatch
        self._reset()
        try:
            self._readers = ReplacingThreadPool(self.helpers.number, "read")  # what this process holds
        except RuntimeError as error:  # no more threads
            raise DeviceFailed("the start of threads", error) from error
        self.helpers.set_up({"read": ReadStage()})
        for slot in self._slots:
            slot.share = DeviceShare(slot.device.name, slot.share.device, peak_bytes=slot.share.peak_bytes)
            if slot.ready is not None:
                self._begin_on(slot)

    def host_work(self, preparation: Preparation, stage: TextStage, rooms: Additions) -> HostWork:
        if stage.options.needs_whole_recordings or rooms.make_texts is not None:
            return HostWork(local_texts(stage, rooms), wake=self._wake)
        made = MakeTextStage(stage, rooms.edits, self.style)
        stages: dict[messages.Kind, Any] = {
            "read": ReadStage(),
            "prepare": PrepareStage(preparation),
            "text": made,
        }
        self.helpers.set_up(stages)
        make_texts = partial(HelperTexts, made, self.helpers, self._wake)
        helpers = Preparers(partial(InputGroup, preparation, self.helpers), ITEMS_A_JOB, self._wake)
        return HostWork(make_texts, helpers, self._wake)

    def execute(self, plans: Iterable[Plan | Idle]) -> Generator[Outcome | Idle, None, None]:
        assert self._readers is not None, "begin() comes first"
        self._reads: Prefetcher[ReadBatch] = Prefetcher(self._readers, self._wake)
        waiting, has_plans = iter(plans), True
        try:
            while has_plans or self._planned or self._is_busy:
                has_plans, is_source_slow = self._take_plans(waiting) if has_plans else (False, False)
                yield from self._hand_out_read()
                while (task := self._dispatch.assign_suspect()) is not None:
                    self._send(task)
                if not (self._planned or len(self._reads) or self._to_hand_out or self._dispatch.is_busy):
                    yield from self._fail_blamed()
                self._tell_lines()
                yield IDLE
                if self._is_busy or is_source_slow:
                    yield from self._receive()
                self._end_silent()
                self._check_usable()
        finally:
            self._reads.close()

    def release(self, index: int) -> None:
        self.helpers.forget(index)

    def end(self) -> None:
        for slot in self._slots:
            if slot.ready is not None:
                slot.process.send(messages.End(self._run))
        self.helpers.end_run()
        if (text_s := self.helpers.cpu_s["text"] - self._text_s) > 0:
            self._stopwatch.add("assemble", text_s)
        self._text_s = self.helpers.cpu_s["text"]
        self._tell_lines()
        if self._readers is not None:
            self._readers.close()
        self._reset()

    def give_up(self, error: DeviceFailed) -> set[int]:
        """Give up the processes for good, because of an error; the caller's process does what helpers were at.

        Returns:
            The recordings without a result that a device had when its process died, by their positions in the run.
        """
        rows = [*self._dispatch.suspects(), *((batch, row) for batch, row, _ in self._blamed)]
        suspects = {self._batches[batch].utterances[row].audio.index for batch, row in rows}
        self.helpers.hand_back(error)
        self.end()
        self.close()
        return suspects

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

    def _reset(self) -> None:
        """Forget the batches of a run. The memory of those that threads of this process still write to is lost."""
        for place in [one.place for one in self._batches.values() if not one.being_written]:
            self._arena.release(place)
        self._dispatch = Dispatch()
        self._batches = {}
        self._numbers = count()
        self._blamed: list[
            tuple[int, int, RecordingKilledProcess]
        ] = []  # batches and rows that ended processes by themselves
        self._planned: deque[Plan] = deque()  # not begun yet: the arena had no room
        self._to_hand_out: deque[tuple[ReadBatch, list[int]]] = deque()  # rows that are read

    @property
    def _is_busy(self) -> bool:
        return bool(self._batches)

    def _take_plans(self, plans: Iterator[Plan | Idle]) -> tuple[bool, bool]:
        """Begin to read batches while there is room. Return whether there may be more, and whether the source is slow."""
        while len(self._reads) < READ_AHEAD * max(1, self.num_devices):
            if not self._planned:
                plan = next(plans, None)
                if plan is None:
                    return False, False
                if plan is IDLE:
                    return True, True
                self._planned.extend(self._pieces(plan))
            if not self._begin_to_read(self._planned[0]):
                return True, False
            self._planned.popleft()
        return True, False

    def _pieces(self, plan: Plan) -> list[Plan]:
        """Divide a plan whose samples would leave no room for others: rows at 44.1 kHz take up to eleven times the bytes."""
        if len(plan) == 1 or self._layout(plan).num_bytes <= self._arena.part_bytes:
            return [plan]
        middle = len(plan) // 2
        return [*self._pieces(plan[:middle]), *self._pieces(plan[middle:])]

    def _layout(self, plan: Plan) -> BatchLayout:
        return BatchLayout.of(plan, self._ready.sample_rate, self._ready.native, self._facts.least_samples)

    def _begin_to_read(self, plan: Plan) -> bool:
        """Begin to read a batch. Return False if it must wait for memory."""
        layout = self._layout(plan)
        place = self._arena.allocate(layout.num_bytes)
        if place is None:
            # What hangs in a file keeps its memory: the run does not wait for that.
            if len(self._reads) or self._to_hand_out or self._dispatch.is_busy:
                return False
            try:
                place = self._arena.grow(layout.num_bytes)
            except OSError as error:
                raise DeviceFailed("the memory that processes share", error) from error
        number = next(self._numbers)
        batch = ReadBatch(number, plan, layout, place, self._arena, self.helpers)
        self._batches[number] = batch
        self._reads.submit(batch)
        return True

    def _hand_out_read(self) -> Iterator[Outcome]:
        """Send what is read to devices with room. Yield what is not decoded."""
        while True:
            if not self._to_hand_out:
                part = self._reads.poll()
                if part is None:
                    return
                yield from self._sort_out(*part)
            while self._to_hand_out:
                if not self._dispatch.has_room():
                    return
                batch, rows = self._to_hand_out.popleft()
                longest = max(self._num_frames(batch.utterances[row]) for row in rows)
                self._send(self._dispatch.assign(batch.number, rows, longest))

    def _sort_out(self, batch: ReadBatch, done: Sequence[int]) -> Iterator[Outcome]:
        """Queue the rows that are to be decoded. Yield the others: those that could not be read, and digital silence."""
        rows, settled = batch.sort_out(done)
        for row, result in settled:
            yield from self._finish(batch, [row], [result])
        if rows:
            self._to_hand_out.append((batch, rows))

    def _finish(
        self, batch: ReadBatch, rows: Sequence[int], results: Sequence[Hypothesis | Failure]
    ) -> Iterator[Outcome]:
        """Yield the results of rows. The last ones free the batch's memory."""
        utterances = [batch.utterances[row] for row in rows]
        batch.num_undone -= len(rows)
        if not batch.num_undone:
            del self._batches[batch.number]
            self._arena.release(batch.place)
        yield utterances, results

    def _send(self, task: Task) -> None:
        """Send a batch, or rows of it, to its device."""
        batch, rows = self._batches[task.number], sorted(task.left)
        utterances = [batch.utterances[row] for row in rows]
        constraints = [(one.audio.boost, one.audio.language) for one in utterances]
        self._slots[task.worker].process.send(
            messages.Work(
                self._run,
                batch.number,
                batch.place,
                batch.layout,
                rows,
                batch.lengths(rows),
                utterances[0].purpose,
                constraints if any(boost or language for boost, language in constraints) else (),
            )
        )

    def _wake(self) -> None:
        """Wake the thread that drives the run. Any thread may call this."""
        if not self._is_woken:
            self._is_woken = True
            self._events.put((None, None))

    def _receive(self) -> Iterator[Outcome]:
        """Wait a moment for a message, and handle all that have come."""
        for number in range(max(1, self._events.qsize())):
            try:
                process, message = self._events.get(not number, _WAIT_S)
            except Empty:
                return
            if process is None:  # of no device
                if isinstance(message, DeviceFailed):
                    raise message
                self._is_woken = False
                continue
            for slot in self._slots:
                if slot.process is process and not slot.is_given_up:  # else another process has its work
                    yield from self._handle(slot, message)

    def _tell_lines(self) -> None:
        """Tell what helpers have said. The last one may die after the last batch."""
        while not self._lines.empty():
            self._tell(self._lines.get())

    def _handle(self, slot: _Slot, message: Any) -> Iterator[Outcome]:
        if message is None:
            self._died(slot)
        elif isinstance(message, messages.Ready):
            slot.ready, slot.share.device = message, message.facts.device_name
            slot.share.peak_bytes = max(slot.share.peak_bytes, message.peak_bytes)
            if self._run:  # a new process in the middle of a run
                self._begin_on(slot)
        elif isinstance(message, messages.Refused):
            slot.refused = message.error
            if slot.ready is not None and type(message.error) is UsageError:
                raise message.error
        elif isinstance(message, messages.Say):
            self._say(message.line)
        elif message.run == self._run:
            yield from self._results(slot, message)

    def _results(self, slot: _Slot, message: messages.Results) -> Iterator[Outcome]:
        self._longest_s, slot.silent_s = max(self._longest_s, slot.silent_s), 0.0
        for stage, seconds in message.stage_s.items():
            self._stopwatch.add(stage, seconds)
        self._budget.frames = min(self._budget.frames, message.budget_frames)
        slot.share.busy_s += message.busy_s
        slot.share.peak_bytes = max(slot.share.peak_bytes, message.peak_bytes)
        slot.share.pinned_bytes = max(slot.share.pinned_bytes, message.pinned_bytes)
        self._dispatch.finish(message.batch, message.rows)
        batch, rows = self._batches[message.batch], message.rows
        results = self._with_cuts(batch, rows, message.results)
        slot.share.batches += not isinstance(message.results, Failure)
        slot.share.utterances += len(rows)
        slot.share.audio_s += sum(batch.utterances[row].duration_s for row in rows)
        slot.deaths_in_a_row = 0
        yield from self._finish(batch, rows, results)
        yield from self._fail_blamed()

    def _with_cuts(
        self, batch: ReadBatch, rows: Sequence[int], results: Sequence[Hypothesis] | Failure
    ) -> Sequence[Hypothesis | Failure]:
        """Return a device's results of some rows, with their frames counted in the whole utterances."""
        if isinstance(results, Failure):
            return [_failed(results, batch.utterances[row].audio) for row in rows]
        if not any(batch.rows[row].cuts for row in rows):
            return results
        frame_s, marks = self._facts.token_frame_s, self._facts.marks
        pairs = zip(rows, results, strict=True)
        return [with_cuts(result, batch.rows[row].cuts, frame_s, marks) for row, result in pairs]

    # --- processes ---------------------------------------------------------------------------------------------------

    def _new_process(self, device: Device) -> WorkerProcess:
        events = self._events  # a thread that held the pool itself would keep it from being collected
        start = replace(self._start, device=device.kind, processors=device.processors, memory_share=device.memory_share)
        try:
            process = WorkerProcess(
                device.name,
                "device",
                start,
                lambda *event: events.put(event),
                self._relay,
                device.variables,
                self._arena.file,
            )
        except (OSError, RuntimeError) as error:  # the system has no room for a process, or for its threads
            raise DeviceFailed(device.name, error) from error
        self._processes.append(process)
        return process

    def _new_helpers(self, options: Options) -> HelperPool:
        events, number = self._events, num_helpers(options, len(self._slots))
        return HelperPool(
            number,
            self._arena,
            self._relay,
            self._lines.put,
            lambda error: events.put((None, error)),
            is_nice=number + 1 + len(self._slots) > usable_processors(),
            num_devices=len(self._slots),
        )

    def _begin_on(self, slot: _Slot) -> None:
        assert slot.ready is not None
        slot.process.send(messages.Begin(self._run, self._budget))
        self._dispatch.add_worker(slot.number, slot.ready.max_in_flight)

    def _end_silent(self) -> None:
        """Replace processes that hang. The time in which this process does something else does not count."""
        now = perf_counter()
        passed_s, self._looked_at = min(now - self._looked_at, 2 * _WAIT_S), now
        for slot in self._slots:
            slot.silent_s = slot.silent_s + passed_s if self._dispatch.is_working(slot.number) else 0.0
            if self._longest_s and slot.silent_s > max(MIN_SILENT_S, MAX_BATCH_TIMES * self._longest_s):
                self._died(slot, f"has not answered for {slot.silent_s:.0f} s and is ended")

    def _died(self, slot: _Slot, reason: str | None = None) -> None:
        """Replace a dead process, or one that hangs for the reason, and hand over its batches."""
        if slot.process not in self._processes:  # the pool is closed
            return
        reason = slot.process.reason() if reason is None else reason
        slot.process.kill()
        if slot.refused is not None:
            reason = f"failed: {_problem(slot.refused)}"
        was_ready, was_refused = slot.ready is not None, slot.refused is not None
        self._processes.remove(slot.process)
        slot.ready, slot.silent_s = None, 0.0
        num_handed_over, given_up = self._dispatch.remove_worker(slot.number)
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
        self._say_death(slot, reason, num_handed_over)
        self._blamed += ((batch, row, killed) for batch, row in given_up)
        self._check_usable()

    def _fail_blamed(self) -> Iterator[Outcome]:
        """Fail the rows that ended processes: another row has a result now, or there is none, so the device is not to blame."""
        blamed, self._blamed = self._blamed, []
        for number, row, killed in blamed:
            batch = self._batches[number]
            yield from self._finish(batch, [row], [to_failure(batch.utterances[row].audio, "model", killed)])

    def _check_usable(self) -> None:
        """Raise ModelClosed after close(), and DeviceFailed if no device is left."""
        if not self._finalizer.alive:
            raise ModelClosed
        if all(slot.is_given_up for slot in self._slots):
            raise self._failed(f"the last process {self._last_death}")

    def _failed(self, reason: str) -> DeviceFailed:
        return DeviceFailed(", ".join(slot.device.name for slot in self._slots), RuntimeError(reason))

    def _refused(self, slot: _Slot) -> FastscribeError:
        """Return the error that a device's process ended with."""
        if isinstance(slot.refused, DeviceUnusable):
            return DeviceUnusable(f"--devices {slot.device.name}", slot.refused.problem)
        return slot.refused if isinstance(slot.refused, FastscribeError) else self._failed(str(slot.refused))

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
            refused = next((slot for slot in self._slots if slot.refused is not None), None)
            raise (self._failed(f"its process {self._last_death}") if refused is None else self._refused(refused))
        names = list(dict.fromkeys(one.device_name for one in found))
        facts = replace(found[0], device_name=", ".join(names))
        for slot in self._slots:
            if slot.ready is not None and replace(slot.ready.facts, device_name=facts.device_name) != facts:
                raise UsageError(
                    f"--devices: {self._slots[0].device.name} would decode in {found[0].dtype}, {slot.device.name} in "
                    f"{slot.ready.facts.dtype}: choose with --dtype"
                )
        return facts


def _problem(error: Exception) -> str:
    return error.problem if isinstance(error, DeviceUnusable) else str(error)  # the option names `device` there


def _failed(failure: Failure, audio: AudioInfo) -> Failure:
    """Return the failure of a batch as that of a recording."""
    given = audio.path, audio.id, failure.stage, failure.error_type, failure.message
    return Failure(*given, audio.row, audio.index, audio.given_key, audio.listed)


def _end(devices: list[WorkerProcess], helpers: Sequence[HelperPool]) -> None:
    processes = [*devices, *(process for pool in helpers for process in pool.give_up())]
    devices.clear()
    kill_all(processes)
