"""Lines about a run of `fastscribe transcribe`: its shard, its inputs, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastscribe.audio.formats import left_out_line
from fastscribe.audio.repeats import repeats_line
from fastscribe.cli.run_part import TranscribeJob
from fastscribe.cli.terminal import say
from fastscribe.errors import UsageError
from fastscribe.results.shards import Shard
from fastscribe.types import AudioInfo

if TYPE_CHECKING:
    from fastscribe.pipeline.stats import Progress, RunStats
    from fastscribe.results.ledger import Ledger


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


def tracks_line(audio: AudioInfo) -> str:
    """Return the line about a recording with several audio tracks."""
    return f"{audio.path} has {audio.num_tracks} audio tracks: the first is transcribed, --track 1 takes the second, and so on"


def check_any_input(num_inputs: int, shard: Shard, command: str = "transcribe") -> None:
    """Raise UsageError if there is no input. A shard may have none."""
    if num_inputs == 0 and shard.count == 1:
        raise UsageError(f"no input at all: nothing was given to {command}")


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


def say_made_again(ledger: Ledger, quiet: bool) -> int:
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
