"""`fastscribe transcribe --dry-run`: what a run would do."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from fastscribe._system.text_layout import count_of
from fastscribe._system.urls import is_url
from fastscribe.audio.formats import STDIN
from fastscribe.audio.input_names import Repeats
from fastscribe.audio.inputs import expand
from fastscribe.cli.app import StdoutClosed, is_on_terminal
from fastscribe.cli.failure_lines import FailureLines
from fastscribe.cli.job import check_number, check_paths, using_folder
from fastscribe.cli.nothing_to_do import check_moved
from fastscribe.cli.run import fingerprint_of, loaded
from fastscribe.cli.run_hooks import TranscribeJob
from fastscribe.cli.run_messages import check_any_input, say_formats, say_listing, say_shard, say_stays
from fastscribe.cli.terminal import earlier_text, filter_mpg123_messages, say, show_table
from fastscribe.dry_run import DryRunReport, estimate_run
from fastscribe.results.interfaces import Ledger
from fastscribe.results.output import moved_line_of, read_ledger

if TYPE_CHECKING:
    from fastscribe.transcriber import Transcriber


def report_dry_run(job: TranscribeJob) -> None:
    """Print what a run would do: a table on stderr, and one JSON object on stdout unless that is a terminal.

    Nothing is written.

    Args:
        job: The command's options. If it is quiet, no table is printed; on a terminal the JSON object in its place.

    Raises:
        typer.Exit: An input cannot be transcribed (exit code 1), or failed in an earlier run (3).
        FastscribeError: Wrong options, an unusable model or folder, or recordings that were elsewhere.
    """
    if sys.stdout is None:
        raise StdoutClosed
    check_paths(job)
    check_number(job, expand(job.output.inputs, repeats=Repeats()))
    say_shard(job.output.shard, job.quiet)
    run = job.output
    is_stream = any(given == STDIN or is_url(given) for given in run.inputs)
    if not (run.place is None or run.overwrite or is_stream):
        check_moved(job, expand(run.inputs, repeats=Repeats()), partial(moved_line_of, run))
    for line in (line for hook in job.hooks for line in hook.first_lines):
        say(line)
    failure_lines = FailureLines(say, "" if job.verbose else "further ones are counted; -v gives them lines, too")
    with ExitStack() as opened:
        transcriber = opened.enter_context(loaded(job, say))
        usd_per_hour, _ = transcriber.usd_per_hour(job.price_per_hour)
        ledger = _ledger(job, transcriber, opened)
        with filter_mpg123_messages():
            found = estimate_run(transcriber, job.output.inputs, ledger, usd_per_hour, failure_lines.add)
    check_any_input(found.files + found.failed + found.skipped, job.output.shard)
    say_listing(found.left_out, found.repeated, job.quiet)
    if not job.quiet:
        say_formats(job, ledger)
        say_stays(ledger, got="would get")
        show_table(dry_run_table(found))
    if job.quiet or not is_on_terminal():
        print(json.dumps(found.to_json()), flush=True)
    if code := job.failure_code(found.failed, found.failed_before, found.files + found.failed + found.skipped):
        raise typer.Exit(code)


def _ledger(job: TranscribeJob, transcriber: Transcriber, opened: ExitStack) -> Ledger:
    """Return what is left to do in the output folder, which does not change and stays `opened`."""
    output = job.output
    if output.overwrite or output.place is None:
        return Ledger(output.shard)
    with using_folder(output.where):
        run = replace(output, fingerprint=fingerprint_of(job, transcriber))
        return opened.enter_context(read_ledger(output.place, run))


def dry_run_table(survey: DryRunReport) -> str:
    """Format a dry run as aligned lines."""
    cost = "unknown (--price-per-hour)" if survey.estimated_usd is None else _usd(survey.estimated_usd)
    given = survey.files + survey.failed
    time = f"about {_duration(survey.estimated_s)} (RTFx {survey.estimated_rtfx:.0f}, from a few batches)"
    if survey.failed and not survey.estimated_s:
        time = "unknown: no recording that was tried could be decoded"
    opened = f" (of the {survey.opened:,} opened, which stand for all)" if survey.opened < given else ""
    rows = [
        ("files", f"{survey.files} to do, {survey.failed} that cannot be used{opened}{earlier_text(survey)}"),
        ("audio", f"{survey.audio_s / 3600:.3f} h in {count_of(survey.utterances, 'utterance')}"),
        ("batches", f"{survey.batches}, padding {100 * survey.padding_share:.1f} %"),
        ("time", time),
        ("cost", cost),
    ]
    return "\n".join(f"  {name:<12} {value}" for name, value in rows)


def _usd(cost: float) -> str:
    """Format an estimated cost.

    >>> _usd(12.3), _usd(0.0004), _usd(0.00001)
    ('about 12.30 USD', 'about 0.0004 USD', 'less than 0.0001 USD')
    """
    if 0 < cost < 0.0001:
        return "less than 0.0001 USD"
    return f"about {cost:.4f} USD" if 0 < cost < 0.1 else f"about {cost:.2f} USD"


def _duration(seconds: float) -> str:
    hours, left = divmod(round(seconds), 3600)
    return f"{hours}:{left // 60:02d}:{left % 60:02d}" if hours else f"{left // 60}:{left % 60:02d}"
