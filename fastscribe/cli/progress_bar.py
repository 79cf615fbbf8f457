"""Progress of a run: a bar on a terminal, a line now and then elsewhere and in the log. pipeline/stats.py counts.

The share is that of the audio. Parts of a long recording count as they finish. Until the last input is probed the total is
an estimate, marked "~": the number of inputs times the mean length so far. While not all inputs are listed, there is no share.
rich is imported only for a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastscribe._system import signals
from fastscribe.cli.terminal import log, say, show
from fastscribe.pipeline.stats import Progress

if TYPE_CHECKING:
    from fastscribe.cli.listing import Listing
    from fastscribe.cli.progress_text import Pace, Status

_DRAWS_PER_S = 8
_MIN_BAR, _MAX_BAR = 10, 40  # columns
_COLUMNS, _LINES = 80, 25  # of a terminal that does not say
_LOOK_S = 1.0  # between two looks at the counts, where there is no bar
_FIRST_LINE_S, _MAX_BETWEEN_LINES_S = 60.0, 600.0
_CLEAR_LINE = b"\r\x1b[2K"


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
        self._pace: Pace | None = None
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
        """The number of inputs of this shard, of shards about; None: unknown so far."""
        number = None if self._listing is None else self._listing.number
        return None if number is None else number // self._num_shards

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
        from fastscribe.cli.progress_text import Pace, Status, make_status  # a short run shows nothing

        if self._progress is None:
            return Status(None, True, ((0, "loading the model"),))
        self._pace = self._pace or Pace()
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
