"""Messages on stderr: one line per failed file, notices, and the table at the end. progress_bar.py has the bar.

`--log-file` keeps all of it except the bar, with times. stdout belongs to the transcripts.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TextIO

from fastscribe._system import signals
from fastscribe._system.file_kinds import starts_with
from fastscribe._system.text_layout import escaped
from fastscribe.errors import UsageError

if TYPE_CHECKING:
    from fastscribe.dry_run import DryRunReport
    from fastscribe.pipeline.stats import RunStats

_RELAY_END_S = 1.0
_LOG_START = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}([+-]\d{4})? \d+ ")
# mpg123's messages at its default verbosity: with its source file in front, or plain; some begin with an empty line.
_MPG123 = re.compile(rb"libmpg123|^Note: |^Warning: .*(Xing|Frankenstein)|^\n$")

_log = logging.getLogger("fastscribe.cli.terminal")
_log.propagate = False


def say(message: str, bar: Any = None) -> None:
    """Print one line to stderr, above the rich progress bar if there is one, and to the log."""
    show(f"fastscribe: {message}", bar)


def show(line: str, bar: Any = None) -> None:
    """Print one line and append it to the log. Terminal escape sequences are escaped (text_layout.escaped),
    and the secrets of URLs are hidden. A closed stderr does not end a run."""
    line = escaped(line)
    if "://" in line:
        from fastscribe._system.url_secrets import hide_secrets

        line = hide_secrets(line)
    with suppress(OSError, ValueError):  # ValueError: stderr is closed
        if bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
    log(line)


def show_table(text: str) -> None:
    """Print several lines."""
    for line in text.split("\n"):
        show(line)


def discard_unwritable_output() -> None:
    """If the reader of stdout or stderr is gone or its disk full, discard the buffer; else Python would end with code 120."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                with suppress(OSError, ValueError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def log(text: str) -> None:
    """Append a line to the log, if there is one."""
    if _log.handlers:
        _log.warning("%s", text.removeprefix("fastscribe: "))


class _LogFile(logging.FileHandler):
    """Log file that reports a write error once and is then removed."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        _log.removeHandler(self)
        with suppress(OSError):  # Python 3.13 complains at the end of what is left in the buffer
            self.close()
        say(f"--log-file {self.baseFilename}: cannot be written any more: {sys.exc_info()[1]}")


def log_to(path: Path) -> None:
    """Append every later message to this file. Raise UsageError if it is not a log or cannot be written."""
    try:
        if not starts_with(path, _LOG_START):
            raise UsageError(f"--log-file {path}: there is a file with something else in it: name another place")
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"--log-file {path}: cannot be written: {error.strerror or error}") from error
    formatter = logging.Formatter("%(asctime)s %(process)d %(message)s")
    formatter.default_msec_format = f"%s,%03d{time.strftime('%z')}"
    handler.setFormatter(formatter)
    _log.addHandler(handler)


@contextmanager
def filter_mpg123_messages(write_line: Callable[[bytes], bool] = lambda line: False) -> Iterator[None]:
    """Drop the messages of mpg123, a C library below libsndfile: one for every seek in a healthy MP3, others for damage.

    mpg123 writes to file descriptor 2, so this replaces it by a pipe, whose reader passes on everything else. Python's own
    stderr keeps the real descriptor.

    Args:
        write_line: Prints another library's line and returns True, or returns False to have it printed here.
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
    relay = Thread(target=_relay, args=(reader, real, write_line), name="stderr", daemon=True)
    relay.start()

    def restore(exit_code: int = 0) -> None:
        os.dup2(real, 2)

    signals.HARD_EXIT_HOOKS.insert(0, restore)  # else the last message would stay in the pipe
    try:
        yield
    finally:
        signals.HARD_EXIT_HOOKS.remove(restore)
        restore()  # closes the pipe's last writer, which ends the relay, unless a child process holds one
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


def _relay(reader: int, real: int, write_line: Callable[[bytes], bool]) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not _MPG123.search(line) and not write_line(line):
                with suppress(OSError):  # the reader of stderr is gone
                    os.write(real, line)


def earlier_text(stats: RunStats | DryRunReport) -> str:
    """Return how many inputs earlier runs have done."""
    failed = f" ({stats.failed_before} failed)" if stats.failed_before else ""
    return f", and {stats.skipped} before{failed}" if stats.skipped else ""
