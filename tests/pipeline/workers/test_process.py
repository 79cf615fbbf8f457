"""A mistake in a message, or in what is done with it, ends in an error and not in a run that waits."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.messages import Channel
from fastscribe.pipeline.workers.process import WorkerProcess, kill_all


def without_a_process(*received: object) -> WorkerProcess:
    """A process that has said this before its end."""
    content = io.BytesIO(b"".join(map(messages.packed, received)))
    made = WorkerProcess.__new__(WorkerProcess)
    made._outbox, made._channel, made._pipes = SimpleQueue(), Channel(content, io.BytesIO()), (io.BytesIO(), content)
    return made


def test_a_message_that_cannot_travel_is_an_error_of_its_sender() -> None:
    process = without_a_process()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        process.send(messages.Say(lambda: None))  # type: ignore[arg-type]
    assert process._outbox.empty()
    process.send(messages.Say("a"))
    assert pickle.loads(process._outbox.get() or b"") == messages.Say("a")


def test_a_process_whose_message_is_an_error_counts_as_dead() -> None:
    heard: list[Any] = []

    def receive(_: WorkerProcess, message: Any) -> None:
        heard.append(message)
        if message == messages.Say("b"):
            raise KeyError("no such batch")

    process = without_a_process(messages.Say("a"), messages.Say("b"), messages.Say("c"))
    with pytest.raises(KeyError, match="no such batch"):
        process._receive(receive)
    assert heard == [messages.Say("a"), messages.Say("b"), None]


def test_processes_end_side_by_side_and_share_the_patience_for_those_that_hang() -> None:
    """A driver may take a second, or keep its process for ever."""
    told: list[tuple[str, int]] = []

    class Ending:
        def __init__(self, number: int) -> None:
            self.number = number

        def end(self) -> None:
            told.append(("end", self.number))

        def kill(self, timeout_s: float) -> None:
            told.append(("wait", self.number))
            waits.append(timeout_s)

    waits: list[float] = []
    kill_all([Ending(number) for number in range(3)])  # type: ignore[misc]
    assert told == [("end", 0), ("end", 1), ("end", 2), ("wait", 0), ("wait", 1), ("wait", 2)]
    assert 10.0 >= waits[0] >= waits[1] >= waits[2] > 0.0


@pytest.mark.posix
def test_a_process_that_hangs_says_where_its_threads_stand_each_time(tmp_path: Path) -> None:
    """Even in a call that keeps Python's lock."""
    command = [sys.executable, "-m", "tests.helpers.hung_process"]
    said = tmp_path / "said"
    with (
        said.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as parent,
    ):
        try:
            assert parent.stdout is not None
            hung = int(parent.stdout.readline())
            assert parent.stdout.readline() == "hangs\n"
            time.sleep(0.5)  # a thread that runs meanwhile changes what is printed
            for times in (1, 2):
                os.kill(hung, signal.SIGUSR1)
                deadline = time.monotonic() + 60
                while said.read_text().count(" in main\n") < times and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert said.read_text().count("(most recent call first)") == 2 * times  # that of its messages too
        finally:
            parent.kill()
