"""The progress bar: what it says, and how it looks on a terminal of several sizes."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import pyte
import pytest

from fastscribe.cli.progress_bar import Pace, ProgressBar, Status, make_status
from fastscribe.cli.terminal import say
from fastscribe.pipeline.stats import Progress
from tests.conftest import AUDIO, MODEL
from tests.helpers.processes import fastscribe, on_terminal, set_columns, terminal_environment

LONG = AUDIO / "e10_concat_45s.flac"


def words(status: Status, width: int = 1000) -> str:
    return f"{status.percent} {status.text(width)}".strip()


def after(seconds: float, progress: Progress, num_inputs: int | None = None) -> str:
    """The line some seconds after the first batch began, if ten equal steps followed."""
    pace, done_s = Pace(), progress.done_s
    for step in range(11):
        progress.done_s = done_s * step / 10
        status = make_status(progress, num_inputs, pace, 100 + seconds * step / 10)
    return words(status)


def test_one_long_recording() -> None:
    progress = Progress(planned_files=1, planned_s=3600, has_all=True)
    assert words(make_status(progress, None, Pace(), 0.0)) == "0 % 0 of 60 min"
    progress.done_s = 1500
    assert after(50, progress) == "41 % 25 of 60 min, 30x, 70 s left"
    progress.done_s = 3600
    assert after(120, progress) == "100 % 60 of 60 min, 30x, finishing"


def test_many_recordings() -> None:
    progress = Progress(files=250, failed=2, skipped=1000, planned_files=800, planned_s=8000, queued_files=200)
    progress.queued_s, progress.done_s = 2000, 2500
    progress.has_all = True
    known = "250 of 1,000 files, 2 failed, 1,000 done before, 0.7 of 2.8 h, 50x, 3 min left"
    assert after(50, progress, 1500) == f"25 % {known}"
    progress.has_all = False
    estimated = "250 of 2,000 files, 2 failed, 1,000 done before, 0.7 of 5.6 h, 50x, 6 min left"
    assert after(50, progress, 3000) == f"~12 % {estimated}"
    assert after(50, progress) == "250 files, 2 failed, 1,000 done before, 42 min, 50x, more may come"


def test_nothing_is_planned_yet() -> None:
    assert words(make_status(Progress(), 10, Pace(), 0.0)) == "starting"
    assert words(make_status(Progress(skipped=1234), 10, Pace(), 0.0)) == "starting, 1,234 done before"


def test_failed_inputs_alone() -> None:
    progress = Progress(files=2, failed=2, planned_files=2, has_all=True)
    assert words(make_status(progress, None, Pace(), 0.0)) == "0 % 2 of 2 files, 2 failed, 0 of 0 s, finishing"


def test_narrow_terminals_lack_the_least_important() -> None:
    parts = ((4, "12 of 40 files"), (5, "7 done before"), (3, "1.2 of 2.9 h"), (1, "120x"), (0, "12 min left"))
    status = Status(0.4, True, parts)
    assert status.text(80) == "12 of 40 files, 7 done before, 1.2 of 2.9 h, 120x, 12 min left"
    assert status.text(50) == "12 of 40 files, 1.2 of 2.9 h, 120x, 12 min left"
    assert status.text(20) == "120x, 12 min left" and status.text(1) == "12 min left"


@pytest.mark.parametrize("step_s", [0.1, 3.0, 20.0])
def test_time_left_does_not_jump(step_s: float) -> None:
    """Batches of 100 times real time, every fourth twice as slow: asked each second, the answer stays near the truth."""
    pace, now_s, ends = Pace(), 0.0, [0.0]
    while ends[-1] < 600:
        ends.append(ends[-1] + step_s * (2 if len(ends) % 4 == 0 else 1))
    total_s, seen = 100.0 * (len(ends) - 1), []
    while now_s < ends[-1] - 1:
        pace.update(now_s, 100.0 * sum(end <= now_s for end in ends[1:]))
        left_s = pace.left_s(now_s, total_s)
        if left_s is not None and now_s > 100:
            assert left_s == pytest.approx(ends[-1] - now_s, rel=0.25, abs=2 * step_s)
            if now_s > 120:
                seen.append(left_s)
        now_s += 1.0
    assert len(seen) > 400
    assert all(later - sooner < max(0.25 * sooner, 2 * step_s) for sooner, later in pairwise(seen))


def test_lines_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    bar = ProgressBar(True)
    progress = Progress(files=3, planned_files=9, planned_s=90, done_s=30, has_all=True)
    bar.watch(lambda: progress)
    now_s, told_s = 0.0, []

    def wait(seconds: float) -> bool:
        nonlocal now_s
        now_s += seconds
        progress.done_s = now_s / 40
        return now_s >= 2200

    monkeypatch.setattr(bar, "_stop", SimpleNamespace(wait=wait))
    monkeypatch.setattr("fastscribe.cli.progress_bar.perf_counter", lambda: now_s)
    monkeypatch.setattr("fastscribe.cli.progress_bar.say", lambda line: (told_s.append(now_s), say(line)))
    bar._print_lines()
    assert told_s == [60, 180, 420, 900, 1500, 2100]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fastscribe: 1 %, 3 of 9 files, 2 of 90 s, 0x, 59 min left"


def test_inputs_without_a_text_are_not_awaited() -> None:
    bar = ProgressBar(True, SimpleNamespace(number=10, is_about=False), num_shards=2)  # type: ignore[arg-type]
    assert bar.num_inputs == 5
    bar.watch(lambda: Progress(textless=4))
    assert bar.num_inputs == 3


def test_the_log_has_the_lines_of_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.cli.progress_bar._FIRST_LINE_S", 0.0)
    bar = ProgressBar(True)
    bar.watch(lambda: Progress(files=3, planned_files=9, planned_s=90, done_s=30, has_all=True))
    monkeypatch.setattr(bar, "_live", object())
    logged: list[str] = []
    monkeypatch.setattr("fastscribe.cli.progress_bar.log", logged.append)
    monkeypatch.setattr(bar, "_stop", SimpleNamespace(wait=lambda _: bool(logged)))
    bar._print_lines()
    assert logged == ["33 %, 3 of 9 files, 30 of 90 s"]


# A program with a bar whose test tells it what to do, one line of stdin each; it answers when that is drawn.
PROGRAM = r"""
import os, sys
from fastscribe.cli.progress_bar import ProgressBar
from fastscribe.cli.terminal import filter_mpg123_messages
from fastscribe.pipeline.stats import Progress
progress = Progress(planned_files=40, planned_s=36000.0, has_all=True)
bar = ProgressBar(True)
with filter_mpg123_messages(bar.write_line), bar:
    for line in sys.stdin:
        exec(line)
        bar._live.refresh()
        os.write(1, b"done\n")
"""


class Terminal:
    """A terminal on which PROGRAM runs."""

    def __init__(self, columns: int, **variables: str) -> None:
        self.screen = pyte.Screen(columns, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self.ours, theirs = pty.openpty()
        set_columns(theirs, columns)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": theirs}
        environment = terminal_environment(**variables)
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, text=True, **pipes)
        os.close(theirs)

    def do(self, line: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.fileno()
        while answer not in select.select([self.ours, answer], [], [])[0]:
            assert self._read()
        assert os.read(answer, 100) == b"done\n"
        while select.select([self.ours], [], [], 0)[0]:
            assert self._read()

    def resize(self, columns: int) -> None:
        set_columns(self.ours, columns)
        self.screen.resize(24, columns)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        while self._read():
            pass

    def _read(self) -> bool:
        try:
            block = os.read(self.ours, 65536)
        except OSError:  # the program has closed the other end
            return False
        self.sent += block
        self._stream.feed(block)
        return bool(block)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]


@contextmanager
def terminal(columns: int, **variables: str) -> Iterator[Terminal]:
    opened = Terminal(columns, **variables)
    with opened.process:
        try:
            yield opened
        finally:
            opened.process.kill()
            os.close(opened.ours)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (60, r" 25 % [━╸╺]{10} 10 of 40 files, 2.5 of 10.0 h"),
        (200, r" 25 % [━╸╺]{40} 10 of 40 files, 2.5 of 10.0 h"),
    ],
)
def test_screen(columns: int, shown: str) -> None:
    with terminal(columns) as opened:
        opened.do("pass")
        assert len(opened.lines) == 1 and opened.lines[0].endswith(" loading the model")
        opened.do("bar.watch(lambda: progress)")
        opened.do("progress.files, progress.done_s = 10, 9000.0")
        assert len(opened.lines) == 1 and re.match(shown, opened.lines[0])
        opened.do("bar.say('b.wav: probe failed')")
        opened.do(r"os.write(2, b'\nWarning: Big change (MPEG version, layer, rate). Frankenstein stream?\n')")
        opened.do(r"os.write(2, b'OMP: Warning ' + b'#96 ' * 30 + b'\n')")
        opened.do("import time, warnings; time.sleep(0.2); sys.stderr.write('deprecated\\n')")  # for the reader of fd 2
        text = "".join(line.ljust(columns) for line in opened.lines[:-1])
        text = re.sub(r"(?<=\S) {2,}", "|", text)
        assert text == "fastscribe: b.wav: probe failed|OMP: Warning " + "#96 " * 29 + "#96|deprecated|"
        assert re.match(shown, opened.lines[-1])
        opened.end()
        assert not re.search("%", "".join(opened.lines))
    assert b"\x1b[?25l" not in opened.sent  # the cursor is never hidden, so a killed program leaves it


def test_resized_terminal_without_colours() -> None:
    with terminal(200, NO_COLOR="1") as opened:
        opened.do("bar.watch(lambda: progress); progress.done_s = 9000.0")
        opened.resize(60)
        opened.do("pass")
        assert opened.lines[-1].startswith(" 25 %") and len(opened.lines[-1]) < 60
        opened.resize(20)
        opened.do("pass")
        assert opened.lines[-1].startswith(" 25 %")
        assert not re.search(rb"\x1b\[[0-9;]*3[0-9][;m]", opened.sent)


def test_a_terminal_without_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `docker run -t`, or of script in a job: lines above the bar appear there too."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as stderr, os.fdopen(ours, "rb", buffering=0) as sent:
        monkeypatch.setattr(sys, "stderr", stderr)
        set_columns(stderr.fileno(), 0)
        os.set_blocking(ours, False)
        with ProgressBar(True) as bar:
            bar.say("a.wav: load failed: it is cut off")
        stderr.flush()
        assert b"a.wav: load failed: it is cut off" in (sent.read(10_000) or b"")


def test_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "dumb")
    with os.fdopen(theirs, "w") as stderr, os.fdopen(ours, "rb", buffering=0):
        monkeypatch.setattr(sys, "stderr", stderr)
        with ProgressBar(True) as bar:
            assert bar._live is None


def test_one_long_recording_on_a_terminal() -> None:
    """The program itself: parts of the recording count, and nothing stays of the bar."""
    settings = ("-m", MODEL, "-f", "txt", "--max-utterance-s", 5, "--batch-size", 1)
    code, sent = on_terminal("transcribe", LONG, *settings, columns=80)
    assert code == 0
    screen = pyte.Screen(80, 24)
    stream, seen = pyte.ByteStream(screen), set()
    for part in sent.split(b"\r"):
        stream.feed(part + b"\r")
        seen |= {line.rstrip() for line in screen.display if line.strip()}
        assert sum("left" in line or "%" in line for line in screen.display) <= 1
    shares = {int(found[1]) for line in seen if (found := re.match(r" *(\d+) %", line))}
    assert shares - {0, 100}
    assert not [line for line in screen.display if line.strip()]
    assert "\x1b" not in fastscribe("transcribe", LONG, *settings).stderr
