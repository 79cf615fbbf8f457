"""The helpers of a run, seen from the coordinator: jobs go to the one with the least to do, and no file costs more than itself.

A helper has at most two jobs, so that it never waits for the next. What was in a helper that dies goes to others. Any item of
the job that it was working on may be to blame: each is tried again in a job of its own, and given up when it kills a second
helper. A helper that stands still, such as in a file on a lost network mount, is ended, and counts as one that died.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Event, RLock, Thread
from typing import Any

from fastscribe._system.limits import room_for_processes
from fastscribe.errors import DeviceFailed, RecordingKilledProcess, first_line
from fastscribe.fast_paths import RefusedPath
from fastscribe.pipeline.loader import REMOTE_THREADS
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.arena import Arena
from fastscribe.pipeline.workers.messages import KINDS, Kind
from fastscribe.pipeline.workers.process import StderrRelay, WorkerProcess, kill_all

MAX_JOBS = 2  # that a helper has
STILL_S = 60.0  # without the end of a job, processor time or a byte that is read
_STILL_WITHOUT_CLOCK_S = 600.0  # where the system shows neither time nor bytes, and a job may have hours of audio
CHECK_INTERVAL_S = 0.25
_END_S = 1.0  # for a helper to finish what the end of a run finds it at
_MAX_FAILED_STARTS = 3  # in a row
_FILES, _TASKS = 2, 4  # of a helper in this process; processes and threads in both
_GIVEN_BACK = 4  # if no more helpers can start, one of these is ended: the run needs files and threads, too
# One thread each: numpy and soxr would start more, and each helper has a core.
_VARIABLES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _ignore(*arguments: object) -> None:
    """Do nothing with what comes too late."""


@dataclass(eq=False)
class Job:
    """Work for a helper.

    Attributes:
        kind: What is done with the items.
        shared: What they have in common.
        items: The items, by number; of those that a helper has, the ones without a result.
        done: Called in any thread with the number of each item and its result, or the error of one that was given up.
        late: Called in any thread when an item is tried again, so that its result comes later than the others.
        is_remote: The items wait for a network, which has time limits of its own: several threads work on them.
        prefers: Number of the helper that has data of the items.
        is_suspect: A helper died while it was working on its only item, among others.
    """

    kind: Kind
    shared: Any
    items: dict[int, Any]
    done: Callable[[int, Any], None]
    late: Callable[[], None] = _ignore
    is_remote: bool = False
    prefers: int | None = None
    is_suspect: bool = False
    number: int = field(default=-1, init=False)
    sent: Sequence[int] = field(default=(), init=False)  # numbers of the items, in the order in which a helper has them
    is_dropped: bool = field(default=False, init=False)  # its run has ended

    def drop(self) -> None:
        """Call no one any more, and give none of it to another helper."""
        self.is_dropped, self.done, self.late = True, _ignore, _ignore


@dataclass(eq=False)
class _Helper:
    number: int
    process: WorkerProcess
    jobs: list[Job] = field(default_factory=list)  # in the order in which it works on them
    is_ready: bool = False
    seen: tuple[int, ...] = ()  # its job, and what the system shows of its work, when it was last seen
    still_s: float = 0.0  # since it last moved
    ended_for: str = ""  # why it is ended


class HelperPool:
    """The helpers. Its methods may be called in any thread.

    Args:
        number: How many there are, if the system has room for them.
        arena: The memory that they share.
        relay: Prints what libraries write to their stderr.
        say: Called with a line for the user.
        fail: Called in any thread if no helper can be started.
        is_nice: Other processes of the run come first.
        num_devices: Devices that have a process each.

    Raises:
        DeviceFailed: No helper could be started.

    Attributes:
        number: How many there are.
        cpu_s: Processor seconds by kind of job.
        homes: By a remote recording's position in the run, the helper that has prepared it and has its bytes.
    """

    def __init__(
        self,
        number: int,
        arena: Arena,
        relay: StderrRelay,
        say: Callable[[str], None],
        fail: Callable[[DeviceFailed], None],
        is_nice: bool = False,
        num_devices: int = 1,
    ) -> None:
        self.number, self._arena, self._relay, self._say, self._tell_failure = number, arena, relay, say, fail
        self.cpu_s: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self.homes: dict[int, int] = {}
        self._lock = RLock()
        self._queued: dict[Kind, deque[Job]] = {kind: deque() for kind in KINDS}
        self._setup: messages.Setup | None = None
        self._numbers, self._names = count(), count()
        self._broken: DeviceFailed | None = None  # why no helper can be started
        self._failed_starts = 0
        self._helpers: list[_Helper] = []
        self._is_nice, self._closed = is_nice, Event()
        try:
            with self._lock:
                self._start_first(num_devices)
            Thread(target=self._watch, name="helpers-watch", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self.close()
            raise DeviceFailed("a helper process", error) from error
        except BaseException:
            self.close()
            raise

    def set_up(self, stages: Mapping[Kind, Any]) -> None:
        """Tell the helpers what the jobs of a run need."""
        with self._lock:
            self._setup = messages.Setup(stages)
            for helper in self._helpers:
                helper.process.send(self._setup)

    def submit(self, job: Job) -> None:
        """Queue a job. If no helper can be started, each item has the reason as its result."""
        with self._lock:
            self._queued[job.kind].append(job)
            self._dispatch()
        self._give_up_queued()

    def forget(self, index: int) -> None:
        """Let a helper free the bytes of a recording, which has its result, if it is a remote one."""
        if (home := self.homes.pop(index, None)) is None:
            return
        with self._lock:
            for helper in self._helpers:
                if helper.number == home:
                    helper.process.send(messages.Forget(index))

    def end_run(self) -> None:
        """Drop all jobs. A helper that does not come to an end soon is replaced: it may write into memory that is free now."""
        self.homes.clear()
        with self._lock:
            for queue in self._queued.values():
                queue.clear()
            for helper in self._helpers:
                for job in helper.jobs:
                    job.drop()
        deadline = time.monotonic() + _END_S
        while (busy := [one for one in self._helpers if one.jobs]) and time.monotonic() < deadline:
            time.sleep(0.005)
        with self._lock:
            for helper in busy:
                if helper in self._helpers and helper.jobs:
                    self._replace(helper)

    def hand_back(self, error: DeviceFailed) -> None:
        """End the helpers. Each item that they had, or would get from now on, has the error as its result."""
        with self._lock:
            self._broken = error
            for helper in self._helpers:
                for job in helper.jobs:
                    self._queued[job.kind].append(job)
        self.close()
        self._give_up_queued()

    def close(self) -> None:
        """End the helpers."""
        kill_all(self.give_up())

    def give_up(self) -> list[WorkerProcess]:
        """Return the processes for the caller to end. No other one starts."""
        self._closed.set()
        with self._lock:
            processes, self._helpers = self.processes, []
        return processes

    @property
    def remote_threads(self) -> int:
        """Threads of each helper that wait for answers to requests."""
        return max(2, REMOTE_THREADS // self.number)

    @property
    def processes(self) -> list[WorkerProcess]:
        return [one.process for one in self._helpers]

    def _start_first(self, num_devices: int) -> None:
        """Start the helpers: fewer if the system has no room for all. Raises DeviceFailed if it has room for none."""
        room, reason = room_for_processes(num_devices, _FILES, _TASKS)
        try:
            for _ in range(max(1, min(self.number, room))):
                self._start()
        except DeviceFailed as error:
            if not self._helpers:
                raise
            reason = first_line(error.__cause__ or error)
            kill_all([self._helpers.pop().process for _ in range(len(self._helpers) // _GIVEN_BACK)])
        self._work_with_fewer(reason)

    def _work_with_fewer(self, reason: str) -> None:
        """Go on with some of the helpers that were asked for, and say why."""
        if len(self._helpers) < self.number:
            line = f"{len(self._helpers)} of {self.number} helper processes run: {reason}"
            self.number = len(self._helpers)
            self._say(RefusedPath("helpers", reason, line))

    def _start(self) -> None:
        number = next(self._names)
        start = messages.StartHelper(self._arena.file, self.number, self._is_nice)
        try:
            process = WorkerProcess(
                f"helper-{number}", "helper", start, self._receive, self._relay, _VARIABLES, self._arena.file
            )
        except (OSError, RuntimeError) as error:  # the system has no room for a process, or for its threads
            raise DeviceFailed("a helper process", error) from error
        if self._setup is not None:
            process.send(self._setup)
        self._helpers.append(_Helper(number, process))

    def _receive(self, process: WorkerProcess, message: Any) -> None:
        """Handle a message of a helper, in its own thread."""
        results: list[tuple[Job, int, Any]] = []
        with self._lock:
            helper = next((one for one in self._helpers if one.process is process), None)
            if helper is None:  # it is replaced, or the pool is closed
                return
            if isinstance(message, messages.Done):
                results = self._finish(helper, message)
            elif message is None:
                results = self._died(helper)
            else:
                helper.is_ready, self._failed_starts = True, 0
            self._dispatch()
        for job, number, result in results:  # without the lock: who hears of it may submit jobs
            job.done(number, result)
        self._give_up_queued()

    def _finish(self, helper: _Helper, message: messages.Done) -> list[tuple[Job, int, Any]]:
        """Return results of a job with the numbers of their items."""
        job = next((one for one in helper.jobs if one.number == message.job), None)
        if job is None:
            return []
        self.cpu_s[job.kind] += message.cpu_s
        numbers = job.sent[message.first : message.first + len(message.results)]
        for number in numbers:
            item = job.items.pop(number)
            if job.is_remote and job.kind == "prepare":
                self.homes[item.index] = helper.number
        if not job.items:
            helper.jobs.remove(job)
        return [(job, number, result) for number, result in zip(numbers, message.results, strict=True)]

    def _died(self, helper: _Helper) -> list[tuple[Job, int, Any]]:
        """Replace a dead helper and hand over its jobs. Return the item that no helper tries again, if any, as a result."""
        reason = helper.ended_for or helper.process.reason()
        if not helper.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                self._retire(helper)
                if self._helpers:
                    self._work_with_fewer(f"one {reason} before it could work")
                else:
                    self._fail(DeviceFailed("a helper process", RuntimeError(f"it {reason} before it could work")))
                return []
        given_up: list[tuple[Job, int, Any]] = []
        for job in [one for one in helper.jobs if not one.is_dropped]:
            queue = self._queued[job.kind]
            job.late()
            if job is not helper.jobs[0]:
                queue.appendleft(job)
            elif job.is_suspect:
                given_up = [(job, item, RecordingKilledProcess(reason)) for item in job.items]
            else:
                queue.extend(replace(job, items={item: job.items[item]}, is_suspect=True) for item in job.items)
        if helper.is_ready:
            self._say(f"a helper process {reason}; its work goes to others and a new one is started")
        self._replace(helper)
        return given_up

    def _replace(self, helper: _Helper) -> None:
        self._retire(helper)
        if len(self._helpers) < self.number and not self._closed.is_set():
            try:
                self._start()
            except DeviceFailed as error:
                if self._helpers:
                    self._work_with_fewer(first_line(error.__cause__ or error))
                else:
                    self._fail(error)

    def _fail(self, error: DeviceFailed) -> None:
        """Note that no helper can be started."""
        self._broken = error
        self._tell_failure(error)

    def _give_up_queued(self) -> None:
        """Without helpers, give the reason to all that waits for one. Call this without the lock."""
        if self._broken is None:
            return
        with self._lock:
            if self._helpers:  # the others go on
                return
            jobs = [job for queue in self._queued.values() for job in queue]
            for queue in self._queued.values():
                queue.clear()
        for job in jobs:
            for number in job.items:
                job.done(number, self._broken)

    def _retire(self, helper: _Helper) -> None:
        self._helpers.remove(helper)
        helper.process.end()  # before its memory is given to others
        try:
            Thread(target=helper.process.kill, name="helpers-end", daemon=True).start()
        except RuntimeError:  # no more threads
            helper.process.kill()

    def _dispatch(self) -> None:
        """Give queued jobs to helpers with room, those with the least to do first."""
        for depth in range(MAX_JOBS):
            for helper in self._helpers:
                if helper.is_ready and len(helper.jobs) == depth:
                    job = self._next_job(helper)
                    if job is not None:
                        self._send(helper, job)

    def _next_job(self, helper: _Helper) -> Job | None:
        """Take the first job for a helper out of the queue; None: there is none."""
        for queue in self._queued.values():
            for index, job in enumerate(queue):
                is_elsewhere = any(one.number == job.prefers for one in self._helpers)
                if job.prefers in (None, helper.number) or not is_elsewhere:
                    del queue[index]
                    return job
        return None

    def _send(self, helper: _Helper, job: Job) -> None:
        job.number, job.sent = next(self._numbers), list(job.items)
        helper.jobs.append(job)
        threads = self.remote_threads if job.is_remote and len(job.items) > 1 else 1
        items = list(job.items.values())
        helper.process.send(messages.Job(job.number, job.kind, job.shared, items, _folder(), threads))

    # --- helpers that stand still ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._closed.wait(CHECK_INTERVAL_S):
            now = time.monotonic()
            # A time in which this one stood still.
            passed_s, looked_at = min(now - looked_at, 2 * CHECK_INTERVAL_S), now
            with self._lock:
                still = [one.process for one in self._helpers if self._stands_still(one, passed_s)]
            # They count as dead at once: a disk that does not answer holds even one that was killed.
            for process in still:
                self._receive(process, None)

    def _stands_still(self, helper: _Helper, passed_s: float) -> bool:
        """Return True if a helper has not moved for a while. A job of remote files has time limits of its own."""
        if not helper.jobs or helper.jobs[0].is_remote:
            helper.still_s = 0.0
            return False
        work = _work_of(helper.process.pid)
        seen = (helper.jobs[0].number, *work)
        helper.still_s = helper.still_s + passed_s if seen == helper.seen else 0.0
        helper.seen = seen
        if helper.still_s > (limit_s := STILL_S if work else _STILL_WITHOUT_CLOCK_S):
            helper.ended_for = f"stood still in a file for {limit_s:.0f} s and was ended"
        return bool(helper.ended_for)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is deleted: relative paths name nothing
        return ""


def _work_of(pid: int) -> tuple[int, ...]:
    """Return what a process has done: steps of processor time, and bytes read; nothing if the system does not say."""
    if sys.platform != "linux":
        return ()
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/io", "rb") as file:
            num_read = int(file.readline().split()[1])
        return int(fields[11]) + int(fields[12]), num_read
    except OSError:  # it has just ended, or a container hides it
        return ()
