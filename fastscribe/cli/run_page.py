"""`--report-html` of `fastscribe transcribe`: collect the data of a run, and write the page however the run ends."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe.cli.app import StdoutClosed
from fastscribe.cli.terminal import say
from fastscribe.errors import FastscribeError
from fastscribe.report.files import check_page, write_page
from fastscribe.report.recorder import RunRecorder
from fastscribe.report.run_page import FINISHED, render
from fastscribe.resume.shards import Shard

if TYPE_CHECKING:
    from fastscribe.cli.job import TranscribeJob
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.transcriber import Transcriber

_MAX_COMMAND = 4000  # characters; a shell that expands a glob makes millions


class RunPage:
    """Watches a transcriber's run, and writes the page at its end. Raises UsageError where that could not be done."""

    def __init__(self, path: Path, job: TranscribeJob, transcriber: Transcriber) -> None:
        self._path = path
        self._job, self._transcriber = job, transcriber
        self._started = datetime.now().astimezone().isoformat(" ", "seconds")
        self.recorder = RunRecorder()
        transcriber.watcher = self.recorder

    def finished(self, stats: RunStats) -> None:
        """Raises OutputError."""
        self._write(stats, FINISHED)

    def stopped(self, error: BaseException) -> None:
        """The run is being left by this. Says so, where there can be no page either."""
        from fastscribe.transcriber import run_stats

        try:
            self._write(run_stats(self._transcriber, self.recorder.elapsed_s, self._job.price_per_hour), _status(error))
        except (OSError, ValueError, RuntimeError) as problem:  # a device that is lost, a disk that is full
            say(f"--report-html: not written: {problem}")

    def _write(self, stats: RunStats, status: str) -> None:
        job, transcriber = self._job, self._transcriber
        report = stats.to_json() | {"skipped": transcriber.progress.skipped}
        run = {
            "command": command_line(sys.argv[1:]),
            "started": self._started,
            "status": status,
            "model": job.model,
            "settings": _settings(job, transcriber),
            "frame_s": transcriber.config.frame_s,
            "report": report,
            "recorded": self.recorder.data(),
        }
        write_page(self._path, render(run))


def page_path(path: Path, shard: Shard) -> Path:
    """Where the page goes: each shard has its own. Raises UsageError."""
    return check_page(path.with_name(f"{path.stem}{shard.suffix}{path.suffix}")) if shard.suffix else path


def command_line(arguments: Sequence[str]) -> str:
    """Return the command line quoted for a shell; truncate a very long one."""
    whole = shlex.join(["fastscribe", *arguments])
    return whole if len(whole) <= _MAX_COMMAND else f"{whole[:_MAX_COMMAND]} .. ({len(arguments):,} arguments)"


def _status(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, StdoutClosed):
        return "stopped, since nobody read stdout any more"
    if isinstance(error, Exception):
        return (
            f"stopped: {error}" if isinstance(error, FastscribeError) else f"stopped: {type(error).__name__}: {error}"
        )
    return "terminated"


def _settings(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    """Return the effective settings, with defaults resolved."""
    options = asdict(job.options) | {
        "decoder": transcriber.recognizer.decoder_name,
        "recover_gaps": transcriber.recovers_gaps,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    output = {"output_dir": job.target.directory or "stdout", "formats": ", ".join(job.style.formats)}
    shard = {"shard": job.target.shard} if job.target.shard.count > 1 else {}
    return {**chosen, "frames_in_a_batch_at_most": transcriber.engine.budget.frames, **output, **shard}
