"""A run of `fastscribe transcribe` or `align`, from the validated options to the exit code.

run() loads the model and opens the output, _write_all() writes each result, and run() says what came of it. Rooms take part
through the job's parts (run_part.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

import typer

from fastscribe import rooms
from fastscribe._system import signals
from fastscribe._system.gpus import num_gpus
from fastscribe._system.process_age import process_age_s
from fastscribe.audio.formats import STDIN
from fastscribe.audio.row_languages import OtherLanguages
from fastscribe.cli.app import StdoutClosed
from fastscribe.cli.job import SHORT_S, check_paths, is_stream
from fastscribe.cli.progress_bar import ProgressBar
from fastscribe.cli.run_messages import (
    check_any_input,
    say_listing,
    say_made_again,
    say_shard,
    say_stopped,
    stopped_facts,
    tracks_line,
)
from fastscribe.cli.run_output import open_run_output
from fastscribe.cli.run_part import RunPart, TranscribeJob
from fastscribe.cli.terminal import failure_line, filter_mpg123_messages, report_table, say, show_table
from fastscribe.config import DtypeName, DtypePolicy, FloatDtypeName
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.cli.early_listing import EarlyListing
    from fastscribe.cli.event_log import EventLog
    from fastscribe.cli.short_files import ShortFiles
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.results.outputs import Output
    from fastscribe.transcriber import Transcriber

MANY_INPUTS = 256  # a GPU with this number of inputs gets helpers
STOPPED = 75  # exit code, EX_TEMPFAIL of sysexits.h: the same command may be tried again


def run(
    job: TranscribeJob,
    event_log: EventLog | None,
    quiet: bool,
    show_progress: bool,
    show_report: bool,
    late_notes: Sequence[str] = (),
) -> None:
    """Transcribe the inputs, write the results and print the report.

    Args:
        job: The command's options.
        event_log: Receives the run's events; None: nothing does.
        quiet: Print no notices.
        show_progress: Show progress on stderr.
        show_report: Print the report.
        late_notes: Lines to print at the end unless the input is one short stream.

    Raises:
        typer.Exit: Exit code 1: a file failed; 75: the limit has stopped the run.
        FastscribeError: Wrong options, an unusable model or folder, or a disk that cannot be written.
    """
    started_at = perf_counter() - (process_age_s() or 0.0)
    say_shard(job.target.shard, quiet)
    check_paths(job)  # before the import of torch, which takes seconds
    bar = ProgressBar(show_progress, job.inputs, job.target.shard.count, counts_always=job.limit is not None)
    with filter_mpg123_messages(bar.write_line), bar, ExitStack() as stack:
        bar.phase("loading the model")
        job = _with_helpers(job)
        listing = _early_listing(job)
        transcriber = stack.enter_context(loaded(job, bar.say))
        transcriber._started_at = started_at
        if job.limit is not None:
            from fastscribe.pipeline.time_limit import TimeLimit

            transcriber._limit = TimeLimit(job.limit.started_s + job.limit.work_s)
        if event_log is not None:
            event_log.started(transcriber)
        bar.watch(lambda: transcriber.progress)  # which each run replaces
        with open_run_output(job, transcriber, bar.say) as output:
            with ExitStack() as during:
                for part in job.parts:
                    during.enter_context(part.during(job, transcriber))
                stats = _write_all(transcriber, job, listing, output, event_log, bar, says_tracks=not quiet)
            stats = replace(stats, skipped=transcriber.progress.skipped, failed_before=output.ledger.failed_before)
            if transcriber._limit is not None and transcriber._limit.is_reached:
                stats = replace(stats, stopped=stopped_facts(job, stats, transcriber.progress, bar.num_inputs))
            else:
                check_any_input(stats.files + stats.skipped, job.target.shard, transcriber.command)
            totals = output.totals()
            if totals is not None:
                stats = replace(stats, totals=totals._asdict())
                report = (json.dumps(stats.to_json(), indent=2) + "\n").encode()
                output.write_report(report, finished=stats.stopped is None)
    if event_log is not None:
        event_log.finished(stats)
    if not (quiet or stats.files + stats.skipped or stats.stopped):
        say(f"none of the {output.ledger.num_given:,} inputs is in shard {job.target.shard}: there is nothing to do")
    say_listing(stats.left_out, stats.repeated, quiet)
    is_empty = stats.files + stats.skipped <= stats.failed
    is_brief = _is_one_short_stream(job, stats)
    for note in () if is_brief else late_notes:
        say(note)
    if show_report and not is_empty and not is_brief:
        show_table(report_table(stats))
    if not quiet and totals is not None and totals.not_given and stats.stopped is None:  # else not all are listed
        results = "1 result is of an input" if totals.not_given == 1 else f"{totals.not_given} results are of inputs"
        say(f"{job.target.where}: {results} not given this time")
    not_made = say_made_again(output.ledger, quiet) + sum(part.finished(job, stats, quiet) for part in job.parts)
    if stats.failed_before:
        were, them = ("was", "it") if stats.failed_before == 1 else ("were", "them")
        say(f"{stats.failed_before} failed in an earlier run and {were} left alone; --retry-failed tries {them} again")
    if stats.stopped is not None:
        say_stopped(job, stats)
        raise typer.Exit(STOPPED)
    if stats.failed + stats.failed_before + not_made:
        raise typer.Exit(1)


def _with_helpers(job: TranscribeJob) -> TranscribeJob:
    """Return the job for a process with the GPU and helpers beside it, which keep it busy with many files.

    A few files are done sooner in this process, and so are those of a room that sees whole recordings.
    Helpers have not been tried on Windows.
    """
    if job.devices is not None or not job.engine.takes_helpers:
        return job
    if any(needs_whole(job.options) for needs_whole in rooms.offered("needs_whole_recordings", job.options)):
        return job
    gpu = re.fullmatch("auto|cuda(?::([0-9]+))?", job.device)
    if gpu is None or sys.platform == "win32" or not num_gpus():
        return job
    from fastscribe.cli.input_count import has_many

    if not has_many(job.inputs, MANY_INPUTS):
        return job
    return replace(job, devices=gpu[1] or "0")


def _early_listing(job: TranscribeJob) -> EarlyListing | None:
    """Begin to list the inputs while the model loads, if other processes read them; else None."""
    if job.devices is None or STDIN in job.inputs:
        return None
    from fastscribe.cli.early_listing import EarlyListing

    return EarlyListing(job.inputs)


def loaded(job: TranscribeJob, say: Callable[[str], None]) -> AbstractContextManager[Transcriber]:
    """Return a context manager that yields the job's transcriber, whose processes end with the block."""
    return job.engine.load(_with_earlier_dtype(job), say)


def _with_earlier_dtype(job: TranscribeJob) -> TranscribeJob:
    """Return the job in the dtype of the folder's earlier results if it may choose that one.

    So a run goes on in its dtype, and shards that write into one folder decode alike, whatever machine each is on.
    """
    if job.dtype not in get_args(DtypePolicy) or job.target.directory is None or job.target.overwrite:
        return job
    from fastscribe.results.earlier_dtype import earlier_dtype

    earlier = earlier_dtype(job.target.directory, job.target.shard)
    may_choose = get_args(FloatDtypeName if job.dtype == "auto" else DtypeName)
    return replace(job, dtype=earlier) if earlier is not None and earlier in may_choose else job


def _is_one_short_stream(job: TranscribeJob, stats: RunStats) -> bool:
    """Return True for one short recording on stdin or at a URL, as is_one_short_file() is of files: its length is known now."""
    return is_stream(job.inputs) and stats.files == 1 and stats.skipped == 0 and stats.audio_s <= SHORT_S


def _write_all(
    transcriber: Transcriber,
    job: TranscribeJob,
    listing: EarlyListing | None,
    output: Output,
    event_log: EventLog | None,
    bar: ProgressBar,
    says_tracks: bool,
) -> RunStats:
    from fastscribe.transcriber import run_stats

    start = perf_counter()
    inputs: Any = job.inputs if listing is None else listing
    results = transcriber._results(inputs, output.ledger)
    says_tracks = says_tracks and job.options.track is None
    others, short = OtherLanguages(transcriber._config.language), None
    writing = bar.paused if job.target.is_stdout else nullcontext
    with _until_limit(transcriber), closing(results):
        for result in results:
            others.count(result)
            if isinstance(result, Transcript) and result.audio.row is not None:  # of a manifest
                short = short or _short_files()
                short.count(result)
            if says_tracks and isinstance(result, Transcript) and result.audio.num_tracks > 1:
                says_tracks = False
                bar.say(tracks_line(result.audio))
            with transcriber.progress.stopwatch.time("write"), writing():
                written = _write(output, result, transcriber, job)
            for part in job.parts:
                part.result(written)
            if isinstance(written, Failure):
                bar.say(failure_line(written))
                if event_log is not None:
                    event_log.failed(written)
    with transcriber.progress.stopwatch.time("write"), writing():
        output.flush()
    if listing is not None:
        transcriber.progress.left_out, transcriber.progress.repeats = listing.left_out, listing.repeats
    if others.num:
        bar.say(others.line)
    for line in [*(short.lines if short else ()), *_lines(job.parts), *_lines_of(transcriber)]:
        bar.say(line)
    return run_stats(transcriber, perf_counter() - start, job.price_per_hour)


def _short_files() -> ShortFiles:
    from fastscribe.cli.short_files import ShortFiles

    return ShortFiles()


def _lines(parts: Iterable[RunPart]) -> Iterator[str]:
    return (line for part in parts for line in part.lines)


def _lines_of(transcriber: Transcriber) -> list[str]:
    """Return the lines about what options left as it was."""
    edits, languages = transcriber._edits, transcriber._languages
    changed = [*(edits.lines if edits else ()), *(languages.lines if languages else ())]
    return [*transcriber.progress.lines, *changed]


@contextmanager
def _until_limit(transcriber: Transcriber) -> Iterator[None]:
    """End the block without an error if the time of RunLimit.enforced() is over, and stop its timer."""
    try:
        yield
        signals.stop_timer()
    except signals.TimeIsOver:
        assert transcriber._limit is not None
        transcriber._limit.is_reached = True


def _write(
    output: Output,
    result: Transcript | Failure,
    transcriber: Transcriber,
    job: TranscribeJob,
) -> Transcript | Failure:
    from fastscribe.results.outputs import write_result

    try:
        return write_result(output, result, transcriber.progress.not_written, job.target.where)
    except BrokenPipeError as error:
        raise StdoutClosed from error
