"""What people see on stderr: a progress bar on a terminal, one line a failed file, and the table at the end.

All of it but the bar is also what `--log-file` keeps, with times. stdout belongs to the transcripts. rich is imported only
where there is a terminal to draw on.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from fastscribe._system.safe_files import starts_with
from fastscribe._system.text_layout import escaped
from fastscribe.errors import UsageError
from fastscribe.types import Failure

if TYPE_CHECKING:
    from fastscribe.dry_run import DryRunReport
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.transcriber import Progress as RunProgress
    from fastscribe.transcriber import Transcriber

_RELAY_END_S = 1.0
_LOG_START = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \d+ ")
_REDRAW_S = 0.1  # thousands of files may be done a second


# What mpg123 prints at its default verbosity: with its source file in front, or plain; some begin with an empty line.
_MPG123 = re.compile(rb"libmpg123|^Note: |^Warning: .*(Xing|Frankenstein)|^\n$")

_log = logging.getLogger("fastscribe.cli.terminal")
_log.propagate = False


def say(message: str, bar: Any = None) -> None:
    """Print one line to stderr, above the rich progress bar if there is one, and to the log."""
    show(f"fastscribe: {message}", bar)


def show(line: str, bar: Any = None) -> None:
    """Print one line as it is, but for characters that a terminal obeys (plain_text.escaped). A closed stderr, or
    one without a reader, does not end a run."""
    line = escaped(line)
    with suppress(OSError, ValueError):  # ValueError: it is closed
        if bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
    _note(line)


def show_table(text: str) -> None:
    """Print several lines."""
    for line in text.split("\n"):
        show(line)


def discard_unwritable_stderr() -> None:
    """If stderr is gone, discard its buffer; otherwise Python flushes it at exit and returns 120."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _note(text: str) -> None:
    if _log.handlers:
        _log.warning("%s", text.removeprefix("fastscribe: "))


class _LogFile(logging.FileHandler):
    """Log file that reports a write error once and is then removed."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        _log.removeHandler(self)
        say(f"--log-file {self.baseFilename}: cannot be written any more: {sys.exc_info()[1]}")


def log_to(path: Path) -> None:
    """Append every later message to this file. Raise UsageError if it is not a log or cannot be written."""
    try:
        if not starts_with(path, _LOG_START):
            raise UsageError(f"--log-file {path}: there is a file with something else in it: name another place")
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"--log-file {path}: cannot be written: {error.strerror or error}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(message)s"))
    _log.addHandler(handler)


def failure_line(failure: Failure) -> str:
    return f"{failure.path}: {failure.stage} failed: {failure.message}"


@contextmanager
def filter_mpg123_messages() -> Iterator[None]:
    """Drops what mpg123, a C library below libsndfile, prints on its own: a line for every seek in a healthy MP3, and for
    whatever is odd in a damaged one.

    Its lines go straight to file descriptor 2, so for the time of the run that is a pipe whose reader passes on
    everything else; Python's own stderr, if it writes there, keeps the real one.
    """
    sys.stderr.flush()
    real, python_stderr = os.dup(2), sys.stderr
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    is_swapped = _descriptor(python_stderr) == 2
    if is_swapped:
        sys.stderr = os.fdopen(
            os.dup(real), "w", buffering=1, encoding=python_stderr.encoding, errors="backslashreplace"
        )
    relay = Thread(target=_relay, args=(reader, real), daemon=True)
    relay.start()
    try:
        yield
    finally:
        os.dup2(real, 2)  # closes the pipe's last writer, which ends the relay, unless a child process holds one
        relay.join(_RELAY_END_S)
        if not relay.is_alive():
            os.close(real)
        if is_swapped:
            with suppress(OSError):
                sys.stderr.close()
            sys.stderr = python_stderr


def _descriptor(file: TextIO) -> int | None:
    """The file's descriptor, or None for one in memory."""
    try:
        return file.fileno()
    except (OSError, ValueError):
        return None


def _relay(reader: int, real: int) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not _MPG123.search(line):
                with suppress(OSError):  # the reader is gone
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
                ProgressColumn,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.text import Text

            class Done(ProgressColumn):
                """Drawn ten times a second, also while no results come because an earlier run has done them."""

                def render(self, task: Any) -> Text:
                    return Text(_done(transcriber.progress, task.elapsed or 0.0))

            left = (TextColumn("left"), TimeRemainingColumn())
            columns = (SpinnerColumn(), Done(), BarColumn(), TimeElapsedColumn(), *left)
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=None)

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
        with suppress(OSError):
            self._bar.update(self._task, completed=done.audio_s, total=done.planned_s or None)

    def say(self, message: str) -> None:
        say(message, self._bar)


def _done(progress: RunProgress, elapsed_s: float) -> str:
    if progress.files + progress.skipped == 0:
        return "starting"
    failed = f", {progress.failed} failed" if progress.failed else ""
    skipped = f", {progress.skipped} done before" if progress.skipped else ""
    rtfx = progress.audio_s / elapsed_s if elapsed_s > 0 else 0.0
    return f"{progress.files} files{failed}{skipped}, {progress.audio_s / 3600:.2f} h, {rtfx:.0f}x"


def report_table(stats: RunStats) -> str:
    """Format the report as aligned lines."""
    cost = stats.usd_per_1000_audio_hours
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stats.stage_s.items())
    rows = [
        ("files", f"{stats.files} ({stats.failed} failed){_before(stats)}"),
        ("audio", f"{stats.audio_s / 3600:.3f} h"),
        ("time", f"load {stats.load_s:.2f} s, run {stats.wall_s:.2f} s ({stages})"),
        ("RTFx", f"{stats.rtfx:.1f}"),
        ("gaps", _gaps(stats)),
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


def _gaps(stats: RunStats) -> str:
    left = f"{stats.gaps} ({stats.gap_s:.1f} s)" if stats.gaps else "none"
    recovered = f"; {stats.recovered_words} words recovered ({stats.recovered_s:.1f} s)"
    return left + (recovered if stats.recovered_words else "")


def dry_run_table(survey: DryRunReport) -> str:
    """Format a dry run as aligned lines."""
    cost = "unknown (--price-per-hour)" if survey.estimated_usd is None else f"about {survey.estimated_usd:.2f} USD"
    rows = [
        ("files", f"{survey.files} to do, {survey.failed} that cannot be used{_before(survey)}"),
        ("audio", f"{survey.audio_s / 3600:.3f} h in {survey.utterances} utterances"),
        ("batches", f"{survey.batches}, padding {100 * survey.padding_share:.1f} %"),
        ("time", f"about {_duration(survey.estimated_s)} (RTFx {survey.estimated_rtfx:.0f}, from a few batches)"),
        ("cost", cost),
    ]
    return "\n".join(f"  {name:<12} {value}" for name, value in rows)


def _duration(seconds: float) -> str:
    hours, left = divmod(round(seconds), 3600)
    return f"{hours}:{left // 60:02d}:{left % 60:02d}" if hours else f"{left // 60}:{left % 60:02d}"


def _before(stats: RunStats | DryRunReport) -> str:
    failed = f" ({stats.failed_before} failed)" if stats.failed_before else ""
    return f", and {stats.skipped} before{failed}" if stats.skipped else ""
