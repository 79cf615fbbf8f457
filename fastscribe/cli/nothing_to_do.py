"""Commands that have nothing to do say so before the model is loaded.

The journal of a run has a digest of all that its command stated. If the same command comes again, the ledger of its place
says whether all of its inputs are done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from fastscribe._system.urls import is_url
from fastscribe.audio.formats import STDIN
from fastscribe.cli.job import using_folder
from fastscribe.cli.listing import MAX_WAIT_S, Listing
from fastscribe.cli.run_hooks import TranscribeJob, model_digest_of
from fastscribe.cli.run_messages import say_all_done, say_failed_before, say_listing, say_made_again
from fastscribe.cli.terminal import say
from fastscribe.errors import UsageError
from fastscribe.pipeline.stats import RunStats
from fastscribe.pipeline.windows import expected_sources
from fastscribe.results.fingerprint import content_digests, fingerprint
from fastscribe.results.output import JournaledOutput, check_overwrite, last_run, moved_line_of, open_journaled
from fastscribe.types import Failure, Source
from fastscribe.version import __version__

if TYPE_CHECKING:
    from fastscribe.cli.event_log import EventLog


def request_of(job: TranscribeJob) -> str | None:
    """Return a digest of all that decides a run's results besides its inputs, as the command states it.

    None: a room loads the model, or the run reads files about speakers. Raises OSError.
    """
    if job.loading_hook is not None or job.options.needs_whole_recordings:
        return None
    given = {field.name: repr(getattr(job.options, field.name)) for field in fields(job.options)}
    stated = {**given, "dtype": job.dtype, "device": job.devices or job.device, "version": __version__}
    found = fingerprint(
        model_digest_of(job.model), stated | content_digests(job.options), job.options, job.output.style
    )
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:32]


def end_if_done(job: TranscribeJob, listing: Listing, event_log: EventLog | None) -> JournaledOutput | None:
    """End the command if an earlier run of the same command has done all of its inputs.

    Files that are missing there are made again from its rows. Its report stays, unless there is none or rows were dropped.

    Returns:
        The folder or store, open, if something is to do; None: it has no results of the same command.

    Raises:
        typer.Exit: All are done; with exit code 3 if some of them failed, and 1 if a file could not be made.
        UsageError: As output.open_journaled(), and if the inputs were elsewhere (results/moved.py).
    """
    run = job.output
    if any(map(is_url, run.inputs)):
        return None
    is_stream = STDIN in run.inputs  # whose next line may come late
    start, output, all_done = perf_counter(), None if is_stream else _earlier(job), False
    if output is None:
        if run.overwrite:
            with using_folder(run.where):
                if run.shard.count > 1 or not listing.is_empty:  # an empty list ends the run, which removes nothing
                    expected = expected_sources(listing.ahead(MAX_WAIT_S), None, job.options)
                    check_overwrite(run, expected, (lambda line: None) if job.quiet else say)
        elif not (is_stream and run.moved is not None):
            inputs = listing.ahead(MAX_WAIT_S) if is_stream else listing.whole()
            check_moved(job, inputs, partial(moved_line_of, run))
            listing.begin_again()
        return None
    try:
        most = len(output.journal.entry_indices)  # with more inputs than results, some input has none
        has_more = run.shard.count == 1 and any(number > most for number, _ in enumerate(listing.ahead(), start=1))
        if not has_more:
            ledger = output.ledger
            expected = expected_sources(listing.whole(), ledger, job.options)
            # Of a store that is out of reach, the run asks for many recordings at a time.
            all_done = all(
                not (ledger.num_out_of_reach and is_url(source.path)) and ledger.skip(source) for source in expected
            )
            all_done &= listing.is_whole and ledger.num_given > 0
        if not all_done:
            listing.begin_again()
            try:
                check_moved(job, listing.whole(), output.moved_line)
            except UsageError:
                output.put_report_back()  # the place stays as it was
                raise
            listing.begin_again()
            return output
        stats = _stats(output, listing, perf_counter() - start)
        output.write_report(report_of(output, stats))
        output.close()
    except BaseException:
        output.close(finished=False)
        raise
    ledger = output.ledger
    say_listing(listing.left_out, 0, quiet=True)
    if job.quiet:
        say_failed_before(ledger)
    else:
        say_all_done(job, ledger)
    not_made = say_made_again(job, output) + sum(hook.finished(job, stats, job.quiet) for hook in job.hooks)
    code = 1 if not_made else job.failure_code(0, ledger.failed_before, ledger.num_done)
    if event_log is not None:
        event_log.idle(stats, str((output.journal.header or {}).get("--decoder")), code)
    raise typer.Exit(code)


def check_moved(
    job: TranscribeJob, inputs: Iterable[Source | Failure], line_of: Callable[[Iterable[object]], str]
) -> None:
    """Print the line of the first inputs, if there is one. Raises UsageError as moved.moved_line()."""
    with using_folder(job.output.where):
        line = line_of(expected_sources(inputs, None, job.options))
    if line:
        say(line)


def report_of(output: JournaledOutput, stats: RunStats) -> bytes:
    """Return the content of report.json."""
    ledger = output.ledger
    inputs = {"inputs": ledger.num_given, "inputs_digest": f"{ledger.ids_digest:016x}"}
    return (json.dumps(stats.to_json() | inputs | {"request": output.facts["request"]}, indent=2) + "\n").encode()


def _stats(output: JournaledOutput, listing: Listing, wall_s: float) -> RunStats:
    """Return the statistics of a run that did nothing; what it would have run on is what the last run stated."""
    stated = {field.name for field in fields(RunStats)}  # the journal's facts have more, those of a newer version too
    counts: dict[str, Any] = dict.fromkeys(("files", "failed", "padded_frames", "real_frames", "peak_bytes"), 0)
    return RunStats(
        **counts,
        **{name: value for name, value in output.journal.facts.items() if name in stated},
        audio_s=0.0,
        load_s=0.0,
        wall_s=wall_s,
        stage_s={},
        skipped=output.ledger.num_done,
        failed_before=output.ledger.failed_before,
        left_out=listing.left_out,
        repeated=listing.repeats.num,
        totals=output.totals()._asdict(),
    )


def _earlier(job: TranscribeJob) -> JournaledOutput | None:
    """Open the place of a run of the same command; None if there is none."""
    run = job.output
    if run.place is None or run.overwrite:
        return None
    try:
        stated = last_run(run.place, run.shard)
        if stated is None or not stated.facts.get("request") or stated.facts["request"] != request_of(job):
            return None
    except (OSError, UsageError):  # the run itself says what is wrong
        return None
    header = {name: value for name, value in stated.header.items() if name != "shard"}
    with using_folder(run.where):
        earlier = replace(run, fingerprint=header, facts=stated.facts, quiet=job.quiet)
        return open_journaled(run.place, earlier, say)
