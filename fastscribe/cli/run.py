"""A run of `fastscribe transcribe` and its dry run, from the validated options to the exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

import typer

from fastscribe import rooms
from fastscribe._system import signals
from fastscribe._system.collector import without_collector
from fastscribe._system.gpus import num_gpus
from fastscribe._system.process_age import process_age_s
from fastscribe.audio.formats import left_out_line
from fastscribe.audio.repeats import repeats_line
from fastscribe.audio.row_languages import OtherLanguages
from fastscribe.audio.stdin import STDIN
from fastscribe.cli.app import StdoutClosed
from fastscribe.cli.early_listing import EarlyListing
from fastscribe.cli.event_log import EventLog
from fastscribe.cli.input_count import has_many
from fastscribe.cli.job import SHORT_S, TranscribeJob, check_paths, is_stream, unusable_folder
from fastscribe.cli.progress_bar import ProgressBar
from fastscribe.cli.run_limit import STOPPED
from fastscribe.cli.short_files import ShortFiles
from fastscribe.cli.terminal import (
    dry_run_table,
    failure_line,
    filter_mpg123_messages,
    report_table,
    say,
    show_table,
)
from fastscribe.config import DtypeName, DtypePolicy, FloatDtypeName
from fastscribe.errors import UsageError
from fastscribe.journaled import run_fingerprint, write_result
from fastscribe.results.shards import Shard
from fastscribe.types import AudioInfo, Failure, Transcript

MANY_INPUTS = 256  # a GPU with this number of inputs gets helpers

if TYPE_CHECKING:
    from fastscribe.dry_run import DryRunReport
    from fastscribe.pipeline.stats import Progress, RunStats
    from fastscribe.report.transcribe_page import RunPage
    from fastscribe.results.ledger import Ledger
    from fastscribe.results.outputs import Output
    from fastscribe.transcriber import Transcriber


def run(
    job: TranscribeJob,
    event_log: EventLog,
    quiet: bool,
    show_progress: bool,
    show_report: bool,
    late_notes: Sequence[str] = (),
) -> None:
    """Transcribe the inputs, write the results and print the report.

    Args:
        job: The command's options.
        event_log: Receives the run's events.
        quiet: Print no notices.
        show_progress: Show progress on stderr.
        show_report: Print the report.
        late_notes: Lines to print at the end unless the input is one short stream.

    Raises:
        typer.Exit: Exit code 1: a file failed; 75: the limit has stopped the run.
        FastscribeError: Wrong options, an unusable model or folder, or a disk that cannot be written.
    """
    started_at = perf_counter() - (process_age_s() or 0.0)
    _say_shard(job.target.shard, quiet)
    check_paths(job)  # before the import of torch, which takes seconds
    bar = ProgressBar(show_progress, job.inputs, job.target.shard.count, counts_always=job.limit is not None)
    with filter_mpg123_messages(bar.write_line), bar, ExitStack() as loaded:
        bar.phase("loading the model")
        job = _with_helpers(job)
        listing = EarlyListing(job.inputs) if job.devices is not None and STDIN not in job.inputs else None
        transcriber = loaded.enter_context(_load(job, bar.say))
        transcriber._started_at = started_at
        if job.limit is not None:
            from fastscribe.pipeline.time_limit import TimeLimit

            transcriber._limit = TimeLimit(job.limit.started_s + job.limit.work_s)
        event_log.started(transcriber)
        bar.watch(lambda: transcriber.progress)  # which each run replaces
        with _open_output(job, transcriber, bar.say) as output:
            page = _page(job, transcriber)
            with page or nullcontext():
                stats = _write_all(transcriber, job, listing, output, event_log, bar, page, says_tracks=not quiet)
            stats = replace(stats, skipped=transcriber.progress.skipped, failed_before=output.ledger.failed_before)
            if transcriber._limit is not None and transcriber._limit.is_reached:
                stats = replace(stats, stopped=_stopped(job, stats, transcriber.progress, bar.num_inputs))
            else:
                _check_any_input(stats.files + stats.skipped, job.target.shard, transcriber.command)
            totals = output.totals()
            if totals is not None:
                stats = replace(stats, totals=totals._asdict())
                report = (json.dumps(stats.to_json(), indent=2) + "\n").encode()
                output.write_report(report, finished=stats.stopped is None)
    event_log.finished(stats)
    if not (quiet or stats.files + stats.skipped or stats.stopped):
        say(f"none of the {output.ledger.num_given:,} inputs is in shard {job.target.shard}: there is nothing to do")
    _say_listing(stats.left_out, stats.repeated, quiet)
    _say_aligned(transcriber)
    if page is not None:
        page.finished(stats)
    is_empty = stats.files + stats.skipped <= stats.failed
    is_brief = _is_one_short_stream(job, stats)
    for note in () if is_brief else late_notes:
        say(note)
    if show_report and not is_empty and not is_brief:
        show_table(report_table(stats))
    if not quiet and totals is not None and totals.not_given and stats.stopped is None:  # else not all are listed
        results = "1 result is of an input" if totals.not_given == 1 else f"{totals.not_given} results are of inputs"
        say(f"{job.target.where}: {results} not given this time")
    not_made = _say_made_again(output.ledger, quiet) + _find_persons(job, stats, quiet)
    if stats.failed_before:
        were, them = ("was", "it") if stats.failed_before == 1 else ("were", "them")
        say(f"{stats.failed_before} failed in an earlier run and {were} left alone; --retry-failed tries {them} again")
    if stats.stopped is not None:
        _say_stopped(job, stats)
        raise typer.Exit(STOPPED)
    if stats.failed + stats.failed_before + not_made:
        raise typer.Exit(1)


def _find_persons(job: TranscribeJob, stats: RunStats, quiet: bool) -> int:
    """Find the persons of a finished run with voice prints. Return 1 if that failed."""
    folder = job.target.directory
    if job.options.voices is None or stats.stopped is not None or folder is None or job.target.shard.count > 1:
        return 0
    from fastscribe.speakers.command import after_run

    return int(not after_run(folder, quiet))


def _stopped(job: TranscribeJob, stats: RunStats, progress: Progress, num_inputs: int | None) -> dict[str, Any]:
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


def _say_stopped(job: TranscribeJob, stats: RunStats) -> None:
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


def _with_helpers(job: TranscribeJob) -> TranscribeJob:
    """Return the job for a process with the GPU and helpers beside it, which keep it busy with many files.

    A few files are done sooner in this process, and so are those of a room that sees whole recordings.
    Helpers have not been tried on Windows.
    """
    if job.devices is not None or job.texts is not None or job.cluster is not None:
        return job
    if any(needs_whole(job.options) for needs_whole in rooms.offered("needs_whole_recordings", job.options)):
        return job
    gpu = re.fullmatch("auto|cuda(?::([0-9]+))?", job.device)
    if gpu is None or sys.platform == "win32" or not num_gpus() or not has_many(job.inputs, MANY_INPUTS):
        return job
    return replace(job, devices=gpu[1] or "0")


@contextmanager
def _load(job: TranscribeJob, say: Callable[[str], None]) -> Iterator[Transcriber]:
    """Yield the transcriber: of this process, or of a Ray cluster's workers, which end with the block."""
    job = _with_earlier_dtype(job)
    if job.texts is not None:
        with without_collector():
            from fastscribe.alignment.aligner import Aligner

        yield Aligner.load(Path(job.model), job.device, job.dtype, job.options, say).with_texts(job.texts)
        return
    if job.cluster is None:
        with without_collector():
            from fastscribe.transcriber import Transcriber

        model = Path(job.model)
        device = job.device if job.devices is None else "auto"
        with Transcriber.load(model, device, job.dtype, job.options, say, devices=job.devices) as transcriber:
            if job.report_html is None:  # which shows the words' confidences
                transcriber._executor.style = job.style
            yield transcriber
        return
    from fastscribe.ray.pool import Size
    from fastscribe.ray.run import RayTranscriber

    address, size = job.cluster.address, Size(job.cluster.workers)
    with RayTranscriber.start(
        job.model, job.device, job.dtype, job.options, say, address=address, size=size, style=job.style
    ) as transcriber:
        yield transcriber


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


def _say_made_again(ledger: Ledger, quiet: bool) -> int:
    """Print how many results got files without decoding, and which did not. Return the number of the latter."""
    num_made, not_made = ledger.num_made_again, ledger.not_made
    if num_made and not quiet:
        recordings = f"{num_made} finished recording{'s' if num_made > 1 else ''}"
        layouts = sorted(ledger.laid_out_again)
        again = f"; their {' and '.join(layouts)} had another layout (--max-line-width and so on)" if layouts else ""
        say(f"made files for {recordings} from their rows, without decoding{again}")
    if ledger.renamed and not quiet:
        first, num_renamed = ledger.renamed[0], len(ledger.renamed)
        results = f"{num_renamed} finished recordings" if num_renamed > 1 else "a finished recording"
        say(f"renamed the files of {results}, because another input has the same name: {first.old} is {first.new} now")
    if not_made:
        others = f" (and {len(not_made) - 1} more)" if len(not_made) > 1 else ""
        say(f"{not_made[0].filename}{others}: not made from its row: {not_made[0].strerror}")
    return len(not_made)


def report_dry_run(job: TranscribeJob, quiet: bool) -> None:
    """Print what a run would do: a table on stderr and one JSON object on stdout. Write nothing.

    Args:
        job: The command's options.
        quiet: Print no table.

    Raises:
        typer.Exit: Exit code 1: an input cannot be transcribed, or failed in an earlier run.
        FastscribeError: Wrong options, or an unusable model or folder.
    """
    if sys.stdout is None:
        raise StdoutClosed
    check_paths(job)
    _say_shard(job.target.shard, quiet)
    with _load(job, say) as transcriber:
        ready_s = 0.0 if job.limit is None else job.limit.elapsed_s
        usd_per_hour, _ = transcriber.usd_per_hour(job.price_per_hour, 0.0)
        ledger = _ledger(job, transcriber)
        with filter_mpg123_messages():
            found = _estimate(transcriber, job, ledger, usd_per_hour)
    _check_any_input(found.files + found.failed + found.skipped, job.target.shard)
    _say_listing(found.left_out, found.repeated, quiet)
    check = None if job.limit is None else job.limit.check(ready_s, found.estimated_s)
    if not quiet:
        show_table(dry_run_table(found, check))
    try:
        print(json.dumps(found.to_json() | ({} if check is None else check.to_json())), flush=True)
    except BrokenPipeError as error:
        raise StdoutClosed from error
    if found.failed + found.failed_before:
        raise typer.Exit(1)


def _estimate(transcriber: Transcriber, job: TranscribeJob, ledger: Ledger, usd_per_hour: float | None) -> DryRunReport:
    from fastscribe.dry_run import estimate_run
    from fastscribe.ray.run import RayTranscriber

    def show_failure(failure: Failure) -> None:
        say(failure_line(failure))

    if isinstance(transcriber, RayTranscriber):
        return transcriber.estimate(job.inputs, ledger, usd_per_hour, show_failure)
    return estimate_run(transcriber, job.inputs, ledger, usd_per_hour, show_failure)


def _say_shard(shard: Shard, quiet: bool) -> None:
    """Print the shard; `quiet` hides it only if the user chose it with --shard."""
    if shard.count > 1 and not (quiet and shard.source == "--shard"):
        say(f"shard {shard} (from {shard.source}); --shard 0/1 does everything here")


def _say_listing(left_out: Mapping[str, int], repeated: int, quiet: bool) -> None:
    """Print how many files of folders and patterns were not taken for audio, by kind, and how many came again."""
    if left_out and not quiet:
        say(left_out_line(left_out))
    if repeated and not quiet:
        say(repeats_line(repeated))


def _say_aligned(transcriber: Transcriber) -> None:
    """Print which words of the texts were not heard, where none were looked for, and which characters are not written."""
    if transcriber.command != "align":
        return
    from fastscribe.alignment.aligner import Aligner
    from fastscribe.alignment.script import missing_line, unsearched_line, unwritten_line

    assert isinstance(transcriber, Aligner)
    counts = transcriber.text_aligner
    if counts.unwritten:
        say(unwritten_line(counts.unwritten, counts.num_untimed))
    if counts.num_missing:
        say(missing_line(counts.missing, counts.num_missing, counts.num_words))
    if counts.unsearched_s:
        say(unsearched_line(counts.unsearched_s))


def _tracks_line(audio: AudioInfo) -> str:
    return f"{audio.path} has {audio.num_tracks} audio tracks: the first is transcribed, --track 1 takes the second, and so on"


def _open_output(job: TranscribeJob, transcriber: Transcriber, say: Callable[[str], object]) -> Output:
    from fastscribe.results.outputs import open_output

    target = job.target
    if target.is_stdout and sys.stdout is None:
        raise StdoutClosed
    try:
        return open_output(
            target.directory or target.url or sys.stdout,
            job.style,
            {} if target.is_stdout else _fingerprint(job, transcriber),
            target.shard,
            overwrite=target.overwrite,
            retry_failed=target.retry_failed,
            ordered=target.ordered,
            inputs=job.inputs,
            say=say,
        )
    except OSError as error:
        raise unusable_folder(target.where, error) from error


def _fingerprint(job: TranscribeJob, transcriber: Transcriber) -> dict[str, Any]:
    from fastscribe.ray.run import RayTranscriber
    from fastscribe.results.fingerprint import model_digest

    digest = transcriber.model_digest if isinstance(transcriber, RayTranscriber) else model_digest(job.model)
    return run_fingerprint(transcriber, digest, job.options, job.style)


def _page(job: TranscribeJob, transcriber: Transcriber) -> RunPage | None:
    if job.report_html is None:
        return None
    from fastscribe.report.transcribe_page import RunPage

    return RunPage(job.report_html, job, transcriber)


def _write_all(
    transcriber: Transcriber,
    job: TranscribeJob,
    listing: EarlyListing | None,
    output: Output,
    event_log: EventLog,
    bar: ProgressBar,
    page: RunPage | None,
    says_tracks: bool,
) -> RunStats:
    from fastscribe.transcriber import run_stats

    start = perf_counter()
    inputs: Any = job.inputs if listing is None else listing
    results = transcriber._results(inputs, output.ledger)
    says_tracks = says_tracks and job.options.track is None
    others, short = OtherLanguages(transcriber._config.language), ShortFiles()
    counts = [open_counts(job.options) for open_counts in rooms.offered("open_counts", job.options)]
    writing = bar.paused if job.target.is_stdout else nullcontext
    with _until_limit(transcriber), closing(results):
        for result in results:
            others.count(result)
            short.count(result)
            for one in counts:
                one.count(result)
            if says_tracks and isinstance(result, Transcript) and result.audio.num_tracks > 1:
                says_tracks = False
                bar.say(_tracks_line(result.audio))
            with transcriber.progress.stopwatch.time("write"), writing():
                written = _write(output, result, transcriber, job)
            if page is not None:
                page.recorder.result(written)
            if isinstance(written, Failure):
                bar.say(failure_line(written))
                event_log.failed(written)
    with transcriber.progress.stopwatch.time("write"), writing():
        output.flush()
    if listing is not None:
        transcriber.progress.left_out, transcriber.progress.repeats = listing.left_out, listing.repeats
    if others.num:
        bar.say(others.line)
    edits, languages = transcriber._edits, transcriber._languages
    changed = [*(edits.lines if edits else ()), *(languages.lines if languages else ())]
    for line in [*short.lines, *(line for one in counts for line in one.lines), *transcriber.progress.lines, *changed]:
        bar.say(line)
    return run_stats(transcriber, perf_counter() - start, job.price_per_hour)


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
    try:
        return write_result(output, result, transcriber.progress.not_written, job.target.where)
    except BrokenPipeError as error:
        raise StdoutClosed from error


def _check_any_input(num_inputs: int, shard: Shard, command: str = "transcribe") -> None:
    """Raise UsageError if there is no input. A shard may have none."""
    if num_inputs == 0 and shard.count == 1:
        raise UsageError(f"no input at all: nothing was given to {command}")


def _ledger(job: TranscribeJob, transcriber: Transcriber) -> Ledger:
    """Read what is left to do in the output folder without changing it."""
    from fastscribe.results.ledger import Ledger
    from fastscribe.results.outputs import read_ledger

    target = job.target
    if target.overwrite or target.is_stdout:
        return Ledger(target.shard)
    fingerprint = _fingerprint(job, transcriber)
    try:
        place = target.directory or target.where
        return read_ledger(
            place, job.style, fingerprint, target.shard, retry_failed=target.retry_failed, inputs=job.inputs
        )
    except OSError as error:
        if target.url is None:
            raise
        raise unusable_folder(target.where, error) from error
