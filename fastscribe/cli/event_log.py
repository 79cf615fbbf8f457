"""Events of a run for programs: JSON lines with units in the keys.

{"event": "started", "device", "dtype", "decoder", "load_s"}                                      and "devices", if several
{"event": "progress", "files", "failed", "skipped", "audio_s", "done_s", "planned_s", "elapsed_s", "rtfx"}  twice a second
{"event": "failed", "audio_filepath", "stage", "message"}          a file that failed; with "offset", "id", "listed" of a list
{"event": "finished", "report"}                                                                    report.json's content
{"event": "stopped", "exit_code", "message"}   instead: an error or a signal ended the run; with counts, once it has begun
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from threading import Event, Lock, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import typer

from fastscribe._system import signals
from fastscribe._system.file_kinds import starts_with
from fastscribe._system.url_secrets import hide_secrets
from fastscribe.cli.terminal import say
from fastscribe.errors import FastscribeError, UsageError
from fastscribe.types import Failure

if TYPE_CHECKING:
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.transcriber import Transcriber

_EVERY_S = 0.5
_OURS = re.compile(rb'\{"event": "')  # the start of an earlier run's log, which this run replaces


class EventLog:
    """Writer of events to a file, a pipe or /dev/fd/3. If the reader closes it, or the disk is full, the run goes on.

    Args:
        path: Where the events go.

    Raises:
        UsageError: The file holds something else, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._start = path, perf_counter()
        self._stop_event, self._lock = Event(), Lock()
        self.counts: Callable[[], dict[str, int]] = dict  # of the run that has begun
        try:
            if not starts_with(path, _OURS):
                raise UsageError(f"--events {path}: there is a file with something else in it: name another place")
            self._file: TextIO | None = path.open("w", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"--events {path}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> EventLog:
        signals.HARD_EXIT_HOOKS.append(self._end_at_once)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._stop_event.set()
        if error is not None and not isinstance(error, typer.Exit):  # which comes behind the last event
            from fastscribe.cli import ending_of

            code, text = ending_of(error)[0], " ".join(str(error).split())
            reason = (
                text if isinstance(error, (FastscribeError, OSError)) else f"{type(error).__name__} {text}".rstrip()
            )
            self._stopped(code, signals.ENDINGS.get(code, reason))
        signals.HARD_EXIT_HOOKS.remove(self._end_at_once)
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self._file = None

    def _end_at_once(self, exit_code: int) -> None:
        """Write the last event in a signal's handler, unless the thread that the signal interrupts is writing one."""
        if not self._stop_event.is_set() and self._lock.acquire(timeout=_EVERY_S):
            self._lock.release()
            self._stopped(exit_code, signals.ENDINGS[exit_code])

    def _stopped(self, exit_code: int, message: str) -> None:
        self._write_event("stopped", {"exit_code": exit_code, "message": hide_secrets(message), **self.counts()})

    def started(self, transcriber: Transcriber, num_inputs: Callable[[], int | None]) -> None:
        """Write the first event; from then on, write the progress periodically.

        Args:
            transcriber: Has loaded the model.
            num_inputs: Returns the number of the run's inputs; None: unknown so far.
        """
        found, num_devices = transcriber.facts, len(transcriber.shares())
        facts: dict[str, Any] = {"device": found.device_name, "dtype": found.dtype, "decoder": found.decoder_name}
        facts |= {"devices": num_devices} if num_devices > 1 else {}
        self._write_event("started", {**facts, "load_s": round(transcriber.load_s, 3)})
        self._start = perf_counter()
        Thread(target=self._write_progress, args=(transcriber, num_inputs), name="events", daemon=True).start()

    def _write_progress(self, transcriber: Transcriber, num_inputs: Callable[[], int | None]) -> None:
        """Write progress periodically: inputs done by an earlier run yield no results that could trigger it."""
        while not self._stop_event.wait(_EVERY_S):
            done, elapsed_s = transcriber.progress, perf_counter() - self._start
            counts = {name: getattr(done, name) for name in ("files", "failed", "skipped")}
            seconds = {name: round(getattr(done, name), 3) for name in ("audio_s", "done_s", "planned_s")}
            speed = {"elapsed_s": round(elapsed_s, 3), "rtfx": round(done.audio_s / elapsed_s, 2)}
            known = {} if (number := num_inputs()) is None else {"inputs": number}
            self._write_event("progress", {**counts, **known, **seconds, **speed})

    def failed(self, failure: Failure) -> None:
        """Write the event of a failed file, with what tells its row of a list from others."""
        path, message, row = hide_secrets(failure.path), hide_secrets(failure.message), failure.row or {}
        of_row = {name: row[name] for name in ("offset", "id") if isinstance(row.get(name), (str, int, float))}
        of_row = {name: value for name, value in of_row.items() if value == value}  # JSON has no NaN
        of_row |= {"listed": hide_secrets(failure.listed)} if failure.listed else {}
        self._write_event("failed", {"audio_filepath": path, **of_row, "stage": failure.stage, "message": message})

    def finished(self, stats: RunStats, exit_code: int) -> None:
        """Write the last event, with the report and the command's exit code."""
        self._stop_event.set()
        self._write_event("finished", {"exit_code": exit_code, "report": stats.to_json()})

    def idle(self, stats: RunStats, decoder: str, exit_code: int) -> None:
        """Write the events of a run that had nothing to do, and loaded no model."""
        facts = {"device": stats.device, "dtype": stats.dtype, "decoder": decoder, "load_s": stats.load_s}
        self._write_event("started", facts)
        self.finished(stats, exit_code)

    def _write_event(self, event: str, fields: Mapping[str, Any]) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"event": event, "time": now, **fields}, ensure_ascii=False) + "\n"
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write(line)
                self._file.flush()
            except (OSError, ValueError) as error:
                with suppress(OSError):  # Python would complain at the end of what is left in the buffer
                    self._file.close()
                self._file = None
                if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):  # whose reader needs no more
                    say(f"--events {self._path}: cannot be written any more: {error}")
