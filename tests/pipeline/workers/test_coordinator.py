"""The coordinator with processes that do what a test says. test_pool.py has real ones."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe import Options
from fastscribe.audio.media import EncodedBytes
from fastscribe.errors import DeviceFailed, UsageError
from fastscribe.pipeline import batch_layout
from fastscribe.pipeline.batch_layout import BatchLayout, ReadRow
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.interfaces import IDLE, ModelFacts
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.workers import helpers, messages
from fastscribe.pipeline.workers import pool as workers_pool
from fastscribe.pipeline.workers.arena import Arena, SharedMemory
from fastscribe.pipeline.workers.devices import Device
from fastscribe.pipeline.workers.pool import WorkerPool
from fastscribe.pipeline.workers.process import StderrRelay
from fastscribe.types import AudioInfo, Failure, Hypothesis, Utterance
from tests.pipeline.workers.test_helpers import FakeProcess as SpokenFor

FACTS = ModelFacts("CPU", "fp32", "tdt", 1, "full", 0.08, False, False)
RATE = 16000


class FakeProcess(SpokenFor):
    """A process that is ready at once: a device that does what `answer` does with its messages, or a helper."""

    answer: Callable[[FakeProcess, Any], None]

    def __init__(
        self, name: str, program: str, start: Any, receive: Callable[[FakeProcess, Any], None], *_: Any
    ) -> None:
        self.name, self._receive = name, receive
        self.memory = SharedMemory(start.shared)
        self.sent: list[Any] = []
        self.is_killed = False
        self.inbox: SimpleQueue[Any] | None = None
        if program == "helper":
            self.inbox = SimpleQueue()
            Thread(target=self._help, daemon=True).start()
        else:
            self.say(messages.Ready(FACTS, Budget(1000.0), 3, 0, RATE, native=False))

    def send(self, message: Any) -> None:
        if self.inbox is not None:
            self.inbox.put(message)
            return
        self.sent.append(message)
        self.answer(message)

    def work(self) -> list[messages.Work]:
        return [one for one in self.sent if isinstance(one, messages.Work)]

    def samples(self, place: int, layout: BatchLayout) -> np.ndarray:
        return layout.placed(self.memory.view(place, layout.num_bytes))._samples_BS

    def kill(self, *_: Any) -> None:
        super().kill()
        if self.inbox is not None:
            self.inbox.put(None)

    def _help(self) -> None:
        """Read rows: each sample is the recording's number. Recordings without a number cannot be read."""
        assert self.inbox is not None
        while (message := self.inbox.get()) is not None:
            if isinstance(message, messages.Setup):
                self.say(messages.HelperReady())
            elif isinstance(message, messages.Job):
                samples = self.samples(*message.shared)
                results: list[Any] = []
                for row, one in message.items:
                    samples[row, : one.num_samples] = one.audio.index
                    failure = Failure(one.audio.path, one.audio.id, "load", "AudioError", "gone")
                    results.append(ReadRow(one.num_samples) if one.audio.index else failure)
                self.say(messages.Done(message.number, 0, results, 0.0))


def decode(process: FakeProcess, message: Any) -> None:
    """Answer with the recordings' numbers, which are the samples, row by row."""
    if isinstance(message, messages.Work):
        samples = process.samples(message.place, message.layout)
        for row, length in zip(message.rows, message.lengths_B, strict=True):
            [number] = set(samples[row, :length].tolist())
            found = [Hypothesis((number,), (0,), (1,), (0.0,))]
            process.say(messages.Results(message.run, message.batch, [row], found, {}, 0.0, 0, 1000.0))


def begun(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[FakeProcess, Any], None] = decode,
    number: int = 2,
    arena_bytes: int = 1 << 20,
) -> Any:
    """A pool in a run, whose devices answer so, and the lines that it says."""
    monkeypatch.setattr(FakeProcess, "answer", answer, raising=False)
    monkeypatch.setattr(workers_pool, "WorkerProcess", FakeProcess)
    monkeypatch.setattr(helpers, "WorkerProcess", FakeProcess)
    monkeypatch.setattr(Arena, "of_machine", lambda *_: Arena(arena_bytes, arena_bytes // 8))
    devices = [Device(f"cpu:{one}", "cpu", 1, {}) for one in range(number)]
    lines: list[str] = []
    options = Options(threads=2)
    pool = WorkerPool(devices, messages.Start("", "", options), lambda one: one.num_samples, lines.append)
    begin(pool)
    return pool, lines


def begin(pool: WorkerPool) -> None:
    pool.begin(Options(), Budget(1000.0), Stopwatch())


def utterance(index: int, num_samples: int = 100) -> Utterance:
    return Utterance(AudioInfo(f"{index}", f"{index}", RATE, 1, num_samples, index=index), 0, num_samples)


def done(pool: WorkerPool, plans: list[list[Utterance]]) -> list[Utterance]:
    """Return the utterances with a result, which is their own."""
    found = []
    for outcome in pool.execute(plans):
        if outcome is not IDLE:
            for one, result in zip(*outcome, strict=True):
                assert isinstance(result, Failure) if not one.audio.index else result.token_ids == (one.audio.index,)
                found.append(one)
    return found


@pytest.mark.parametrize(
    ("processors", "num_devices", "threads", "expected"),
    [
        *(
            (1, 1, None, 2),
            (2, 1, None, 2),
            (16, 1, None, 14),
            (64, 1, None, 32),
            (64, 2, None, 61),
            (256, 4, None, 128),
        ),
        *((64, 1, 100, 100), (64, 1, 1, 1)),
    ],
)
def test_there_are_as_many_helpers_as_free_processors_up_to_32_a_device(
    processors: int, num_devices: int, threads: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_pool, "usable_processors", lambda: processors)
    assert workers_pool.num_helpers(Options(threads=threads), num_devices) == expected


@pytest.mark.parametrize(("processors", "is_nice"), [(3, True), (4, False)])
def test_helpers_step_back_where_there_are_fewer_processors_than_processes(
    processors: int, is_nice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator, a device and two helpers."""
    monkeypatch.setattr(workers_pool, "usable_processors", lambda: processors)
    pool, _ = begun(monkeypatch, number=1)
    assert pool.helpers._is_nice is is_nice
    pool.close()


def test_no_memory_is_an_error_that_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Arena, "of_machine", refuse)
    opened = StderrRelay.close
    closed: list[StderrRelay] = []
    monkeypatch.setattr(StderrRelay, "close", lambda self: (closed.append(self), opened(self))[1])
    with pytest.raises(OSError, match="No space left on device"):
        WorkerPool([Device("cpu:0", "cpu", 1, {})], messages.Start("", "", Options()), len, print)
    assert len(closed) == 1


def test_rows_that_cannot_be_read_fail_and_the_others_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, _ = begun(monkeypatch)
    plan = [utterance(3, 300), utterance(0, 200), utterance(1)]
    assert set(done(pool, [plan, [utterance(0)]])) == {*plan, utterance(0)}
    assert not pool._arena._parts
    pool.close()


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(1, 9000), min_size=1, max_size=4), max_size=8),
    st.integers(1, 40_000),
    st.integers(1, 3),
)
def test_any_batches_pass_through_an_arena_of_any_size(sizes, arena_bytes, number) -> None:
    """Batches wait for room; one that is larger than all of it makes it grow."""
    indices = iter(range(1, 100))
    plans = [[utterance(next(indices), size) for size in plan] for plan in sizes]
    with pytest.MonkeyPatch.context() as monkeypatch:
        pool, _ = begun(monkeypatch, number=number, arena_bytes=arena_bytes)
        for _ in range(2):
            found = sorted(one.audio.index for one in done(pool, plans))
            assert found == list(range(1, 1 + sum(map(len, sizes))))
            assert not pool._arena._parts
            pool.end()
            begin(pool)
        pool.close()


def test_memory_that_a_thread_still_writes_to_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is broken off while the caller's data is being read. That goes on in the middle of the next run."""
    begins, goes_on, has_written = Event(), Event(), Event()

    def read_into(row_S: np.ndarray, *_: Any) -> int:
        begins.set()
        assert goes_on.wait(60)
        row_S[:] = -1
        has_written.set()
        return len(row_S)

    def answer(process: FakeProcess, message: Any) -> None:
        if isinstance(message, messages.Work):
            goes_on.set()
            assert has_written.wait(60)
        decode(process, message)

    monkeypatch.setattr(batch_layout, "read_into", read_into)
    pool, _ = begun(monkeypatch, answer, number=1)
    one = utterance(1)
    run = pool.execute([[replace(one, audio=replace(one.audio, file=EncodedBytes(b"", "held")))]])
    next(run)
    assert begins.wait(60)
    run.close()
    pool.end()
    begin(pool)
    assert len(done(pool, [[utterance(index)] for index in range(1, 4)])) == 3
    assert len(pool._arena._parts) == 1
    pool.close()


@pytest.mark.parametrize(
    ("arena_bytes", "sizes"), [(1 << 20, [16]), (200_000, [4] * 4), (50_000, [2] * 8), (1, [1] * 16)]
)
def test_a_plan_of_many_bytes_is_divided(monkeypatch: pytest.MonkeyPatch, arena_bytes: int, sizes: list[int]) -> None:
    """A piece takes an eighth of the memory at most, unless it is a single row. A row has 4,000 bytes here."""
    pool, _ = begun(monkeypatch, arena_bytes=arena_bytes)
    plan = [utterance(index, 1000) for index in range(1, 17)]
    pieces = pool._pieces(plan)
    assert [one for piece in pieces for one in piece] == plan, "rows stay in order"
    assert [len(piece) for piece in pieces] == sizes
    pool.close()


def test_what_a_helper_says_after_the_last_batch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may die of a text."""
    pool, lines = begun(monkeypatch)
    assert done(pool, [[utterance(1)]])
    pool.helpers._say("a helper process has died")
    pool.end()
    assert lines == ["a helper process has died"]
    pool.close()


def test_a_batch_of_a_dead_device_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(process: FakeProcess, message: Any) -> None:
        (die if process.name == "cpu:0" else decode)(process, message)

    pool, lines = begun(monkeypatch, answer)
    items: list[tuple[int, Utterance]] = []
    submit = pool.helpers.submit
    monkeypatch.setattr(pool.helpers, "submit", lambda job: (items.extend(job.items.values()), submit(job)))
    plans = [[utterance(index)] for index in range(1, 20)]
    assert len(done(pool, plans)) == 19
    assert lines and "a new process is started" in lines[0]
    assert sorted(one.audio.index for _, one in items) == list(range(1, 20))
    pool.close()


def die(process: FakeProcess, message: Any) -> None:
    if isinstance(message, messages.Work) and len(process.work()) == 1:
        process.say(None)


def test_a_run_without_a_device_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, lines = begun(monkeypatch, die)
    plans = [[utterance(index)] for index in range(1, 21)]
    with pytest.raises(DeviceFailed, match=r"^cpu:0, cpu:1 failed: the last process ended with exit code 1; "):
        list(pool.execute(plans))
    assert lines[-1].endswith("it is not used any more")
    with pytest.raises(DeviceFailed, match=r"^cpu:0, cpu:1 failed: the last process ended with exit code 1; "):
        begin(pool)


def test_recordings_do_not_fail_for_want_of_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of this process read them, until the run stops or goes on without helpers."""
    pool, _ = begun(monkeypatch)
    refused = DeviceFailed("a helper process", OSError("refused"))
    monkeypatch.setattr(pool.helpers, "submit", lambda job: [job.done(one, refused) for one in job.items])
    monkeypatch.setattr(batch_layout, "read_into", read_its_number)
    assert len(done(pool, [[utterance(1), utterance(2)]])) == 2
    pool.helpers._fail(refused)
    with pytest.raises(DeviceFailed, match="a helper process failed: refused"):
        done(pool, [[utterance(3)]])
    pool.close()


def read_its_number(row_S: np.ndarray, one: Utterance, *_: Any) -> int:
    row_S[:] = one.audio.index
    return len(row_S)


def test_a_memory_that_cannot_grow_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, _ = begun(monkeypatch, arena_bytes=10)
    monkeypatch.setattr(pool._arena, "grow", refuse_memory)
    with pytest.raises(DeviceFailed, match=r"the memory that processes share failed: .* Cannot allocate memory"):
        done(pool, [[utterance(1, 9000)]])
    pool.close()


def refuse_memory(num_bytes: int) -> int:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_rows_are_not_to_blame_if_the_device_does_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no result, and may have ended processes all the same."""
    monkeypatch.setattr(workers_pool, "MAX_DEATHS", 1)
    pool, _ = begun(monkeypatch, die_of_all, number=1)
    failures: list[Any] = []

    def run() -> None:
        for outcome in pool.execute([[utterance(1), utterance(2)]]):
            failures.extend(() if outcome is IDLE else outcome[1])

    with pytest.raises(DeviceFailed):
        run()
    assert not failures and pool.give_up(DeviceFailed("cpu:0", OSError("lost"))) == {1, 2}
    pool.close()


@pytest.mark.parametrize("others", [[], [2, 3]])
def test_a_row_is_to_blame_if_others_have_results_or_there_are_none(
    monkeypatch: pytest.MonkeyPatch, others: list[int]
) -> None:
    def answer(process: FakeProcess, message: Any) -> None:
        if isinstance(message, messages.Work):
            samples = process.samples(message.place, message.layout)
            (die_of_all if 1 in samples[list(message.rows), 0] else decode)(process, message)

    pool, _ = begun(monkeypatch, answer, number=1)
    found = {}
    for outcome in pool.execute([[utterance(one) for one in (1, *others)]]):
        found.update({} if outcome is IDLE else {one.audio.index: result for one, result in zip(*outcome, strict=True)})
    assert [getattr(found[one], "error_type", "") for one in (1, *others)] == [
        "RecordingKilledProcess",
        *("" for _ in others),
    ]
    assert not pool._arena._parts
    pool.close()


def die_of_all(process: FakeProcess, message: Any) -> None:
    if isinstance(message, messages.Work):
        process.say(None)


def test_a_closed_pool_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes end, which is no death to report."""
    pool, lines = begun(monkeypatch)
    results = pool.execute([[utterance(index)] for index in range(1, 21)])
    next(results)
    pool.close()
    assert all(slot.process.is_killed for slot in pool._slots)
    for slot in pool._slots:
        slot.process.say(None)
    with pytest.raises(UsageError, match="is closed: load it again"):
        list(results)
    with pytest.raises(UsageError, match="is closed: load it again"):
        begin(pool)
    assert not lines


def test_a_process_that_is_given_up_for_its_silence_dies_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_pool, "MAX_DEATHS", 0)
    pool, lines = begun(monkeypatch)
    silent = pool._slots[0].process
    pool._died(pool._slots[0], "has not answered")
    silent.say(None)  # its pipe closes
    assert len(done(pool, [[utterance(index)] for index in range(1, 10)])) == 9
    assert lines == ["the process of cpu:0 has not answered; it is not used any more"]


def test_a_run_does_not_wait_for_messages_once_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, _ = begun(monkeypatch)
    receive, waits = pool._receive, []

    def counted() -> Any:
        waits.append(pool._is_busy)
        return receive()

    monkeypatch.setattr(pool, "_receive", counted)
    assert not done(pool, []) and not waits
    assert len(done(pool, [[utterance(index)] for index in range(1, 10)])) == 9
    assert waits and all(waits)


def test_a_device_that_gets_no_new_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, lines = begun(
        monkeypatch, lambda process, message: (die if process.name == "cpu:0" else decode)(process, message)
    )

    def refuse(*_: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(workers_pool, "WorkerProcess", refuse)
    assert len(done(pool, [[utterance(index)] for index in range(1, 21)])) == 20
    [line] = lines
    assert line.startswith(
        f"the process of cpu:0 ended with exit code 1 and cannot be started again ([Errno {errno.EAGAIN}] Resource "
    )
    assert line.endswith(" to other processes; it is not used any more")
    pool._slots[1].process.say(None)
    with pytest.raises(DeviceFailed, match="cannot be started again"):
        done(pool, [[utterance(1)]])
    with pytest.raises(DeviceFailed, match=r"^cpu:0 failed: .* Resource temporarily unavailable; "):
        WorkerPool([slot.device for slot in pool._slots], messages.Start("", "", Options()), len, lines.append)


def test_each_line_of_libraries_is_passed_on_once_and_few_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    relay = StderrRelay()
    for _ in range(2):
        relay.pass_on(io.BytesIO(b"".join(b"line %d\n" % number for number in range(1500))))
    assert capfd.readouterr().err.splitlines() == [f"line {number}" for number in range(1000)]
    assert len(relay._seen) == 1000
    stack = b'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n  File "b.py", line 2 in g\n' * 2
    relay.pass_on(io.BytesIO(stack))
    assert capfd.readouterr().err.encode() == stack


def test_tracebacks_count_as_other_lines(capfd: pytest.CaptureFixture[str]) -> None:
    relay = StderrRelay()
    traceback = b'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x()\nValueError: x\n'
    relay.pass_on(io.BytesIO(traceback * 2))
    assert capfd.readouterr().err.encode() == traceback
    relay.pass_on(io.BytesIO(b"".join(b'  File "a.py", line %d, in f\n' % number for number in range(2, 1500))))
    assert len(capfd.readouterr().err.splitlines()) == 996
