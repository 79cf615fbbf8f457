"""A run of `fastscribe transcribe` and its dry run, from the options that were chosen to the exit code."""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from fastscribe._system.safe_files import is_device, write_atomic
from fastscribe.audio.failures import to_failure
from fastscribe.cli.app import StdoutClosed
from fastscribe.cli.event_log import EventLog
from fastscribe.cli.job import TranscribeJob
from fastscribe.cli.terminal import (
    ProgressBar,
    dry_run_table,
    failure_line,
    filter_mpg123_messages,
    report_table,
    say,
    show_table,
)
from fastscribe.errors import OutputError, UsageError
from fastscribe.resume.shards import Shard
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.cli.run_page import RunPage
    from fastscribe.output.folder import FolderOutput
    from fastscribe.output.stream import StreamOutput
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.resume.ledger import Ledger
    from fastscribe.transcriber import Transcriber

# These stop a run; another error of one output file costs that file alone.
_DISK_PROBLEMS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}


def run(job: TranscribeJob, event_log: EventLog, quiet: bool, show_progress: bool) -> None:
    """Transcribe the inputs and print the report. Raise typer.Exit(1) if files failed."""
    _say_shard(job.target.shard, quiet)
    _check_inputs(job)  # before torch, which takes its time to import
    from fastscribe.transcriber import Transcriber

    transcriber = Transcriber.load(job.model, job.device, job.dtype, job.options, say)
    event_log.started(transcriber)
    with _open_output(job, transcriber) as output:
        page = _page(job, transcriber)
        try:
            stats = _write_all(transcriber, job, output, event_log, show_progress, page)
        except BaseException as error:
            if page is not None:
                page.stopped(error)
            raise
        stats = replace(stats, skipped=transcriber.progress.skipped, failed_before=output.failed_before)
        if stats.files + stats.skipped == 0 and job.target.shard.count == 1:
            raise UsageError("no input at all: nothing was given to transcribe")
        totals = output.totals()
        if totals is not None:
            stats = replace(stats, totals=totals._asdict())
            _write_report(output.report_path, stats)
    event_log.finished(stats)
    if page is not None:
        page.finished(stats)
    if not quiet:
        show_table(report_table(stats))
        if totals is not None and totals.not_given:
            say(f"{totals.not_given} results in {job.target.directory} are of inputs that were not given this time")
    if stats.failed_before:
        say(f"{stats.failed_before} failed in an earlier run and were left alone; --retry-failed tries them again")
    if stats.failed + stats.failed_before:
        raise typer.Exit(1)


def _page(job: TranscribeJob, transcriber: Transcriber) -> RunPage | None:
    if job.report_html is None:
        return None
    from fastscribe.cli.run_page import RunPage

    return RunPage(job.report_html, job, transcriber)


def _say_shard(shard: Shard, quiet: bool) -> None:
    """Print the shard; `quiet` hides it only if the user chose it with --shard."""
    if shard.count > 1 and not (quiet and shard.source == "--shard"):
        say(f"shard {shard} (from {shard.source}); --shard 0/1 does everything here")


def _open_output(job: TranscribeJob, transcriber: Transcriber) -> FolderOutput | StreamOutput:
    from fastscribe.output.folder import FolderOutput
    from fastscribe.output.stream import StreamOutput

    target = job.target
    if target.directory is None:
        if sys.stdout is None:
            raise StdoutClosed
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # a TextIOWrapper
        return StreamOutput(sys.stdout, job.style, target.shard, ordered=target.ordered)
    try:
        return FolderOutput(
            target.directory,
            job.style,
            _fingerprint(job, transcriber),
            target.shard,
            overwrite=target.overwrite,
            retry_failed=target.retry_failed,
            ordered=target.ordered,
            inputs=job.inputs,
        )
    except OSError as error:
        raise _unusable_folder(target.directory, error) from error


def _unusable_folder(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"{folder}: cannot be used as output folder: {error.strerror or error}")


def _check_inputs(job: TranscribeJob) -> None:
    """Raise UsageError where a file is in the way, as far as this is known before the model is loaded.

    No input may be a file that the run itself writes, and no file of the run may be another one of its own.
    """
    from fastscribe.output.in_the_way import check_inputs
    from fastscribe.resume.entries import Paths

    asides = {"--report-html": job.report_html, "--events": job.events, "--log-file": job.log_file}
    own: dict[str, str] = {}
    for option, path in asides.items():
        if path is not None and not is_device(path):
            real_path = os.path.realpath(path)
            if real_path in own:
                raise UsageError(f"{option} {path}: is the file of {own[real_path]} too: name another place")
            own[real_path] = option
    if job.target.directory is not None:
        paths = Paths(job.target.directory, job.target.shard.suffix)
        for path in (paths.rows, paths.journal, paths.report, paths.lock):
            real_path = os.path.realpath(path)
            if real_path in own:
                raise UsageError(f"{own[real_path]} {path}: is another file of this run: name another place")
            own[real_path] = str(path)
    for given in job.inputs:
        if os.path.realpath(given) in own:
            raise UsageError(f"{given}: is what this run would write: name another place for the output")
    if job.target.directory is not None:
        try:
            if not paths.has_begun:
                paths.check()
                check_inputs(job.target.directory, job.style.formats, job.inputs, job.target.shard)
        except OSError as error:
            raise _unusable_folder(job.target.directory, error) from error


def _fingerprint(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    from fastscribe.resume.fingerprint import fingerprint, model_digest

    recognizer = transcriber.recognizer
    attention = recognizer.model.config.attention
    resolved: dict[str, Any] = {"dtype": recognizer.dtype, "decoder": recognizer.decoder_name, "attention": attention}
    resolved |= {"recover_gaps": transcriber.recovers_gaps}
    resolved |= {"beam": recognizer.beam} if recognizer.beam > 1 else {}
    return fingerprint(model_digest(job.model), resolved, job.options, job.style)


def _write_report(path: Path, stats: RunStats) -> None:
    """Write the report last and durably: `merge` takes it as proof that the run is complete."""
    try:
        write_atomic(path, (json.dumps(stats.to_json(), indent=2) + "\n").encode())
    except OSError as error:
        raise OutputError(str(error.filename), error) from error


def _write_all(
    transcriber: Transcriber,
    job: TranscribeJob,
    output: FolderOutput | StreamOutput,
    event_log: EventLog,
    show_progress: bool,
    page: RunPage | None,
) -> RunStats:
    from fastscribe.transcriber import run_stats

    start = perf_counter()
    results = transcriber.transcribe(job.inputs, output)
    with filter_mpg123_messages(), ProgressBar(transcriber, show_progress) as bar, closing(results):
        for result in results:
            with transcriber.progress.stopwatch.time("write"):
                written = _write(output, result, transcriber, job)
            if page is not None:
                page.recorder.result(written)
            if isinstance(written, Failure):
                bar.say(failure_line(written))
                event_log.failed(written)
            bar.update()
        with transcriber.progress.stopwatch.time("write"):
            output.flush()
    return run_stats(transcriber, perf_counter() - start, job.price_per_hour)


def _write(
    output: FolderOutput | StreamOutput, result: Transcript | Failure, transcriber: Transcriber, job: TranscribeJob
) -> Transcript | Failure:
    """What became of the result: itself, or the Failure that stands in for one that could not be written."""
    try:
        output.write(result)
    except BrokenPipeError as error:
        raise StdoutClosed from error
    except OSError as error:
        if error.errno in _DISK_PROBLEMS or isinstance(result, Failure):
            raise OutputError(str(error.filename or job.target.directory or "stdout"), error) from error
        transcriber.not_written(result)
        return _write(output, to_failure(result.audio, "write", error), transcriber, job)
    return result


def report_dry_run(job: TranscribeJob, quiet: bool) -> None:
    """Print what a run would do: a table on stderr and one JSON object on stdout."""
    from fastscribe.dry_run import estimate_run
    from fastscribe.report.prices import price_of
    from fastscribe.transcriber import Transcriber

    if sys.stdout is None:
        raise StdoutClosed
    _check_inputs(job)
    _say_shard(job.target.shard, quiet)
    transcriber = Transcriber.load(job.model, job.device, job.dtype, job.options, say)
    usd_per_hour, _ = price_of(transcriber.recognizer.device_name, job.price_per_hour)
    ledger = _ledger(job, transcriber)
    with filter_mpg123_messages():
        found = estimate_run(transcriber, job.inputs, ledger, usd_per_hour, lambda failure: say(failure_line(failure)))
    if found.files + found.failed + found.skipped == 0 and job.target.shard.count == 1:
        raise UsageError("no input at all: nothing was given to transcribe")
    if not quiet:
        show_table(dry_run_table(found))
    try:
        print(json.dumps(found.to_json()), flush=True)
    except BrokenPipeError as error:
        raise StdoutClosed from error
    if found.failed + found.failed_before:
        raise typer.Exit(1)


def _ledger(job: TranscribeJob, transcriber: Transcriber) -> Ledger:
    """Read what is left to do in the output folder without changing it."""
    from fastscribe.output.folder import check_sharding
    from fastscribe.output.in_the_way import check_inputs
    from fastscribe.resume.entries import Paths, PreviousRun
    from fastscribe.resume.journal import load_readonly
    from fastscribe.resume.ledger import Ledger

    target = job.target
    if target.directory is None or target.overwrite:
        return Ledger(target.shard)
    check_sharding(target.directory, target.shard)
    paths = Paths(target.directory, target.shard.suffix)
    if not paths.has_begun:
        return Ledger(target.shard)
    previous = load_readonly(paths, {**_fingerprint(job, transcriber), "shard": str(target.shard)})
    for_looking = Ledger(target.shard, PreviousRun(previous.entries), target.retry_failed)
    check_inputs(target.directory, job.style.formats, job.inputs, target.shard, [previous], for_looking)
    return Ledger(target.shard, previous, target.retry_failed)
