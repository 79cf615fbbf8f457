"""What people see on stderr: a progress bar on a terminal, one line a failed file, and the table at the end.

stdout belongs to the transcripts. rich is imported only where there is a terminal to draw on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastscribe.audio.source import printable
from fastscribe.types import Failure

if TYPE_CHECKING:
    from fastscribe.run import Transcriber
    from fastscribe.stats import RunStats

_REDRAW_S = 0.1  # thousands of files may be done a second


def say(message: str) -> None:
    """One line to stderr, whatever characters are in it."""
    print(printable(f"fastscribe: {message}"), file=sys.stderr, flush=True)


def failure_line(failure: Failure) -> str:
    return f"{failure.path}: {failure.stage} failed: {failure.message}"


@contextmanager
def without_mp3_chatter() -> Iterator[None]:
    """Drops what mpg123, a C library below libsndfile, prints on its own: a line for every seek in a healthy MP3.

    Its lines go straight to file descriptor 2, so for the time of the run that is a pipe whose reader passes on
    everything else; Python's own stderr keeps the real one.
    """
    sys.stderr.flush()
    real, python_stderr = os.dup(2), sys.stderr
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    sys.stderr = os.fdopen(os.dup(real), "w", buffering=1, encoding=python_stderr.encoding, errors="backslashreplace")
    relay = Thread(target=_relay, args=(reader, real), daemon=True)
    relay.start()
    try:
        yield
    finally:
        os.dup2(real, 2)  # closes the pipe's last writer, which ends the relay
        relay.join()
        os.close(real)
        sys.stderr.close()
        sys.stderr = python_stderr


def _relay(reader: int, real: int) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if b"libmpg123" not in line:
                os.write(real, line)


class ProgressBar:
    """Share of the audio done, RTFx so far and time left. Draws nothing where stderr is no terminal."""

    def __init__(self, transcriber: Transcriber, enabled: bool) -> None:
        self._transcriber = transcriber  # whose progress is a new one each run
        self._bar: Any = None
        self._task: Any = None
        self._drawn = 0.0
        if enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            left = (TextColumn("left"), TimeRemainingColumn())
            self._bar = Progress(*columns, *left, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self) -> None:
        if self._bar is None or perf_counter() - self._drawn < _REDRAW_S:
            return
        self._drawn = perf_counter()
        done = self._transcriber.progress
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rtfx = done.audio_s / elapsed if elapsed > 0 else 0.0
        failed = f", {done.failed} failed" if done.failed else ""
        text = f"{done.files} files{failed}, {done.audio_s / 3600:.2f} h, {rtfx:.0f}x"
        self._bar.update(self._task, description=text, completed=done.audio_s, total=done.planned_s or None)

    def say(self, message: str) -> None:
        if self._bar is None:
            say(message)
        else:
            self._bar.console.print(printable(f"fastscribe: {message}"), markup=False, highlight=False, soft_wrap=True)


def report_table(stats: RunStats) -> str:
    """The report as aligned lines."""
    cost = stats.usd_per_1000_audio_hours
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stats.stage_s.items())
    rows = [
        ("files", f"{stats.files} ({stats.failed} failed)"),
        ("audio", f"{stats.audio_s / 3600:.3f} h"),
        ("time", f"load {stats.load_s:.2f} s, run {stats.wall_s:.2f} s ({stages})"),
        ("RTFx", f"{stats.rtfx:.1f}"),
        ("padding", f"{100 * stats.padding_share:.1f} %"),
        ("peak memory", f"{stats.peak_bytes / 2**30:.2f} GiB"),
        ("device", f"{stats.device}, {stats.dtype}"),
        (
            "cost",
            "unknown (--price-per-hour)"
            if cost is None
            else f"{cost:.2f} USD per 1,000 audio hours ({stats.price_source})",
        ),
    ]
    return "\n".join(f"  {name:<12} {value}" for name, value in rows)
