"""Collects the data of a run's page, and writes it however the run ends."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe._system.url_secrets import hide_secrets
from fastscribe.cli.app import StdoutClosed
from fastscribe.cli.terminal import say
from fastscribe.errors import FastscribeError
from fastscribe.report.files import write_page
from fastscribe.report.recorder import RunRecorder
from fastscribe.report.run_page import FINISHED, render

if TYPE_CHECKING:
    from fastscribe.cli.run_part import TranscribeJob
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.transcriber import Transcriber

_MAX_COMMAND = 4000  # characters; a shell that expands a glob makes millions


class RunPage:
    """Collects the data of a transcriber's run, and writes the page at its end.

    As a context manager around the run, it also writes the page of a run that an error or a signal ends.
    """

    def __init__(self, path: Path, job: TranscribeJob, transcriber: Transcriber) -> None:
        self.path, self._job, self._transcriber = path, job, transcriber
        self._started = datetime.now().astimezone().isoformat(" ", "seconds")
        self.recorder = RunRecorder()
        transcriber.watcher = self.recorder.batch

    def __enter__(self) -> RunPage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        """Write the page of a run that `error` ends; if that fails too, print why."""
        from fastscribe.transcriber import run_stats

        if error is None:
            return
        try:
            self.write(run_stats(self._transcriber, self.recorder.elapsed_s, self._job.price_per_hour), _status(error))
        except (OSError, ValueError, RuntimeError) as problem:  # a lost device, a full disk
            say(f"--report-html: not written: {problem}")

    def write(self, stats: RunStats, status: str = FINISHED) -> None:
        """Write the page. Raises OutputError."""
        job, transcriber = self._job, self._transcriber
        run = {
            "command": hide_secrets(command_line(sys.argv[1:])),
            "started": self._started,
            "status": hide_secrets(status),
            "model": job.model,
            "settings": _settings(job, transcriber),
            "report": stats.to_json() | {"skipped": transcriber.progress.skipped},
            "recorded": self.recorder.data(),
        }
        write_page(self.path, render(run))


def command_line(arguments: Sequence[str]) -> str:
    """Return the command line quoted for a shell; truncate a very long one."""
    whole = shlex.join(["fastscribe", *arguments])
    return whole if len(whole) <= _MAX_COMMAND else f"{whole[:_MAX_COMMAND]} .. ({len(arguments):,} arguments)"


def _status(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, StdoutClosed):
        return "stopped: stdout was closed"
    if isinstance(error, FastscribeError):
        return f"stopped: {error}"
    return f"stopped: {type(error).__name__}: {error}" if isinstance(error, Exception) else "terminated"


def _settings(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    """Return the effective settings, with defaults resolved."""
    executor = transcriber._executor
    options = asdict(job.options) | {"decoder": executor.facts.decoder_name}
    options |= {"frames_in_a_batch_at_most": executor.budget.frames, "formats": ", ".join(job.output.style.formats)}
    options |= {"output_dir": hide_secrets(job.output.where), "devices": job.devices}
    options["shard"] = job.output.shard if job.output.shard.count > 1 else None
    return {name: value for name, value in options.items() if value not in (None, ())}
