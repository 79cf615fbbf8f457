"""Each item of each job has one result, whatever becomes of the helpers. These are real processes, which load no model."""

from __future__ import annotations

import errno
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fastscribe.errors import DeviceFailed, RecordingKilledProcess, first_line
from fastscribe.fast_paths import RefusedPath
from fastscribe.pipeline.workers import helpers, messages
from fastscribe.pipeline.workers.arena import Arena
from fastscribe.pipeline.workers.helpers import HelperPool, Job
from fastscribe.pipeline.workers.process import StderrRelay
from tests.helpers.helper_stage import Item, ItemStage

PATIENCE_S = 60.0
STILL_LINE = (
    "a helper process stood still in a file for 0 s and was ended; its work goes to others and a new one is started"
)
STAGES: dict[messages.Kind, Any] = dict.fromkeys(messages.KINDS, ItemStage())

pytestmark = pytest.mark.posix


@pytest.fixture(scope="module")
def running(forked: None) -> Iterator[SimpleNamespace]:
    """Two helpers, the lines that they say, and why they failed."""
    arena, relay = Arena(4096), StderrRelay()
    lines: list[str] = []
    failures: list[DeviceFailed] = []
    pool = HelperPool(2, arena, relay, lines.append, failures.append)
    pool.set_up(STAGES)
    yield SimpleNamespace(pool=pool, lines=lines, failures=failures, arena=arena)
    pool.close()
    relay.close()
    arena.close()


@pytest.fixture
def pool(running: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[HelperPool]:
    monkeypatch.setattr(helpers, "STILL_S", 0.2)
    monkeypatch.setattr(helpers, "CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(helpers, "_END_S", 0.2)
    until(lambda: [helper.is_ready for helper in running.pool._helpers] == [True, True])
    running.lines.clear()
    yield running.pool
    running.pool.end_run()
    assert not running.failures


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Collected:
    """The results of a job by position, and how often an item of it was tried again."""

    def __init__(self, items: list[Item], kind: messages.Kind = "read", shared: int = 0, **rest: Any) -> None:
        self.results: dict[int, Any] = {}
        self.num_late = 0
        self.num_items = len(items)
        self.job = Job(kind, shared, dict(enumerate(items)), self._done, self._late, **rest)

    def _done(self, number: int, result: Any) -> None:
        assert number not in self.results, "an item has two results"
        self.results[number] = result

    def _late(self) -> None:
        self.num_late += 1

    def wait(self, number: int | None = None) -> dict[int, Any]:
        until(lambda: len(self.results) >= (self.num_items if number is None else number))
        return self.results


def submit(pool: HelperPool, items: list[Item], kind: messages.Kind = "read", **rest: Any) -> Collected:
    collected = Collected(items, kind, **rest)
    pool.submit(collected.job)
    return collected


def numbers(*given: int) -> list[Item]:
    return [Item(number) for number in given]


@pytest.fixture
def gate(tmp_path: Path) -> str:
    path = tmp_path / "gate"
    os.mkfifo(path)
    return str(path)


def open_gate(gate: str) -> None:
    """Let all items that wait, and those that come, go on."""
    os.open(gate, os.O_RDWR)  # until the process ends, because they may come late


def pids(pool: HelperPool) -> list[int]:
    return [process.pid for process in pool.processes]


def test_results_come_by_position(pool: HelperPool) -> None:
    jobs = [submit(pool, numbers(*range(20)), shared=1000 * job) for job in range(8)]
    for number, job in enumerate(jobs):
        assert job.wait() == {position: 2 * position + 1000 * number for position in range(20)}
    assert pool.cpu_s["read"] >= 0


def test_a_job_goes_to_the_helper_that_it_prefers_as_long_as_that_lives(pool: HelperPool) -> None:
    home = pool._helpers[1].number
    jobs = [submit(pool, [Item(1, tells=True)], prefers=home) for _ in range(6)]
    assert {pid for job in jobs for pid in job.wait().values()} == {pids(pool)[1]}
    assert submit(pool, numbers(4), prefers=12345).wait() == {0: 8}


def test_the_helper_that_has_prepared_a_remote_recording_is_known_until_that_has_its_result(pool: HelperPool) -> None:
    prepared = submit(
        pool, [Item(number, tells=True, index=10 + number) for number in range(3)], "prepare", is_remote=True
    )
    pids_of = {helper.number: helper.process.pid for helper in pool._helpers}
    prepared.wait()
    assert {index: pids_of[home] for index, home in pool.homes.items()} == {
        10 + number: pid for number, pid in prepared.results.items()
    }
    submit(pool, [Item(0, index=20)], "prepare").wait()
    pool.forget(11)
    assert sorted(pool.homes) == [10, 12]
    pool.end_run()
    assert not pool.homes


def test_a_remote_job_is_done_by_threads(pool: HelperPool, gate: str) -> None:
    """All items wait at once for a writer that comes after them."""
    job = submit(pool, [Item(number, gate) for number in range(4)], is_remote=True)
    time.sleep(0.3)  # longer than STILL_S, but it waits for the network
    assert not job.num_late
    open_gate(gate)
    assert job.wait() == {0: 0, 1: 2, 2: 4, 3: 6}


def test_an_item_of_a_remote_job_that_waits_holds_back_no_other(pool: HelperPool, gate: str) -> None:
    job = submit(pool, [Item(0), Item(1, gate), Item(2)], is_remote=True)
    assert job.wait(2) == {0: 0, 2: 4}
    open_gate(gate)
    assert job.wait() == {0: 0, 1: 2, 2: 4}


def test_a_job_that_prefers_a_helper_that_stands_still_goes_to_another_one(pool: HelperPool, gate: str) -> None:
    home = pool._helpers[0]
    submit(pool, [Item(1, gate)], prefers=home.number)
    waiting = submit(pool, numbers(2), prefers=home.number)
    assert waiting.wait() == {0: 4}
    assert home not in pool._helpers and submit(pool, numbers(3), prefers=home.number).wait() == {0: 6}


def test_a_helper_that_is_stopped_as_a_whole_is_ended(pool: HelperPool, running: SimpleNamespace) -> None:
    stopped = pids(pool)[0]
    os.kill(stopped, signal.SIGSTOP)
    jobs = [submit(pool, numbers(1, 2, 3)) for _ in range(6)]
    for job in jobs:
        assert job.wait() == {0: 2, 1: 4, 2: 6}
    until(lambda: len(pids(pool)) == 2)
    assert stopped not in pids(pool)
    until(lambda: not psutil.pid_exists(stopped))
    [line] = running.lines
    assert line == STILL_LINE


def test_an_item_that_killed_one_helper_is_tried_again(pool: HelperPool, running: SimpleNamespace, tmp_path) -> None:
    items = [*numbers(0, 1), Item(2, kills=True, mark=str(tmp_path / "mark")), *numbers(3, 4)]
    job, other = submit(pool, items), submit(pool, numbers(5))
    assert job.wait() == {position: 2 * position for position in range(5)}
    assert other.wait() == {0: 10}
    assert running.lines == [
        "a helper process was killed by SIGKILL (a system that runs out of memory does that); "
        "its work goes to others and a new one is started"
    ]
    until(lambda: len(pids(pool)) == 2)


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_item_that_kills_two_helpers_is_given_up(
    pool: HelperPool, running: SimpleNamespace, is_remote: bool
) -> None:
    results = submit(pool, [*numbers(0, 1), Item(2, kills=True), *numbers(3, 4)], is_remote=is_remote).wait()
    error = results.pop(2)
    assert isinstance(error, RecordingKilledProcess) and "SIGKILL" in str(error)
    assert results == {position: 2 * position for position in (0, 1, 3, 4)}
    assert len(running.lines) == 2


def test_a_stage_that_cannot_begin_a_job_does_not_kill_helpers_for_ever(
    pool: HelperPool, running: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    results = submit(pool, numbers(0, 1), shared=-1).wait()
    assert all(isinstance(one, RecordingKilledProcess) for one in results.values())
    assert len(running.lines) == 3


def test_items_in_which_two_helpers_stood_still_are_given_up(
    pool: HelperPool, running: SimpleNamespace, gate: str
) -> None:
    """More of them hang than there are helpers, in the middle of jobs; the others have their results."""
    jobs = [submit(pool, [Item(0), Item(1, gate), Item(2)]) for _ in range(3)]
    others = [submit(pool, numbers(7), kind="text") for _ in range(4)]
    for job in jobs:
        results = job.wait()
        assert job.num_late and "stood still in a file" in str(results.pop(1))
        assert results == {0: 0, 2: 4}
    for other in others:
        assert other.wait() == {0: 14}
    until(lambda: len(pids(pool)) == 2)
    assert running.lines == [STILL_LINE] * 6
    assert submit(pool, numbers(5)).wait() == {0: 10}


def test_a_helper_that_cannot_be_ended_counts_as_dead(
    pool: HelperPool, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not answer holds it."""
    monkeypatch.setattr(helpers.WorkerProcess, "end", lambda process: None)
    results = submit(pool, [Item(0), Item(1, gate), Item(2)]).wait()
    assert "stood still in a file" in str(results.pop(1)) and results == {0: 0, 2: 4}


def test_an_item_in_which_one_helper_stood_still_may_end_in_another(pool: HelperPool, gate: str) -> None:
    job = submit(pool, [Item(0), Item(1, gate), Item(2)])
    until(lambda: job.num_late)
    open_gate(gate)
    assert job.wait() == {0: 0, 1: 2, 2: 4}


@pytest.mark.linux
def test_a_helper_that_computes_or_reads_for_long_is_not_ended(pool: HelperPool, running: SimpleNamespace) -> None:
    jobs = [submit(pool, [Item(1, busy_s=1.0)]), submit(pool, [Item(2, reads_s=1.0)])]
    assert [job.wait() for job in jobs] == [{0: 2}, {0: 4}]
    assert not running.lines


def test_the_end_of_a_run_drops_its_work(pool: HelperPool, gate: str) -> None:
    """A helper that hangs is replaced: it may write into memory that is free."""
    before = [psutil.Process(pid) for pid in pids(pool)]
    jobs = [submit(pool, [Item(0, gate), *numbers(1, 2)]) for _ in range(6)]
    until(lambda: all(helper.jobs for helper in pool._helpers))
    pool.end_run()
    assert not any(job.results for job in jobs)
    assert not any(helper.jobs for helper in pool._helpers) and not any(pool._queued.values())
    _, alive = psutil.wait_procs(before, PATIENCE_S)
    assert not alive
    open_gate(gate)
    assert submit(pool, numbers(1)).wait() == {0: 2}
    assert not any(job.results for job in jobs)


def test_relative_paths_count_from_the_coordinators_folder(
    pool: HelperPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    job = submit(pool, [Item(1, "here")])
    open_gate("here")
    assert job.wait() == {0: 2}


def test_helpers_end_with_their_pool() -> None:
    arena, relay = Arena(4096), StderrRelay()
    pool = HelperPool(2, arena, relay, print, print)
    processes = [psutil.Process(pid) for pid in pids(pool)]
    pool.close()
    _, alive = psutil.wait_procs(processes, PATIENCE_S)
    assert not alive and not pool.processes
    relay.close()
    arena.close()


# --- with helpers that do what a test says ---------------------------------------------------------------------------


class FakeProcess:
    """A helper that says what a test lets it say."""

    pid = os.getpid()

    def __init__(self, name: str, program: str, start: Any, receive: Callable[..., None], *_: Any) -> None:
        self._receive = receive
        self.sent: list[Any] = []
        self.is_killed = False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def say(self, message: Any) -> None:
        self._receive(self, message)

    def jobs(self) -> list[messages.Job]:
        return [one for one in self.sent if isinstance(one, messages.Job)]

    def reason(self) -> str:
        return "ended with exit code 1"

    def end(self) -> None:
        """As kill(), which follows."""

    def kill(self, *_: Any) -> None:
        self.is_killed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """One helper that a test speaks for, and does not watch."""
    monkeypatch.setattr(helpers, "WorkerProcess", FakeProcess)
    monkeypatch.setattr(HelperPool, "_watch", lambda self: None)
    arena = Arena(4096)
    failures: list[DeviceFailed] = []
    made = HelperPool(1, arena, StderrRelay(), lambda line: None, failures.append)
    [process] = made.processes
    process.say(messages.HelperReady())
    yield SimpleNamespace(pool=made, process=process, failures=failures)
    made.close()
    arena.close()


def done(job: messages.Job, first: int = 0, number: int | None = None) -> messages.Done:
    end = len(job.items) if number is None else first + number
    return messages.Done(job.number, first, [2 * one.number for one in job.items[first:end]], 0.0)


def test_jobs_of_a_run_that_has_ended_are_not_given_out_again(fake: SimpleNamespace) -> None:
    """They would write into memory that other batches have."""
    for number in range(2):
        submit(fake.pool, numbers(number, 7))
    first, _ = fake.process.jobs()
    with fake.pool._lock:
        for job in fake.pool._helpers[0].jobs:
            job.drop()
    fake.process.say(done(first, number=1))
    assert len(fake.process.jobs()) == 2 and not any(fake.pool._queued.values())
    fake.process.say(None)
    [other] = fake.pool.processes
    other.say(messages.HelperReady())
    assert not other.jobs()


def test_helpers_that_end_before_they_can_work_are_a_failure(fake: SimpleNamespace) -> None:
    fake.process.say(None)
    for _ in range(3):
        assert not fake.failures
        [process] = fake.pool.processes
        process.say(None)
    [error] = fake.failures
    assert "it ended with exit code 1 before it could work" in str(error)


def test_work_that_no_helper_can_do_has_the_reason_as_its_result(fake: SimpleNamespace) -> None:
    """What waits for a helper, and what comes later."""
    kinds = [*messages.KINDS, "read"]
    queued = [submit(fake.pool, numbers(1, 2), kind=kind) for kind in kinds]
    for _ in range(4):
        fake.pool.processes[0].say(None)
    [error] = fake.failures
    assert [job.results for job in queued] == [{0: error, 1: error}] * 4
    later = [submit(fake.pool, numbers(1), kind=kind) for kind in messages.KINDS]
    assert [job.results for job in later] == [{0: error}] * 3


def test_work_that_is_handed_back_has_the_reason_as_its_result(fake: SimpleNamespace) -> None:
    """What the helpers are at, what waits for them, and what comes later. An end of a run drops what it had."""
    dropped = submit(fake.pool, numbers(1))
    with fake.pool._lock:
        fake.pool._helpers[0].jobs[0].drop()
    jobs = [submit(fake.pool, numbers(1, 2, 3)) for _ in range(4)]
    fake.process.say(done(fake.process.jobs()[1], number=1))
    error = DeviceFailed("cpu:0", OSError("lost"))
    fake.pool.hand_back(error)
    jobs.append(submit(fake.pool, numbers(1, 2, 3)))
    assert [job.results for job in jobs] == [{0: 2, 1: error, 2: error}, *[{0: error, 1: error, 2: error}] * 4]
    assert not dropped.results and fake.process.is_killed and not fake.failures


@pytest.mark.parametrize(("work", "limit_s"), [((7, 7), helpers.STILL_S), ((), helpers._STILL_WITHOUT_CLOCK_S)])
def test_only_local_jobs_are_taken_for_hung_after_a_minute(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, work: tuple[int, ...], limit_s: float
) -> None:
    """Not even a remote one with a single item, which no threads share."""
    monkeypatch.setattr(helpers, "_work_of", lambda pid: work)
    [helper] = fake.pool._helpers
    found = []
    for is_remote in (True, False):
        submit(fake.pool, numbers(1), is_remote=is_remote)
        for passed_s in (0.0, limit_s, 1.0):
            assert fake.pool._stands_still(helper, passed_s) == bool(helper.ended_for)
            found.append(helper.ended_for)
        fake.process.say(done(fake.process.jobs()[-1]))
    assert found == [""] * 5 + [f"stood still in a file for {limit_s:.0f} s and was ended"]


@pytest.mark.parametrize("number", [1, 2, 20, 200])
def test_several_threads_wait_for_a_network_in_each_of_any_number_of_helpers(
    fake: SimpleNamespace, number: int
) -> None:
    fake.pool.number = number
    submit(fake.pool, numbers(1, 2), is_remote=True)
    [job] = fake.process.jobs()
    assert 2 <= job.threads <= helpers.REMOTE_THREADS and job.threads * number >= helpers.REMOTE_THREADS


def test_a_system_without_room_for_a_process_is_a_failure(fake: SimpleNamespace, monkeypatch) -> None:
    def refuse(*_: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(helpers, "WorkerProcess", refuse)
    fake.process.say(None)
    [error] = fake.failures
    assert "Resource temporarily unavailable" in str(error)
    with pytest.raises(DeviceFailed, match="a helper process"):
        HelperPool(1, fake.pool._arena, StderrRelay(), lambda line: None, fake.failures.append)


# --- systems that are short of something -----------------------------------------------------------------------------


class Short:
    """Stands in for WorkerProcess on a system that has room for some processes."""

    def __init__(self, room: int, error: Exception) -> None:
        self.room, self.error = room, error
        self.started: list[FakeProcess] = []

    def __call__(self, *given: Any) -> FakeProcess:
        if len(self.started) == self.room:
            raise self.error
        self.started.append(FakeProcess(*given))
        return self.started[-1]


def short_pool(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, wanted: int, short: Short
) -> tuple[HelperPool, list[str]]:
    monkeypatch.setattr(helpers, "WorkerProcess", short)
    lines: list[str] = []
    return HelperPool(wanted, fake.pool._arena, StderrRelay(), lines.append, fake.failures.append), lines


SHORTAGES = [
    BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("can't start new thread"),
]


@pytest.mark.parametrize("error", SHORTAGES)
@pytest.mark.parametrize(("room", "number"), [(1, 1), (3, 3), (4, 3), (10, 8)])
def test_a_run_goes_on_with_the_helpers_that_started(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, error: Exception, room: int, number: int
) -> None:
    """A quarter of them is ended again: the rest of the run needs what they had."""
    short = Short(room, error)
    pool, lines = short_pool(fake, monkeypatch, 12, short)
    assert pool.number == len(pool.processes) == number
    assert [one.is_killed for one in short.started] == [False] * number + [True] * (room - number)
    [line] = lines
    assert isinstance(line, RefusedPath) and (line.path, line.reason) == ("helpers", first_line(error))
    assert line == f"{number} of 12 helper processes run: {first_line(error)}"
    if room > number:
        short.started[-1].say(None)  # it was ended
    short.started[0].say(messages.HelperReady())
    job = submit(pool, numbers(3))
    short.started[0].say(done(short.started[0].jobs()[0]))
    assert job.results == {0: 6} and not fake.failures
    pool.close()


def test_no_more_helpers_start_than_the_system_has_room_for(fake: SimpleNamespace, monkeypatch) -> None:
    short = Short(100, OSError())
    for room, number in ((3, 3), (0, 1), (-5, 1), (8, 8), (9, 8)):
        monkeypatch.setattr(helpers, "room_for_processes", lambda *_, room=room: (room, "too few files"))
        pool, lines = short_pool(fake, monkeypatch, 8, short)
        assert pool.number == len(pool.processes) == number
        assert lines == ([f"{number} of 8 helper processes run: too few files"] if number < 8 else [])
        pool.close()


def test_the_others_go_on_if_helpers_end_before_they_can_work(fake: SimpleNamespace, monkeypatch) -> None:
    """The system has no room for their threads."""
    pool, lines = short_pool(fake, monkeypatch, 4, Short(100, OSError()))
    for _ in range(3):
        pool.processes[-1].say(None)
    assert pool.number == len(pool.processes) == 3 and not fake.failures
    assert lines == ["3 of 4 helper processes run: one ended with exit code 1 before it could work"]
    pool.close()


def test_a_helper_that_gets_no_substitute_is_done_without(fake: SimpleNamespace, monkeypatch) -> None:
    short = Short(3, OSError(errno.EMFILE, "Too many open files"))
    pool, lines = short_pool(fake, monkeypatch, 3, short)
    short.started[0].say(messages.HelperReady())
    short.started[0].say(None)
    assert pool.number == len(pool.processes) == 2 and not fake.failures
    assert lines[1:] == ["2 of 3 helper processes run: [Errno 24] Too many open files"]
    pool.close()


def descriptors_and_children() -> set[Any]:
    return {*os.listdir("/proc/self/fd"), *(one.pid for one in psutil.Process().children())}


@pytest.mark.linux
@pytest.mark.parametrize("refused", ["helper-0-outbox", "helper-0-messages", "helpers-watch"])
def test_a_process_that_gets_no_thread_leaves_nothing_behind(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Thread.start

    def start_or_refuse(thread: Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(Thread, "start", start_or_refuse)
    arena, relay = Arena(4096), StderrRelay()
    gc.collect()
    before = descriptors_and_children()
    with pytest.raises(DeviceFailed, match="can't start new thread"):
        HelperPool(1, arena, relay, print, print)
    gc.collect()
    until(lambda: descriptors_and_children() <= before)
    relay.close()
    arena.close()


@pytest.mark.linux
def test_only_devices_have_large_pipes_and_only_nice_helpers_step_back() -> None:
    """A user's pipes have a common limit."""
    import fcntl

    arena, relay = Arena(4096), StderrRelay()
    pool = HelperPool(1, arena, relay, print, print, is_nice=True)
    pool.set_up(STAGES)
    [process] = pool.processes
    assert [fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) for pipe in process._pipes] == [65536, 65536]
    until(lambda: pool._helpers[0].is_ready)
    assert psutil.Process(process.pid).nice() == min(19, psutil.Process().nice() + 2)
    group = Path(f"/proc/{process.pid}/autogroup")
    if group.exists():
        until(lambda: group.read_text().endswith(" nice 2\n"))
    pool.close()
    relay.close()
    arena.close()


def test_work_that_is_nearest_to_a_result_comes_first(fake: SimpleNamespace) -> None:
    for _ in range(helpers.MAX_JOBS):
        submit(fake.pool, numbers(0))
    for kind in ("prepare", "read", "text"):
        submit(fake.pool, numbers(0), kind=kind)
    for job in range(3):
        fake.process.say(done(fake.process.jobs()[job]))
    assert [job.kind for job in fake.process.jobs()[helpers.MAX_JOBS :]] == ["text", "read", "prepare"]
