"""Lines about a folder or a store that has results of earlier runs."""

from __future__ import annotations

from fastscribe.cli.run_part import TranscribeJob
from fastscribe.cli.terminal import say
from fastscribe.results.output import JournaledOutput


def say_all_done(job: TranscribeJob, num_given: int, num_failed: int) -> None:
    """Print that there is nothing to do, in one line."""
    inputs = "the input is" if num_given == 1 else f"all {num_given:,} inputs are"
    failed = f"; {_failed_before(num_failed)}" if num_failed else ""
    say(f"{job.target.where}: {inputs} done: there is nothing to do{failed}")


def say_failed_before(number: int) -> None:
    """Print how many inputs failed in earlier runs, if any did."""
    if number:
        say(_failed_before(number))


def _failed_before(number: int) -> str:
    were, them = ("was", "it") if number == 1 else ("were", "them")
    return f"{number} failed in an earlier run and {were} left alone; --retry-failed tries {them} again"


def say_made_again(output: JournaledOutput, quiet: bool) -> int:
    """Print how many results got files without decoding, and which files could not be written. Return the latter's number."""
    num_made, not_made = output.files.num_made_again, output.not_made
    if num_made and not quiet:
        recordings = f"{num_made} finished recording{'s' if num_made > 1 else ''}"
        layouts = sorted(output.files.laid_out_again)
        again = (
            f"; their {' and '.join(layouts)} had another layout (--max-line-width and so on) or other names"
            if layouts
            else ""
        )
        say(f"made files for {recordings} from their rows, without decoding{again}")
    if not_made:
        others = f" (and {len(not_made) - 1} more)" if len(not_made) > 1 else ""
        reason = not_made[0].strerror
        say(f"{not_made[0].filename}{others}: not written: {reason}; the row is there, and the next run tries again")
    return len(not_made)


def say_not_given(job: TranscribeJob, number: int) -> None:
    """Print how many results there are of inputs that this run was not given, if there are any."""
    if number:
        results = "1 result is of an input" if number == 1 else f"{number} results are of inputs"
        say(f"{job.target.where}: {results} not given this time")
