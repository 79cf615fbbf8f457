"""What a run says that its limit has stopped (run_limit.py)."""

from __future__ import annotations

from typing import Any

from fastscribe.cli.run_part import TranscribeJob
from fastscribe.cli.terminal import say
from fastscribe.pipeline.stats import Progress, RunStats


def stopped_facts(job: TranscribeJob, stats: RunStats, progress: Progress, num_inputs: int | None) -> dict[str, Any]:
    """Return what the report of a run that its limit has stopped says about it."""
    assert job.limit is not None
    usd = None if stats.usd_per_hour is None else round(stats.usd_per_hour * job.limit.elapsed_s / 3600, 4)
    listed = stats.skipped + progress.planned_files + progress.queued_files
    return {
        "limit": job.limit.text,
        "elapsed_s": round(job.limit.elapsed_s, 3),
        "usd": usd,
        "files_done": stats.files + stats.skipped,
        "files_given": listed if progress.has_all else num_inputs,
    }


def say_stopped(job: TranscribeJob, stats: RunStats) -> None:
    """Print how far a run came that its limit has stopped. Raises UsageError if it did nothing."""
    assert job.limit is not None and stats.stopped is not None
    if not stats.files:
        raise job.limit.too_short
    done, given = stats.stopped["files_done"], stats.stopped["files_given"]
    files = f"{done:,} of {given:,} files" if given is not None and given >= done else f"{done:,} files"
    then = "the same command goes on"
    if job.target.is_stdout:
        then = "with --output-dir the same command goes on"
    elif job.target.overwrite:
        then = "without --overwrite the command goes on"
    say(f"stopped {job.limit.text}: {files} done; {then}")
