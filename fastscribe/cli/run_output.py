"""Where the results of `fastscribe transcribe` go: stdout, a folder or a URL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastscribe.cli.app import StdoutClosed
from fastscribe.cli.job import unusable_folder
from fastscribe.cli.run_part import TranscribeJob
from fastscribe.results.outputs import OutputRun

if TYPE_CHECKING:
    from fastscribe.results.output import JournaledOutput
    from fastscribe.results.outputs import Output
    from fastscribe.transcriber import Transcriber


def open_run_output(
    job: TranscribeJob,
    transcriber: Transcriber | None,
    say: Callable[[str], object],
    opened: JournaledOutput | None = None,
) -> Output:
    """Open stdout, the folder or the URL of a run; only stdout needs no transcriber. Raises UsageError.

    Args:
        job: The command's options.
        transcriber: Has loaded the model.
        say: Shows one line to the user.
        opened: The folder, if end_if_done() has opened it.
    """

    target = job.target
    if target.is_stdout and sys.stdout is None:
        raise StdoutClosed
    fingerprint = {} if transcriber is None or target.is_stdout else fingerprint_of(job, transcriber)
    choices = (target.overwrite, target.retry_failed, target.ordered)
    facts = {} if transcriber is None or target.is_stdout else facts_of(job, transcriber)
    run = OutputRun(job.style, fingerprint, target.shard, job.inputs, *choices, facts)
    try:
        if opened is not None:
            opened.go_on(run, say)
            return opened
        if target.is_stdout:
            from fastscribe.results.stream import StreamOutput

            return StreamOutput(sys.stdout, run)
        from fastscribe.results.output import open_journaled

        return open_journaled(target.directory or str(target.url), run, say)
    except OSError as error:
        raise unusable_folder(target.where, error) from error


def fingerprint_of(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    """Return all that decides the results besides the inputs."""
    from fastscribe.journaled import run_fingerprint

    return run_fingerprint(transcriber, job.digest(transcriber), job.options, job.style)


def facts_of(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    """Return what the journal keeps of a run, so that the same command knows without the model whether it is done."""
    from fastscribe.cli.nothing_to_do import request_of
    from fastscribe.transcriber import run_stats

    stats = run_stats(transcriber, 0.0, job.price_per_hour)
    names = ("device", "dtype", "usd_per_hour", "price_source", "versions")
    return {"request": request_of(job), **{name: getattr(stats, name) for name in names}}
