"""Lines about a run of `fastscribe transcribe`: its shard, its inputs, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastscribe.audio.formats import left_out_line
from fastscribe.audio.repeats import repeats_line
from fastscribe.cli.run_part import TranscribeJob
from fastscribe.cli.terminal import say
from fastscribe.errors import UsageError
from fastscribe.results.shards import Shard

if TYPE_CHECKING:
    from fastscribe.pipeline.stats import Progress, RunStats


def say_shard(shard: Shard, quiet: bool) -> None:
    """Print the shard; `quiet` hides it only if the user chose it with --shard."""
    if shard.count > 1 and not (quiet and shard.source == "--shard"):
        say(f"shard {shard} (from {shard.source}); --shard 0/1 does everything here")


def say_listing(left_out: Mapping[str, int], repeated: int, quiet: bool) -> None:
    """Print how many files of folders and patterns were not taken for audio, by kind, and how many came again.

    `quiet` hides all but those that may be audio.
    """
    if line := left_out_line(left_out, quiet):
        say(line)
    if repeated and not quiet:
        say(repeats_line(repeated))


def check_any_input(num_inputs: int, shard: Shard, command: str = "transcribe") -> None:
    """Raise UsageError if there is no input. A shard may have none."""
    if num_inputs == 0 and shard.count == 1:
        raise UsageError(f"no input at all: nothing was given to {command}")


def say_summary(job: TranscribeJob, stats: RunStats) -> None:
    """Print what a run did, in three lines; a run to stdout without a price has two."""
    failed = f", {stats.failed:,} of them failed" if stats.failed else ""
    earlier = f", {stats.failed_before:,} of them failed" if stats.failed_before else ""
    before = f" ({stats.skipped:,} were done before{earlier})" if stats.skipped else ""
    say(f"{stats.files:,} file{'' if stats.files == 1 else 's'}{failed}: {_hours(stats.audio_s)} of audio{before}")
    say(f"in {_hours(stats.wall_s)}, after {_hours(stats.load_s)} of loading: {stats.rtfx:,.1f} times real time (RTFx)")
    cost = stats.usd_per_1000_audio_hours
    money = "" if cost is None else f"{cost:.2f} USD per 1,000 hours of audio ({stats.price_source})"
    results = "" if job.target.is_stdout else f"results: {job.target.where}"
    if line := "; ".join(filter(None, (results, money))):
        say(line)


def stopped_hint(job: TranscribeJob, progress: Progress, num_inputs: int | None) -> str:
    """Return what a run that a signal ends has done, and how it goes on.

    Args:
        job: The command's options.
        progress: The run's counts.
        num_inputs: The number of its inputs; None: unknown so far.
    """
    done = progress.files + progress.skipped
    of = "" if num_inputs is None else f" of {max(done, num_inputs):,}"
    if job.target.is_stdout:
        return f"{done:,}{of} files are done; with --output-dir the same command goes on where it stopped"
    again = "without --overwrite the command" if job.target.overwrite else "the same command"
    return f"{done:,}{of} files are done and kept, and {again} goes on from there"


def _hours(seconds: float) -> str:
    """Return a length of time for people.

    >>> _hours(5.25), _hours(100), _hours(4000), _hours(360000)
    ('5.2 s', '100 s', '66.7 min', '100.0 h')
    """
    if seconds < 600:
        return f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
