"""Progress of a run: a bar on a terminal, a line now and then elsewhere and in the log. pipeline/stats.py counts.

The share is that of the audio. Parts of a long recording count as they finish. Until the last input is probed the total is
an estimate, marked "~": the number of inputs times the mean length so far. While not all inputs are listed, there is no share.
rich is imported only for a terminal.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastscribe._system import signals
from fastscribe.cli.terminal import log, say, show
from fastscribe.pipeline.stats import Progress

if TYPE_CHECKING:
    from fastscribe.cli.listing import Listing


_MIN_EVIDENCE_S = 2.0  # the first batch is slower than the others, so it alone says little about the time left
_DRAWS_PER_S = 8
_MIN_BAR, _MAX_BAR = 10, 40  # columns
_COLUMNS, _LINES = 80, 25  # of a terminal that does not say
_LOOK_S = 1.0  # between two looks at the counts, where there is no bar
_FIRST_LINE_S, _MAX_BETWEEN_LINES_S = 60.0, 600.0
_CLEAR_LINE = b"\r\x1b[2K"


class Pace:
    """Speed and time left, from the audio done over time.

    Batches finish in steps. The speed is a mean of the steps so far, in which recent ones weigh more; between two steps the
    time left counts down.
    """

    def __init__(self) -> None:
        self._start_s: float | None = None
        self._step_s = self._audio_s = self._weighted_audio_s = self._weighted_s = 0.0

    def update(self, now_s: float, audio_s: float) -> None:
        """Note that `audio_s` seconds of audio are done at time `now_s`. The first call starts the clock."""
        if self._start_s is None:
            self._start_s = self._step_s = now_s
        elif audio_s > self._audio_s and now_s > self._step_s:
            taken_s = now_s - self._step_s
            weight = math.exp(-taken_s / (120.0 + (now_s - self._start_s) / 2))
            self._weighted_audio_s = weight * self._weighted_audio_s + audio_s - self._audio_s
            self._weighted_s = weight * self._weighted_s + taken_s
            self._step_s, self._audio_s = now_s, audio_s

    @property
    def speed(self) -> float:
        """Seconds of audio per second; 0 before the first step."""
        return self._weighted_audio_s / self._weighted_s if self._weighted_s else 0.0

    def left_s(self, now_s: float, total_s: float) -> float | None:
        """Return the seconds left, or None if too little is done to tell."""
        if self._start_s is None or not self.speed or self._step_s - self._start_s < _MIN_EVIDENCE_S:
            return None
        return max(0.0, (total_s - self._audio_s) / self.speed - (now_s - self._step_s))


@dataclass(frozen=True)
class Status:
    """What a line of progress says.

    Attributes:
        share: Share of the audio done, from 0 to 1; None: unknown.
        is_exact: The share's total is known, not estimated.
        parts: Texts in order, each with its rank; narrow terminals lack those of high rank.
    """

    share: float | None
    is_exact: bool
    parts: tuple[tuple[int, str], ...]

    @property
    def percent(self) -> str:
        return "" if self.share is None else f"{'' if self.is_exact else '~'}{math.floor(100 * self.share)} %"

    def text(self, width: int) -> str:
        """Join the most important parts that fit in `width` columns, at least one."""
        parts = sorted(self.parts)
        while len(parts) > 1 and sum(len(text) + 2 for _, text in parts) - 2 > width:
            parts.pop()
        return ", ".join(text for rank, text in self.parts if (rank, text) in parts)


def make_status(progress: Progress, num_inputs: int | None, pace: Pace, now_s: float) -> Status:
    """Describe a run.

    Args:
        progress: The run's counts.
        num_inputs: The number of inputs, with those that earlier runs have done; None: unknown.
        pace: Updated here.
        now_s: The time.
    """
    known_files, known_s = progress.planned_files + progress.queued_files, progress.planned_s + progress.queued_s
    before = [(5, f"{progress.skipped:,} done before")] if progress.skipped else []
    if not progress.planned_files:
        return Status(None, True, ((0, "starting"), *before))
    pace.update(now_s, progress.done_s)
    num_files, total_s = (known_files, known_s) if progress.has_all else (None, None)
    if total_s is None and num_inputs is not None:
        num_files = max(known_files, num_inputs - progress.skipped)
        total_s = known_s * num_files / known_files
    failed = [(2, f"{progress.failed:,} failed")] if progress.failed else []
    speed = [(1, f"{pace.speed:.0f}x")] if pace.speed else []
    total = f"file{'' if progress.files == 1 else 's'}" if num_files is None else f"of {num_files:,} files"
    files = [] if num_files == 1 else [(4, f"{progress.files:,} {total}")]
    parts = [
        *files,
        *failed,
        *before,
        (3, _audio_text(progress.done_s, total_s)),
        *speed,
    ]
    if total_s is None:
        return Status(None, True, (*parts, (0, "more may come")))
    left_s = pace.left_s(now_s, total_s)
    is_done = progress.has_all and progress.done_s >= total_s * (1 - 1e-9)
    left = [(0, "finishing")] if is_done else [(0, _left_text(left_s))] if left_s is not None else []
    return Status(min(1.0, progress.done_s / total_s) if total_s else 0.0, progress.has_all, (*parts, *left))


def _audio_text(done_s: float, total_s: float | None) -> str:
    largest_s = done_s if total_s is None else total_s
    unit, unit_s, digits = ("h", 3600, 1) if largest_s >= 7200 else ("min", 60, 0) if largest_s >= 120 else ("s", 1, 0)
    of = "" if total_s is None else f" of {total_s / unit_s:,.{digits}f}"
    return f"{done_s / unit_s:,.{digits}f}{of} {unit}"


def _left_text(seconds: float) -> str:
    """Round to what an estimate can tell, so that it does not flicker."""
    if seconds >= 5940:
        hours, minutes = divmod(math.ceil(seconds / 60), 60)
        return f"{hours} h {minutes:02d} min left"
    if seconds >= 100:
        return f"{math.ceil(seconds / 60)} min left"
    return f"{5 * math.ceil(seconds / 5)} s left" if seconds > 0 else "a few s left"


class ProgressBar:
    """Shows what a command does: that it loads the model, then the progress of a run.

    Args:
        enabled: False: show nothing.
        listing: The run's inputs; None: their number stays unknown.
        num_shards: The run does one part of this number.
    """

    def __init__(self, enabled: bool, listing: Listing | None = None, num_shards: int = 1) -> None:
        self._enabled, self._listing, self._num_shards = enabled, listing, num_shards
        self._progress: Callable[[], Progress] | None = None
        self._pace = Pace()
        self._stop = Event()
        self._live: Any = None

    def __enter__(self) -> ProgressBar:
        if self._enabled and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
            self._start_live()
        if self._enabled:
            Thread(target=self._print_lines, name="progress", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._live is not None:
            signals.HARD_EXIT_HOOKS.remove(_clear_line)
            with suppress(OSError):
                self._live.stop()
            self._live = None

    def watch(self, progress: Callable[[], Progress]) -> None:
        """Show the run whose counts `progress` returns."""
        self._progress = progress

    @property
    def num_inputs(self) -> int | None:
        """The number of inputs of this shard, of shards about, without those left out so far; None: unknown so far."""
        number = None if self._listing is None else self._listing.number
        left_out = 0 if self._progress is None else self._progress().textless
        return None if number is None else (number - left_out) // self._num_shards

    @property
    def is_about(self) -> bool:
        """True if num_inputs is an estimate."""
        return self._num_shards > 1 or (self._listing is not None and self._listing.is_about)

    def say(self, message: str) -> None:
        """Print a line, above the bar if there is one."""
        say(message, self._live)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bar away while the block writes to stdout, if that is a terminal too."""
        live = self._live if sys.stdout is not None and sys.stdout.isatty() else None
        if live is not None:
            live.stop()
        yield
        if live is not None:
            live.start()

    def write_line(self, line: bytes) -> bool:
        """Print a line of a C library above the bar. Return False if there is no bar."""
        live = self._live
        if live is not None:
            show(line.decode(errors="backslashreplace").rstrip("\r\n"), live)
        return live is not None

    def status(self) -> Status:
        """Return what there is to say now."""
        if self._progress is None:
            return Status(None, True, ((0, "loading the model"),))
        return make_status(self._progress(), self.num_inputs, self._pace, perf_counter())

    def _print_lines(self) -> None:
        """Print a line now and then; beside a bar, to the log alone."""
        told, wait_s, left_s = log if self._live is not None else say, _FIRST_LINE_S, _FIRST_LINE_S
        while not self._stop.wait(_LOOK_S):
            status = self.status()  # each time: the speed is that of the steps which it sees
            left_s -= _LOOK_S
            if left_s <= 0:
                told(", ".join(text for text in (status.percent, status.text(sys.maxsize)) if text))
                wait_s = left_s = min(2 * wait_s, _MAX_BETWEEN_LINES_S)

    def _start_live(self) -> None:
        from rich.console import Console, ConsoleDimensions
        from rich.live import Live
        from rich.spinner import Spinner

        class BarConsole(Console):
            """Never hides the cursor, which a killed program could not show again."""

            @property  # type: ignore[misc]  # rich's has a setter, which nothing uses
            def size(self) -> ConsoleDimensions:
                """The size of stderr's terminal. rich asks descriptors 0 to 2, of which filter_mpg123_messages takes 2.

                A terminal without a size (docker run -t, script) says 0, and rich would print nothing into that.
                """
                with suppress(OSError, ValueError):
                    size = os.get_terminal_size(self.file.fileno())
                    return ConsoleDimensions(size.columns or _COLUMNS, size.lines or _LINES)
                return super().size

            def show_cursor(self, show: bool = True) -> bool:
                return False

        console = BarConsole(stderr=True)
        render = partial(self._render, console, Spinner("line"))  # this spinner is ASCII
        self._live = Live(
            get_renderable=render,
            console=console,
            refresh_per_second=_DRAWS_PER_S,
            transient=True,
            redirect_stdout=False,  # the transcripts
        )
        signals.HARD_EXIT_HOOKS.append(_clear_line)
        self._live.start()

    def _render(self, console: Any, spinner: Any) -> Any:
        from rich.progress_bar import ProgressBar as RichBar
        from rich.table import Table
        from rich.text import Text

        status, width = self.status(), console.width - 1
        head, room = (spinner, width - 2) if status.share is None else (f"{status.percent:>5}", width - 6)
        text = status.text(room if status.share is None else room - _MIN_BAR - 1)
        # In steps, so that it does not change with each digit.
        bar_width = min(_MAX_BAR, (room - len(text) - 1) // 5 * 5)
        bar = [] if status.share is None or bar_width < _MIN_BAR else [RichBar(1.0, status.share, width=bar_width)]
        grid = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(2 + len(bar)):
            grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(head, *bar, Text(text, no_wrap=True, overflow="ellipsis"))
        return grid


def _clear_line(exit_code: int) -> None:
    os.write(2, _CLEAR_LINE)
