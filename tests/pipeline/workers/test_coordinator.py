"""The coordinator with processes that do what a test says. test_pool.py has real ones."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from fastscribe import Options
from fastscribe.errors import DeviceFailed, UsageError
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import ModelFacts
from fastscribe.pipeline.idle import IDLE
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers import pool as workers_pool
from fastscribe.pipeline.workers.devices import Device
from fastscribe.pipeline.workers.pool import WorkerPool
from fastscribe.pipeline.workers.process import StderrRelay
from fastscribe.types import AudioInfo, Hypothesis, Source, Utterance

FACTS = ModelFacts("CPU", "fp32", "tdt", 1, "full", 0.08, False, False)


class FakeProcess:
    """A process that is ready at once. It does what `answer` does with its messages."""

    answer: Callable[[FakeProcess, Any], None]

    def __init__(self, device: Device, start: Any, receive: Callable[[FakeProcess, Any], None], relay: Any) -> None:
        self.device, self._receive = device, receive
        self.sent: list[Any] = []
        self.is_killed = False
        self.say(messages.Ready(FACTS, Budget(1000.0), 3, 0))

    def say(self, message: Any) -> None:
        self._receive(self, message)

    def send(self, message: Any) -> None:
        self.sent.append(message)
        self.answer(message)

    def work(self) -> list[messages.Work]:
        return [one for one in self.sent if isinstance(one, messages.Work)]

    def reason(self) -> str:
        return "ended with exit code 1"

    def kill(self) -> None:
        self.is_killed = True


def decode(process: FakeProcess, message: Any, probed: Mapping[int, AudioInfo] | None = None) -> None:
    if isinstance(message, messages.Work):
        keys = tuple(key for key, _ in message.spans)
        results = (Hypothesis(),) * len(keys)
        process.say(messages.Results(message.run, message.batch, keys, results, probed or {}, {}, 0.0, 0, 1000.0))


def begun(monkeypatch: pytest.MonkeyPatch, answer: Callable[[FakeProcess, Any], None] = decode, number: int = 2) -> Any:
    """A pool in a run, whose processes answer so, and the lines that it says."""
    monkeypatch.setattr(FakeProcess, "answer", answer, raising=False)
    monkeypatch.setattr(workers_pool, "WorkerProcess", FakeProcess)
    devices = [Device(f"cpu:{one}", "cpu", 1, {}) for one in range(number)]
    lines: list[str] = []
    pool = WorkerPool(devices, messages.Start("", "", Options()), lambda one: one.num_samples, lines.append)
    begin(pool)
    return pool, lines


def begin(pool: WorkerPool) -> None:
    pool.begin(Options(), Budget(1000.0), Stopwatch())


def utterance(index: int, num_samples: int = 100) -> Utterance:
    return Utterance(AudioInfo(f"{index}", f"{index}", 100, 1, num_samples, index=index), 0, num_samples)


def done(pool: WorkerPool, plans: list[list[Utterance]]) -> list[Utterance]:
    outcomes = [one for one in pool.execute(plans) if one is not IDLE]
    return [one for utterances, _ in outcomes for one in utterances]


def test_a_recording_that_another_process_has_opened_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was robbed of it would take the whole recording for each utterance."""
    real = utterance(1, 9)
    promised = replace(real, audio=replace(real.audio, num_samples=10, unread=Source("1", "1", "1", index=1)))

    def answer(process: FakeProcess, message: Any) -> None:
        """The first process answers nothing until it is robbed."""
        if isinstance(message, messages.Cancel):
            decode(process, process.work()[0])
        elif isinstance(message, messages.Work) and (process.device.name == "cpu:1" or message.spans[0][0][2]):
            probed = {1: messages.to_return(real.audio)} if any(one.unread for one in message.recordings) else {}
            decode(process, message, probed)

    pool, _ = begun(monkeypatch, answer)
    assert set(done(pool, [[utterance(0, 50)], [utterance(2, 100)], [promised]])) == {
        real,
        utterance(0, 50),
        utterance(2),
    }
    parts = [replace(real, start=4, num_samples=2), replace(real, start=7, num_samples=2)]
    assert set(done(pool, [[one] for one in parts])) == set(parts)
    robbed, other = ([one.recordings for one in slot.process.work()] for slot in pool._slots)
    assert robbed[-1] == (messages.Sent().add(real.audio),) and robbed[-2][0].unread is not None
    assert other[-1] == ()


def die(process: FakeProcess, message: Any) -> None:
    if isinstance(message, messages.Work) and len(process.work()) == 1:
        process.say(None)


def test_a_run_without_a_device_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, lines = begun(monkeypatch, die)
    plans = [[utterance(index)] for index in range(20)]
    with pytest.raises(DeviceFailed, match=r"^cpu:0, cpu:1 failed: the last process ended with exit code 1; "):
        done(pool, plans)
    assert lines[-1].endswith("it is not used any more")
    with pytest.raises(DeviceFailed, match=r"^cpu:0, cpu:1 failed: the last process ended with exit code 1; "):
        begin(pool)


def test_a_closed_pool_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes end, which is no death to report."""
    pool, lines = begun(monkeypatch)
    results = pool.execute([[utterance(index)] for index in range(20)])
    next(results)
    pool.close()
    assert all(slot.process.is_killed for slot in pool._slots)
    for slot in pool._slots:
        slot.process.say(None)
    with pytest.raises(UsageError, match="load the model again"):
        list(results)
    with pytest.raises(UsageError, match="load the model again"):
        begin(pool)
    assert not lines


def test_a_process_that_is_given_up_for_its_silence_dies_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_pool, "MAX_DEATHS", 0)
    pool, lines = begun(monkeypatch)
    silent = pool._slots[0].process
    assert not list(pool._died(0, "has not answered"))
    silent.say(None)  # its pipe closes
    assert len(done(pool, [[utterance(index)] for index in range(9)])) == 9
    assert lines == ["the process of cpu:0 has not answered; it is not used any more"]


def test_a_run_does_not_wait_for_messages_once_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, _ = begun(monkeypatch)
    receive, waits = pool._receive, []

    def counted(wait: bool = True) -> Any:
        waits.append(pool._dispatch.is_busy)
        return receive(wait)

    monkeypatch.setattr(pool, "_receive", counted)
    assert not done(pool, []) and not waits
    assert len(done(pool, [[utterance(index)] for index in range(9)])) == 9
    assert waits and all(waits)


def test_a_device_that_gets_no_new_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, lines = begun(
        monkeypatch, lambda process, message: (die if process.device.name == "cpu:0" else decode)(process, message)
    )

    def refuse(*_: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(workers_pool, "WorkerProcess", refuse)
    assert len(done(pool, [[utterance(index)] for index in range(20)])) == 20
    [line] = lines
    assert line.startswith(
        f"the process of cpu:0 ended with exit code 1 and cannot be started again ([Errno {errno.EAGAIN}] Resource "
    )
    assert line.endswith(" go to other processes; it is not used any more")
    pool._slots[1].process.say(None)
    with pytest.raises(DeviceFailed, match="cannot be started again"):
        done(pool, [[utterance(0)]])
    with pytest.raises(DeviceFailed, match=r"^cpu:0 failed: .* Resource temporarily unavailable; "):
        WorkerPool([slot.device for slot in pool._slots], messages.Start("", "", Options()), len, lines.append)


def test_each_line_of_libraries_is_passed_on_once_and_few_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    relay = StderrRelay()
    for _ in range(2):
        relay.pass_on(io.BytesIO(b"".join(b"line %d\n" % number for number in range(1500))))
    assert capfd.readouterr().err.splitlines() == [f"line {number}" for number in range(1000)]
    assert len(relay._seen) == 1000
