"""Lines about a run of `fastscribe transcribe`: its shard, its inputs, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fastscribe._system.text_layout import count_of, first_of
from fastscribe.audio.formats import left_out_line
from fastscribe.audio.input_names import repeats_line
from fastscribe.cli.run_hooks import TranscribeJob
from fastscribe.cli.terminal import earlier_text, say
from fastscribe.config import CHANNELS, Options
from fastscribe.errors import UsageError
from fastscribe.results.shards import Shard
from fastscribe.rooms import WORDS
from fastscribe.types import AudioInfo

if TYPE_CHECKING:
    from fastscribe.pipeline.stats import DeviceShare, Progress, RunStats
    from fastscribe.results.interfaces import Ledger
    from fastscribe.results.output import JournaledOutput

_LONG_S = 60.0  # decoded, and no recording of them is done
_OTHER_S = 1.0  # of speech that is in no text: an "um" is not worth a line


def say_shard(shard: Shard, quiet: bool) -> None:
    """Print the shard; `quiet` hides it only if the user chose it with --shard."""
    if shard.count > 1 and not (quiet and shard.source == "--shard"):
        where = "" if shard.source == "--shard" else f" (from {shard.source}); --shard 0/1 does everything here"
        say(f"shard {shard}{where}")


def say_listing(left_out: Mapping[str, int], repeated: int, quiet: bool) -> None:
    """Print how many files of folders and patterns were not taken for audio, by kind, and how many came again.

    `quiet` hides it unless some of them may be audio.
    """
    if line := left_out_line(left_out, quiet):
        say(line)
    if repeated and not quiet:
        say(repeats_line(repeated))


def check_any_input(num_inputs: int, shard: Shard, command: str = "transcribe") -> None:
    """Raise UsageError if there is no input. A shard may have none."""
    if num_inputs == 0 and shard.count == 1:
        raise UsageError(f"no input at all: nothing was given to {command}")


def recording_lines(audio: AudioInfo, options: Options) -> Iterator[tuple[str, str]]:
    """Yield what a run says once of how it reads recordings: their tracks and channels. Each is a kind and a line."""
    from fastscribe.audio.surround import SURROUND

    if audio.num_tracks > 1 and options.track is None:
        tracks = f"{audio.path} has {audio.num_tracks} audio tracks"
        yield "tracks", f"{tracks}: the first is transcribed, --track 1 takes the second, and so on"
    if audio.missing_channel is not None:
        has = f"{audio.path} has no channel {audio.missing_channel}"
        yield "channel", f"{has}: all that it has are mixed; rows of such recordings have a field missing_channel"
    if audio.opposite_phase:
        cancel = f"channels of {audio.path} cancel each other"
        yield "phase", f"{cancel}, so one is taken there; rows of such recordings have a field opposite_phase"
    for note in audio.notes:
        if note.startswith(SURROUND):
            each = [f"--{name} {word} transcribes each channel" for name, word in WORDS.items() if word == CHANNELS]
            others = ", ".join([*each, "--channel N one"])
            yield "surround", f"{audio.path}: {note}; {others}; rows of such recordings have audio_notes"


def sound_lines(progress: Progress, options: Options, command: str, is_one: bool) -> Iterator[str]:
    """Yield lines about recordings without words (music, a dead microphone), speech that no text has, and voices on channels.

    Args:
        progress: The run's counts.
        options: The run's options.
        command: "transcribe", which alone can tell speakers apart, or "align", whose gaps are of the texts.
        is_one: The only transcript goes to stdout, where it shows that it is empty.
    """
    number, names = progress.wordless, progress.first_wordless
    if number and not is_one:
        has = "has" if number == 1 else "have"
        yield f"{count_of(number, 'recording')} {has} no words: {first_of(names, len(names), number)}"
    if progress.gap_s >= _OTHER_S and command == "align":
        recordings = count_of(progress.with_gaps, "recording")
        yield f"{progress.gap_s:,.0f} s of speech in {recordings} are not in the text: gaps in JSON says where"
    if progress.apart and command == "transcribe" and not options.has_speakers:
        has = f"{count_of(progress.apart, 'recording')} {'has' if progress.apart == 1 else 'have'}"
        named = first_of(progress.first_apart, len(progress.first_apart), progress.apart)
        yield f"{has} a voice on each of two channels: {named}; --speakers channels tells who speaks"


def say_summary(job: TranscribeJob, stats: RunStats) -> None:
    """Print what a run did, in three lines; a run to stdout without a price has two."""
    failed = f", {stats.failed:,} of them failed" if stats.failed else ""
    earlier = f", {stats.failed_before:,} of them failed" if stats.failed_before else ""
    before = (
        f" ({stats.skipped:,} {'was' if stats.skipped == 1 else 'were'} done before{earlier})" if stats.skipped else ""
    )
    say(f"{stats.files:,} file{'' if stats.files == 1 else 's'}{failed}: {_hours(stats.audio_s)} of audio{before}")
    say(f"in {_hours(stats.wall_s)}, after {_hours(stats.load_s)} of loading: {stats.rtfx:,.1f} times real time (RTFx)")
    cost = stats.usd_per_1000_audio_hours
    money = "" if cost is None else f"{cost:.2f} USD per 1,000 hours of audio ({stats.price_source})"
    results = "" if job.output.is_stdout else f"results: {job.output.where}"
    results += ", in the memory of this process, which ends now" if job.output.where.startswith("memory:") else ""
    if line := "; ".join(filter(None, (results, money))):
        say(line)


def counts_of(progress: Progress, output: JournaledOutput | None) -> dict[str, int]:
    """Return how many files a run that ends early has done, how many of them failed, and how many earlier runs had done.

    In a folder or a store, only durable results count. None: the results go to stdout.
    """
    files, skipped = progress.files, progress.skipped  # which counts later than the ledger
    if output is not None:
        files, skipped = min(files, output.num_durable), max(skipped, output.ledger.num_done)
    return {"files": files, "failed": min(progress.failed, files), "skipped": skipped}


def stopped_hint(
    job: TranscribeJob,
    progress: Progress,
    output: JournaledOutput | None,
    num_inputs: int | None,
    is_about: bool = False,
) -> str:
    """Return what a run that a signal ends has done, and how it goes on.

    Args:
        job: The command's options.
        progress: The run's counts.
        output: The folder or store; None: the results go to stdout.
        num_inputs: The number of its inputs; None: unknown so far.
        is_about: This number is an estimate.
    """
    counts = counts_of(progress, output)
    done = counts["files"] + counts["skipped"]
    of = "" if num_inputs is None else f" of {'about ' if is_about else ''}{max(done, num_inputs):,}"
    number_done = f"{done:,}{of} files are done" if done or of else "no file is done yet"
    if output is None:
        return f"{number_done}; with --output-dir the same command goes on where it stopped"
    again = "without --overwrite the command" if job.output.overwrite else "the same command"
    if not progress.planned_files and (number := int(output.journal.is_live.sum())) > done:  # not all were looked at
        return f"{count_of(number, 'result')} of earlier runs stay, and {again} goes on from there"
    if done:
        return f"{number_done} and kept, and {again} goes on from there"
    may_help = progress.done_s > _LONG_S and job.options.window > 1 and num_inputs != 1
    return number_done + ("; --window 1 finishes each long recording before the next" if may_help else "")


def _hours(seconds: float) -> str:
    """Return a length of time for people.

    >>> _hours(5.25), _hours(100), _hours(4000), _hours(360000)
    ('5.2 s', '100 s', '66.7 min', '100.0 h')
    """
    if seconds < 600:
        return f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


# The whole report of a run, as --verbose prints it.


def report_table(stats: RunStats) -> str:
    """Format the report as aligned lines."""
    cost = stats.usd_per_1000_audio_hours
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stats.stage_s.items())
    rows = [
        ("files", f"{stats.files} ({stats.failed} failed){earlier_text(stats)}"),
        ("audio", f"{stats.audio_s / 3600:.3f} h"),
        ("time", f"load {stats.load_s:.2f} s, run {stats.wall_s:.2f} s ({stages})"),
        ("RTFx", f"{stats.rtfx:.1f}"),
        ("gaps", f"{stats.gaps} ({stats.gap_s:.1f} s)" if stats.gaps else "none"),
        ("padding", f"{100 * stats.padding_share:.1f} %"),
        ("peak memory", f"{stats.peak_bytes / 2**30:.2f} GiB"),
        ("device", f"{stats.device}, {stats.dtype}"),
        *((f"no {path}", reason) for path, reason in stats.refused.items()),
        *((one.name, _share_text(one, share)) for one, share in stats.device_shares if len(stats.devices) > 1),
        (
            "cost",
            "unknown (--price-per-hour)"
            if cost is None
            else f"{cost:.2f} USD per 1,000 audio hours ({stats.price_source})",
        ),
    ]
    return "\n".join(f"  {name:<12} {value}" for name, value in rows)


def _share_text(one: DeviceShare, share: float) -> str:
    died = f", died {one.died} time{'s' if one.died > 1 else ''}" if one.died else ""
    batches = count_of(one.batches, "batch")
    return f"{100 * share:.0f} % of the audio ({one.audio_s / 3600:.3f} h in {batches}), busy {one.busy_s:.1f} s{died}"


# Lines about a folder or a store that has results of earlier runs.


def say_of_all_runs(job: TranscribeJob, output: JournaledOutput, not_given_line: str, is_idle: bool) -> int:
    """Print what holds of all runs into a folder or store, at the end. Return the number of files that could not be written.

    Args:
        job: The command.
        output: What it wrote to.
        not_given_line: JournaledOutput.not_given_line().
        is_idle: There was nothing to do, which is all that the command has to say.
    """
    if is_idle:
        say_all_done(job, output.ledger)
    if not_given_line and not job.quiet:
        say(not_given_line)
    if not (is_idle or job.quiet):
        say_formats(job, output.ledger)
    not_made = say_made_again(job, output)
    if not is_idle:
        say_failed_before(output.ledger)
    return not_made


def say_all_done(job: TranscribeJob, ledger: Ledger) -> None:
    """Print that there is nothing to do, in one line."""
    shard = " of this shard" if job.output.shard.count > 1 else ""
    inputs = f"the input{shard} is" if ledger.num_done == 1 else f"all {ledger.num_done:,} inputs{shard} are"
    failed = f"; {_failed_before(ledger)}" if ledger.failed_before else ""
    say(f"{job.output.where}: {inputs} done: there is nothing to do{failed}")


def say_formats(job: TranscribeJob, ledger: Ledger) -> None:
    """Print which formats the run takes from earlier results, if any."""
    if formats := ", ".join(ledger.earlier_formats):
        say(f"{job.output.where}: the formats are those of earlier results: {formats} (-f jsonl: rows alone)")


def say_failed_before(ledger: Ledger) -> None:
    """Print how many inputs failed in earlier runs, and the first of them, if any did."""
    if ledger.failed_before:
        say(_failed_before(ledger))


def _failed_before(ledger: Ledger) -> str:
    number, names = ledger.failed_before, ledger.first_failed
    were, them = ("was", "it") if number == 1 else ("were", "them")
    first = first_of(names, len(names), number)
    return f"{number:,} failed in an earlier run and {were} left alone ({first}); --retry-failed tries {them} again"


def say_stays(ledger: Ledger, got: str = "got") -> None:
    """Print how many results take new fields, replace others, or stay: as a list had them, or because no recording is there.

    Args:
        ledger: The run's, with its counts.
        got: Of the fields: "got", or what a dry run says.
    """
    if number := ledger.num_renewed:
        say(f"{count_of(number, 'earlier result')} {got} the fields that the list has now, without decoding")
    if number := ledger.num_replaced:
        say(f"{count_of(number, 'earlier result')} replaced: the list has another `duration` now")
    if number := ledger.num_changed:
        again = "decoded again" if got == "got" else "to be decoded again"
        why = "the recording, or a field of the list that decides the text, has changed"
        say(f"{count_of(number, 'earlier result')} {again}: {why}")
    for name, number in ledger.listed_fields.items():
        keeps = "keep" if number > 1 else "keeps"
        again = "a list with another one, or none, has it decoded again"
        say(f"{count_of(number, 'earlier result')} {keeps} the `{name}` that a list gave: {again}")
    if number := ledger.num_out_of_reach:
        one = "1 recording with a result is out of reach: its result stays"
        say(one if number == 1 else f"{number:,} recordings with results are out of reach: their results stay")


def say_made_again(job: TranscribeJob, output: JournaledOutput) -> int:
    """Print how many results got files without decoding, and which files could not be written. Return the latter's number."""
    num_made, not_made = output.files.num_made_again, output.not_made
    if not job.quiet:
        say_stays(output.ledger)
        if job.output.moved is not None and job.output.moved.old:
            say(f"--moved took over {count_of(len(output.files.taken), 'result')}, without decoding")
        if num_dropped := output.num_dropped:
            say(f"{count_of(num_dropped, 'earlier failure')} dropped: of inputs that are not given any more")
    if num_made and not job.quiet:
        recordings = f"{num_made} finished recording{'s' if num_made > 1 else ''}"
        looks = {"layout": "another layout (--max-line-width and so on)", "names": "other names of speakers"}
        again = "".join(
            f"; their {' and '.join(sorted(formats))} had {looks[look]}"
            for look, formats in sorted(output.files.laid_out_again.items())
        )
        say(f"made files for {recordings} from their rows, without decoding{again}")
    if not_made:
        others = f" (and {len(not_made) - 1} more)" if len(not_made) > 1 else ""
        reason = not_made[0].strerror
        say(f"{not_made[0].filename}{others}: not written: {reason}; the row is there, and the next run tries again")
    return len(not_made)
