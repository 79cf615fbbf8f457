"""Collects the data of a run's page, and writes it however the run ends."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe._system.text_layout import first_of
from fastscribe._system.url_secrets import hide_secrets
from fastscribe.cli.app import StdoutClosed
from fastscribe.cli.run_hooks import RunHook
from fastscribe.cli.terminal import say
from fastscribe.errors import FastscribeError
from fastscribe.report.files import check_page, write_page
from fastscribe.report.recorder import RunRecorder
from fastscribe.report.run_page import FINISHED, render
from fastscribe.types import Phrase

if TYPE_CHECKING:
    from fastscribe.cli.run_hooks import TranscribeJob
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.results.interfaces import OutputRun
    from fastscribe.transcriber import Transcriber
    from fastscribe.types import Failure, Transcript

_MAX_COMMAND = 4000  # characters; a shell that expands a glob makes millions
_MAX_SHOWN = 100  # phrases of a setting


class PageHook(RunHook):
    """Collects the data of a run's page, and writes it however the run ends.

    Args:
        path: What --report-html names; each shard has a page of its own beside it.
    """

    needs_words = True  # the page shows their confidences

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._recorder: RunRecorder | None = None  # until the run begins

    def files(self, output: OutputRun) -> Mapping[str, Path]:
        """Return the page. Raises UsageError if another file is there."""
        return {"--report-html": check_page(self._path.with_stem(self._path.stem + output.shard.suffix))}

    @contextmanager
    def during(self, job: TranscribeJob, transcriber: Transcriber) -> Iterator[None]:
        """Collect the run's data. Write the page of a run that an error or a signal ends; if that fails too, print why."""
        from fastscribe.transcriber import run_stats

        [self._place] = self.files(job.output).values()
        self._started = datetime.now().astimezone().isoformat(" ", "seconds")
        self._recorder, self._transcriber = RunRecorder(), transcriber
        transcriber.watcher = self._recorder.batch
        try:
            yield
        except BaseException as error:
            try:
                self.write(job, run_stats(transcriber, self._recorder.elapsed_s, job.price_per_hour), _status(error))
            except (OSError, ValueError, RuntimeError) as problem:  # a lost device, a full disk
                say(f"--report-html: not written: {problem}")
            raise

    def result(self, written: Transcript | Failure) -> None:
        """Record a result."""
        if self._recorder is not None:
            self._recorder.result(written)

    def finished(self, job: TranscribeJob, stats: RunStats, quiet: bool) -> int:
        """Write the page of a run that has finished; one that did nothing leaves an earlier page. Raises OutputError."""
        if self._recorder is not None and (stats.files or not job.output.place):
            self.write(job, stats)
            return 0
        [path] = self.files(job.output).values()
        is_there = path.exists() and path.stat().st_size > 0
        if not (quiet and is_there):
            stays = "stays as it is" if is_there else "is not written"
            say(f"--report-html {path}: {stays}, because there was nothing to do; report.json has the earlier numbers")
        return 0

    def write(self, job: TranscribeJob, stats: RunStats, status: str = FINISHED) -> None:
        """Write the page. Raises OutputError."""
        assert self._recorder is not None
        run = {
            "command": hide_secrets(command_line(sys.argv[1:])),
            "started": self._started,
            "status": hide_secrets(status),
            "model": job.model,
            "settings": _settings(job, self._transcriber),
            "report": stats.to_json() | {"skipped": self._transcriber.progress.skipped},
            "recorded": self._recorder.data(),
        }
        write_page(self._place, render(run))


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
    return {name: _as_given(value) for name, value in options.items() if value not in (None, ())}


def _as_given(value: Any) -> Any:
    """Return a setting as the command line has it, or about so."""

    def word(one: Any) -> str:
        if isinstance(one, Phrase):
            return one.text if one.weight == 1 else f"{one.text} ({one.weight:g})"
        return one if isinstance(one, str) else "=".join(map(str, one))

    return first_of(list(map(word, value)), _MAX_SHOWN) if isinstance(value, tuple) else value
