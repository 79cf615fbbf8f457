"""Where the results of `fastscribe transcribe` go: stdout, a folder or a URL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastscribe.cli.app import StdoutClosed
from fastscribe.cli.job import unusable_folder
from fastscribe.cli.run_part import TranscribeJob

if TYPE_CHECKING:
    from fastscribe.results.outputs import Output
    from fastscribe.transcriber import Transcriber


def open_run_output(job: TranscribeJob, transcriber: Transcriber | None, say: Callable[[str], object]) -> Output:
    """Open stdout, the folder or the URL of a run; only stdout needs no transcriber. Raises UsageError."""
    from fastscribe.results.output_run import OutputRun
    from fastscribe.results.outputs import open_output

    target = job.target
    if target.is_stdout and sys.stdout is None:
        raise StdoutClosed
    fingerprint = {} if transcriber is None or target.is_stdout else fingerprint_of(job, transcriber)
    choices = (target.overwrite, target.retry_failed, target.ordered)
    try:
        run = OutputRun(job.style, fingerprint, target.shard, job.inputs, *choices)
        return open_output(target.directory or target.url or sys.stdout, run, say)
    except OSError as error:
        raise unusable_folder(target.where, error) from error


def fingerprint_of(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    """Return all that decides the results besides the inputs."""
    from fastscribe.journaled import run_fingerprint

    return run_fingerprint(transcriber, job.engine.digest(job, transcriber), job.options, job.style)
