"""A run of `fastscribe transcribe` or `align`, from the validated options to the exit code.

run() loads the model and opens the output, _write_all() writes each result, and run() says what came of it. Rooms take part
through the job's hooks (run_hooks.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast, get_args

import typer

from fastscribe._system.process_settings import process_age_s, quick_start
from fastscribe._system.processors import num_gpus
from fastscribe._system.urls import is_url
from fastscribe.audio.formats import STDIN
from fastscribe.cli.app import WHEN_STOPPED, StdoutClosed
from fastscribe.cli.failure_lines import FailureLines
from fastscribe.cli.job import SHORT_S, check_number, check_paths, is_stream, using_folder
from fastscribe.cli.progress_bar import ProgressBar
from fastscribe.cli.run_hooks import TranscribeJob
from fastscribe.cli.run_messages import (
    check_any_input,
    counts_of,
    recording_lines,
    report_table,
    say_listing,
    say_of_all_runs,
    say_shard,
    say_summary,
    sound_lines,
    stopped_hint,
)
from fastscribe.cli.terminal import filter_mpg123_messages, say, show_table
from fastscribe.config import DtypeName, DtypePolicy, FloatDtypeName, Options
from fastscribe.errors import DeviceFailed, DeviceUnusable, FastscribeError
from fastscribe.fast_paths import RefusedPath, RefusedPaths
from fastscribe.languages import written_language
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.audio.row_languages import OtherLanguages
    from fastscribe.cli.event_log import EventLog
    from fastscribe.cli.listing import Listing
    from fastscribe.pipeline.interfaces import ModelFacts
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.results.output import JournaledOutput
    from fastscribe.results.stream import StreamOutput
    from fastscribe.transcriber import Transcriber

    Output = StreamOutput | JournaledOutput

MANY_INPUTS = 256  # a GPU with this number of inputs gets helpers
_FEW = 100  # inputs that are looked at before the model is loaded


def run(job: TranscribeJob, event_log: EventLog | None) -> None:
    """Transcribe the inputs, write the results and print the report.

    Args:
        job: The command's options.
        event_log: Receives the run's events; None: nothing does.

    Raises:
        typer.Exit: A recording failed, or a file could not be written.
        FastscribeError: Wrong options, an unusable model or folder, or a disk that cannot be written.
    """
    with ExitStack() as processes:  # a driver takes a second to let go of a GPU: the summary comes first
        _run(job, event_log, processes)


def _run(job: TranscribeJob, event_log: EventLog | None, processes: ExitStack) -> None:
    """See run(). The processes of devices and helpers end with `processes`."""
    started_at = perf_counter() - (process_age_s() or 0.0)
    say_shard(job.output.shard, job.quiet)
    check_paths(job)  # before the import of torch, which takes seconds
    from fastscribe.cli.listing import Listing  # here, because NumPy would slow down --help

    listing = Listing(job.output.inputs)
    check_number(job, listing.ahead())
    opened = _end_if_done(job, listing, event_log)
    if opened is not None:
        processes.callback(opened.close, False)  # if the run does not come to it
    for line in (line for hook in job.hooks for line in hook.first_lines):
        say(line)
    bar = ProgressBar(job.show_progress, listing, job.output.shard.count)
    with filter_mpg123_messages(bar.write_line), bar:
        job = replace(job, helped_gpu=_helped_gpu(job, listing))
        transcriber = processes.enter_context(loaded(job, RefusedPaths(bar.say)))
        transcriber.started_at = started_at
        if event_log is not None:
            event_log.started(transcriber, lambda: bar.num_inputs)
        bar.watch(lambda: transcriber.progress)  # which each run replaces
        if not job.output.is_stdout:  # opening makes a folder, or removes what is there
            has_any = not listing.is_empty if job.output.overwrite else listing.has_many(1)  # a pipe may stay silent
            check_any_input(has_any, job.output.shard, transcriber.command)
        with open_run_output(job, transcriber, bar.say, opened) as output:
            job = replace(job, output=replace(job.output, style=output.style))
            journaled = None if job.output.is_stdout else cast("JournaledOutput", output)
            WHEN_STOPPED.append(
                lambda: stopped_hint(job, transcriber.progress, journaled, bar.num_inputs, bar.is_about)
            )
            if event_log is not None:
                event_log.counts = lambda: counts_of(transcriber.progress, journaled)
            with ExitStack() as during:
                for hook in job.hooks:
                    during.enter_context(hook.during(job, transcriber))
                stats = _write_all(transcriber, job, listing, output, event_log, bar)
            stats = replace(stats, skipped=transcriber.progress.skipped, failed_before=output.ledger.failed_before)
            check_any_input(stats.files + stats.skipped, job.output.shard, transcriber.command)
            if journaled is not None:
                from fastscribe.cli.nothing_to_do import report_of

                not_given_line = journaled.not_given_line()
                stats = replace(stats, totals=journaled.totals()._asdict())
                journaled.write_report(report_of(journaled, stats))
    if not (job.quiet or stats.files + stats.skipped):
        say(f"none of the {output.ledger.num_given:,} inputs is in shard {job.output.shard}: there is nothing to do")
    is_idle = bool(stats.skipped) and not stats.files and not (job.quiet or job.verbose)
    say_listing(stats.left_out, stats.repeated, job.quiet or is_idle)
    is_empty = stats.files + stats.skipped <= stats.failed
    if job.show_report and not (is_empty or is_idle) and not _is_one_short_stream(job, stats):
        if job.verbose:
            show_table(report_table(stats))
        else:
            say_summary(job, stats)
    not_made = 0 if journaled is None else say_of_all_runs(job, journaled, not_given_line, is_idle)
    not_made += sum(hook.finished(job, stats, job.quiet) for hook in job.hooks)
    num_inputs = stats.files + stats.skipped
    code = 1 if not_made else job.failure_code(stats.failed, stats.failed_before, num_inputs)
    if event_log is not None:
        event_log.finished(stats, code)
    if code:
        raise typer.Exit(code)


def _end_if_done(job: TranscribeJob, listing: Listing, event_log: EventLog | None) -> JournaledOutput | None:
    """End the command with typer.Exit if an earlier run has done all of its inputs, or if none can be read.

    Return the folder, if an earlier run of the same command wrote there and there is something to do.
    """
    if STDIN not in job.output.inputs and not any(map(is_url, job.output.inputs)):
        _end_if_unusable(job, listing)
    folder = job.output.directory
    has_journal = folder is not None and any(folder.glob("journal*.jsonl"))
    if has_journal or job.output.url is not None or job.output.moved is not None:
        from fastscribe.cli.nothing_to_do import end_if_done

        return end_if_done(job, listing, event_log)
    return None


def _end_if_unusable(job: TranscribeJob, listing: Listing) -> None:
    """End a run whose few inputs have all failed already (typer.Exit). Of wrong paths, a folder or a store gets no rows."""
    if job.events or job.output.shard.count > 1:  # `merge` asks for each shard's own
        return
    from fastscribe.pipeline.windows import expected_sources

    failures = []
    for found in islice(expected_sources(listing.ahead(), None, job.options), _FEW):
        if not isinstance(found, Failure) or not (job.output.is_stdout or found.path in job.output.inputs):
            return
        failures.append(found)
    if not 0 < len(failures) < _FEW:
        return
    lines = FailureLines(say)
    with open_run_output(job, None, say) if job.output.is_stdout else nullcontext() as output:
        for failure in failures:
            if output is not None:
                output.write(failure)
            lines.add(failure)
    say_listing(listing.left_out, listing.repeats.num, job.quiet)
    raise typer.Exit(job.failure_code(len(failures), 0, len(failures)))


def _helped_gpu(job: TranscribeJob, listing: Listing) -> int | None:
    """Return the number of the GPU that gets a process of its own, with helpers, which keep it busy with many files.

    None: the run stays in this process, or `--devices` names its devices. A few files are done sooner in this process, and so
    are those of a room that sees whole recordings. `--threads 0` keeps all in it. Helpers have not been tried on Windows.
    """
    if job.devices is not None or job.options.threads == 0 or job.loading_hook is not None:
        return None
    if job.options.needs_whole_recordings:
        return None
    named = re.fullmatch("auto|cuda(?::([0-9]+))?", job.device)
    if named is None or sys.platform == "win32" or not int(named[1] or 0) < num_gpus():
        return None
    is_many = STDIN in job.output.inputs or listing.has_many(MANY_INPUTS)  # stdin may come slowly
    return int(named[1] or 0) if is_many else None


def loaded(job: TranscribeJob, say: Callable[[str], None]) -> AbstractContextManager[Transcriber]:
    """Return a context manager that yields the job's transcriber, whose processes end with the block."""
    job, hook = _with_earlier_dtype(job), job.loading_hook
    if hook is not None:
        return hook.load(job, say)
    with quick_start():
        from fastscribe.transcriber import Transcriber

        if job.helped_gpu is not None:
            return load_beside_helpers(Path(job.model), job.device, job.dtype, job.options, job.helped_gpu, say)
        device = job.device if job.devices is None else "auto"
        return Transcriber.load(Path(job.model), device, job.dtype, job.options, say, devices=job.devices)


def _with_earlier_dtype(job: TranscribeJob) -> TranscribeJob:
    """Return the job in the dtype of the folder's earlier results if it may choose that one.

    So a run goes on in its dtype, and shards that write into one folder decode alike, whatever machine each is on.
    """
    if job.dtype not in get_args(DtypePolicy) or job.output.directory is None or job.output.overwrite:
        return job
    from fastscribe.results.paths import earlier_dtype

    earlier = earlier_dtype(job.output.directory, job.output.shard)
    may_choose = get_args(FloatDtypeName if job.dtype == "auto" else DtypeName)
    return replace(job, dtype=earlier) if earlier is not None and earlier in may_choose else job


def _is_one_short_stream(job: TranscribeJob, stats: RunStats) -> bool:
    """Return True for one short recording on stdin or at a URL, as is_one_short_file() is of files: its length is known now."""
    return is_stream(job.output.inputs) and stats.files == 1 and stats.skipped == 0 and stats.audio_s <= SHORT_S


def _write_all(
    transcriber: Transcriber,
    job: TranscribeJob,
    listing: Listing,
    output: Output,
    event_log: EventLog | None,
    bar: ProgressBar,
) -> RunStats:
    from fastscribe.transcriber import run_stats

    start = perf_counter()
    inputs: Any = listing
    style = None if any(hook.needs_words for hook in job.hooks) else output.style
    results = transcriber.results(inputs, style=style, ledger=output.ledger)
    others: OtherLanguages | None = None
    failure_lines = FailureLines(bar.say)
    told = {"tracks"} if job.quiet else set[str]()
    writing = bar.paused if job.output.is_stdout else nullcontext
    with closing(results):
        for result in results:
            if result.row is not None:
                if others is None:
                    from fastscribe.audio.row_languages import OtherLanguages

                    others = OtherLanguages(transcriber.language)
                others.count(result)
            if isinstance(result, Transcript) and result.audio.is_notable:
                for kind, line in recording_lines(result.audio, job.options):
                    if kind not in told:
                        bar.say(line)
                    told.add(kind)
            with transcriber.progress.stopwatch.time("write"), writing():
                output.write(result)
            for hook in job.hooks:
                hook.result(result)
            if isinstance(result, Failure):
                failure_lines.add(result)
                if event_log is not None:
                    event_log.failed(result)
    with transcriber.progress.stopwatch.time("write"), writing():
        output.flush()
    transcriber.progress.left_out, transcriber.progress.repeats = listing.left_out, listing.repeats
    found = [line for hook in job.hooks for line in hook.lines]
    is_one = transcriber.progress.files == 1 and job.output.is_stdout
    sounds = () if job.quiet else sound_lines(transcriber.progress, job.options, transcriber.command, is_one)
    for line in filter(None, [*(others.lines if others else ()), *found, *transcriber.lines, *sounds]):
        bar.say(line)
    return run_stats(transcriber, perf_counter() - start, job.price_per_hour)


# Many files on a GPU: the model has a process of its own, with helpers beside it, and this process if those cannot go on.
#
# No option asks for these processes, so no run ends because of them: if they are refused, the run begins in this process; if
# they fail in the middle, it goes on in this process with what has no result. One line says why.


def load_beside_helpers(
    model: Path, device: str, dtype: str, options: Options, gpu: int, say: Callable[[str], None]
) -> Transcriber:
    """Load a model into a process for a GPU, with helpers; if that is refused, into this process.

    Args:
        model: As for Transcriber.load(), as are all others but one.
        device: In this process.
        dtype: The dtype.
        options: Of every run.
        gpu: Number of the GPU, which `device` names too.
        say: Called with each line for the user.

    Raises what Transcriber.load() raises for one device.
    """
    from fastscribe.transcriber import Transcriber

    say = RefusedPaths.around(say)  # the transcriber's too

    def load_here(failed: DeviceFailed, facts: ModelFacts) -> Transcriber:
        """Load the model into this process in the middle of a run: on the same kind of device, in the same dtype.

        The rows that are written have them, and a GPU that is lost ends a run without helpers too.
        """
        here = ("cuda" if facts.is_gpu else "cpu") if device == "auto" else device
        try:
            loaded_here = Transcriber.load(model, here, facts.dtype, options, say)
        except (FastscribeError, OSError, RuntimeError, MemoryError) as error:
            raise DeviceFailed(f"{failed.problem}; this process", error) from error
        say(_refused(failed.problem, loaded_here.facts))
        return loaded_here

    try:
        loaded = Transcriber.load(model, "auto", dtype, options, say, devices=str(gpu))
    except (DeviceFailed, DeviceUnusable) as error:
        problem, says_why = error.problem, isinstance(error, DeviceUnusable)
    else:
        loaded.load_here = load_here
        return loaded
    if device == "auto":
        from fastscribe.pipeline.model_building import choose_device

        # The line of the refused processes may have the reason already.
        device = str(choose_device(device, (lambda line: None) if says_why else say))
    loaded = Transcriber.load(model, device, dtype, options, say)
    say(_refused(problem, loaded.facts))
    return loaded


def _refused(problem: str, facts: ModelFacts) -> RefusedPath:
    line = f"no processes beside this one ({problem}): the run goes on in this process, on {facts.device_name}"
    return RefusedPath("helpers", problem, line)


# Where the results of `fastscribe transcribe` go: stdout, a folder or a URL.


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
    run, place = job.output, job.output.place
    if place is None:
        if sys.stdout is None:
            raise StdoutClosed
        from fastscribe.results.stream import StreamOutput

        return StreamOutput(sys.stdout, run)
    assert transcriber is not None
    fingerprint, facts = fingerprint_of(job, transcriber), facts_of(job, transcriber)
    run = replace(run, fingerprint=fingerprint, facts=facts, quiet=job.quiet)
    with using_folder(run.where):
        if opened is not None:
            opened.go_on(run, say)
            return opened
        from fastscribe.results.output import open_journaled

        return open_journaled(place, run, say)


def fingerprint_of(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    """Return all that decides the results besides the inputs."""
    from fastscribe.transcriber import run_fingerprint

    return run_fingerprint(transcriber, job.digest(transcriber), job.options, job.output.style)


def facts_of(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    """Return what the journal keeps of a run, so that the same command knows without the model whether it is done."""
    from fastscribe.cli.nothing_to_do import request_of
    from fastscribe.transcriber import run_stats

    stats = run_stats(transcriber, 0.0, job.price_per_hour)
    names = ("device", "dtype", "usd_per_hour", "price_source", "versions")
    options = transcriber.options
    language = written_language((options.target_language, options.language), transcriber.known_languages)
    return {"request": request_of(job), "language": language, **{name: getattr(stats, name) for name in names}}


# The time since this process started.
