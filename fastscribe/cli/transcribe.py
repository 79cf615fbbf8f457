"""`fastscribe transcribe`: recordings into transcripts."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fastscribe.audio.source import to_failure
from fastscribe.cli.app import MODEL_HELP, StdoutClosed, app, option
from fastscribe.config import OUTPUT_FORMATS, Options, OutputStyle, SubtitleStyle
from fastscribe.errors import OutputError, UsageError
from fastscribe.events import Events
from fastscribe.shards import Shard, choose_shard
from fastscribe.terminal import (
    ProgressBar,
    failure_line,
    log_to,
    report_table,
    say,
    show,
    survey_table,
    without_mp3_chatter,
)
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.ledger import Ledger
    from fastscribe.output import FolderOutput, StreamOutput
    from fastscribe.run import Transcriber
    from fastscribe.stats import RunStats

# These stop a run; another error of one output file costs that file alone.
_DISK_PROBLEMS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}


class Dtype(str, Enum):
    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    int8 = "int8"
    fp8 = "fp8"


class CudaGraphs(str, Enum):
    auto = "auto"
    full = "full"
    chunked = "chunked"
    off = "off"


class Decoder(str, Enum):
    rnnt = "rnnt"
    tdt = "tdt"
    ctc = "ctc"


class Vad(str, Enum):
    energy = "energy"
    silero = "silero"


def _frames(value: str | None) -> int | Literal["auto"] | None:
    if value is None or value == "auto":
        return "auto" if value else None
    if not value.isdigit() or int(value) == 0:
        raise typer.BadParameter("give a number of encoder frames, or auto")
    return int(value)


def _formats(values: Iterable[str] | None) -> tuple[str, ...]:
    formats = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    unknown = [name for name in formats if name not in OUTPUT_FORMATS]
    if unknown:
        raise typer.BadParameter(f"unknown format {unknown[0]!r}; choose from {', '.join(OUTPUT_FORMATS)}")
    return tuple(dict.fromkeys(formats)) or ("jsonl",)


_DEFAULTS = Options()
_LOOKS = SubtitleStyle()


@app.command(epilog="Example: fastscribe transcribe interviews/ --model model.nemo -o out -f jsonl,srt")
def transcribe(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs, NeMo manifests (.jsonl, .json), or - for paths on stdin.", metavar="INPUTS..."
        ),
    ],
    model: Annotated[str, option("--model", "-m", help=MODEL_HELP)],
    output_dir: Annotated[
        Path | None,
        option(
            "--output-dir",
            "-o",
            help="Folder for results; without it they go to stdout. The same command again does what is left.",
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        option("--format", "-f", help=f"{', '.join(OUTPUT_FORMATS)}; repeat or separate by commas. Default jsonl."),
    ] = None,
    tokens: Annotated[bool, option("--tokens", help="Write every token with its times and confidence too.")] = False,
    ordered: Annotated[bool, option("--ordered", help="Rows in the order of the inputs, not of completion.")] = False,
    decoder: Annotated[
        Decoder | None, option("--decoder", help="Which head of the checkpoint to use. Default: its own.")
    ] = None,
    device: Annotated[str, option("--device", help="auto, cpu, cuda, cuda:1 ..")] = "auto",
    dtype: Annotated[
        Dtype,
        option(
            "--dtype",
            help="auto: bf16 on GPUs, and on CPUs that multiply it natively for wide models; else fp32. int8 (CPUs) and "
            "fp8 (GPUs) multiply the encoder's large matrices in 8 bits; a few words differ.",
        ),
    ] = Dtype.auto,
    attention: Annotated[
        str | None,
        option(
            "--attention",
            metavar="full|local:L,R",
            help="What a frame sees: all frames, or L before and R after it (80 ms each), whose cost does not grow with "
            "the square of the length. Default: the checkpoint's.",
        ),
    ] = None,
    max_utterance_s: Annotated[
        float, option("--max-utterance-s", min=0, help="Cut longer audio at a quiet place; 0 = never.")
    ] = _DEFAULTS.max_utterance_s,
    vad: Annotated[
        Vad, option("--vad", help="What tells speech from silence: energy, or silero (needs fastscribe[vad]).")
    ] = Vad.energy,
    channel: Annotated[
        int | None, option("--channel", min=0, help="Use this channel (from 0) instead of the mean of all.")
    ] = None,
    max_line_width: Annotated[
        int, option("--max-line-width", min=1, help="Columns a line of subtitles; Chinese .. characters take two.")
    ] = _LOOKS.max_line_width,
    max_lines: Annotated[int, option("--max-lines", min=1, help="Lines a cue.")] = _LOOKS.max_lines,
    max_cue_s: Annotated[float, option("--max-cue-s", min=0, help="Longest cue.")] = _LOOKS.max_cue_s,
    min_cue_s: Annotated[
        float, option("--min-cue-s", min=0, help="Shortest cue, where there is room.")
    ] = _LOOKS.min_cue_s,
    max_chars_per_second: Annotated[
        float,
        option("--max-chars-per-second", min=0, help="Reading speed to keep to where speech allows it; 0 = any."),
    ] = _LOOKS.max_chars_per_second or 0.0,
    highlight_words: Annotated[
        bool, option("--highlight-words", help="In VTT, mark each word while it is spoken.")
    ] = False,
    retry_failed: Annotated[
        bool, option("--retry-failed", help="Do files again that failed in an earlier run into the same folder.")
    ] = False,
    overwrite: Annotated[
        bool, option("--overwrite", help="Start over in a folder that holds results already.")
    ] = False,
    shard: Annotated[
        str | None,
        option(
            "--shard",
            metavar="I/N",
            help="Do part I of N (from 0), by a hash of the files' names. In a SLURM array by itself; in a Kubernetes "
            "indexed job auto/N. See fastscribe merge.",
        ),
    ] = None,
    window: Annotated[int, option("--window", min=1, help="Inputs to sort by length together.")] = _DEFAULTS.window,
    dry_run: Annotated[
        bool, option("--dry-run", help="Only say what would be done: files, hours, batches, time and cost.")
    ] = False,
    batch_frames: Annotated[
        str | None,
        option("--batch-frames", help="Encoder frames in a batch (rows x longest), or auto.", metavar="N|auto"),
    ] = None,
    batch_size: Annotated[
        int | None,
        option("--batch-size", min=1, help="At most so many utterances in a batch; alone, it lifts the frame budget."),
    ] = None,
    cuda_graphs: Annotated[
        CudaGraphs,
        option(
            "--cuda-graphs",
            help="How a GPU decodes: full (one graph with a loop inside), chunked (a graph of a few steps, replayed), off, "
            "or auto, the first of these that works here.",
        ),
    ] = CudaGraphs.auto,
    threads: Annotated[
        int | None,
        option("--threads", min=1, help="Threads that read audio. Default: by the number of processors."),
    ] = None,
    price_per_hour: Annotated[
        float | None, option("--price-per-hour", min=0, help="USD an hour of this machine, for the cost in the report.")
    ] = None,
    quiet: Annotated[
        bool, option("--quiet", "-q", help="No progress and no report on stderr; failures still show.")
    ] = False,
    no_progress: Annotated[bool, option("--no-progress", help="No progress bar.")] = False,
    log_file: Annotated[
        Path | None, option("--log-file", help="Append what is said on stderr, with times, to this file.")
    ] = None,
    events: Annotated[
        Path | None, option("--events", help="Progress for programs: JSON lines to this file, pipe or /dev/fd/3.")
    ] = None,
) -> None:
    """Transcribe recordings. Transcripts go to stdout or a folder; progress and a speed and cost report to stderr."""
    if log_file is not None:
        log_to(log_file)
    style = OutputStyle(
        _formats(format),
        tokens,
        SubtitleStyle(max_line_width, max_lines, max_cue_s, min_cue_s, max_chars_per_second or None, highlight_words),
    )
    if output_dir is None and len(style.formats) > 1:
        raise typer.BadParameter("several formats need --output-dir")
    for name, given in (("--retry-failed", retry_failed), ("--overwrite", overwrite)):
        if given and output_dir is None:
            raise typer.BadParameter(f"{name} is about a folder of results: give --output-dir too")
    options = Options(
        decoder=decoder.value if decoder else None,
        cuda_graphs=cuda_graphs.value,
        batch_frames=_frames(batch_frames),
        batch_size=batch_size,
        max_utterance_s=max_utterance_s,
        attention=attention,
        vad=vad.value,
        channel=channel,
        window=window,
        threads=threads,
    )
    place = _Place(output_dir, choose_shard(shard, os.environ), overwrite, retry_failed, ordered)
    job = _Job(inputs, model, device, dtype.value, options, style, place, price_per_hour)
    with Events(events) as told:
        if dry_run:
            _say_what_would_be_done(job, quiet)
        else:
            _run(job, told, quiet, show_progress=not (quiet or no_progress))


@dataclass(frozen=True)
class _Place:
    """Where results go, and what of the inputs is to do."""

    directory: Path | None
    shard: Shard
    overwrite: bool
    retry_failed: bool
    ordered: bool


@dataclass(frozen=True)
class _Job:
    inputs: list[str]
    model: str
    device: str
    dtype: str
    options: Options
    style: OutputStyle
    place: _Place
    price_per_hour: float | None


def _run(job: _Job, told: Events, quiet: bool, show_progress: bool) -> None:
    from fastscribe.run import Transcriber

    if job.place.shard.count > 1 and not quiet:
        say(f"shard {job.place.shard} (from {job.place.shard.source})")
    transcriber = Transcriber.load(job.model, job.device, job.dtype, job.options, say)
    told.started(transcriber)
    with _open_output(job, transcriber) as output:
        stats = _write_all(transcriber, job, output, told, show_progress)
    stats = replace(stats, skipped=transcriber.progress.skipped, failed_before=output.failed_before)
    if stats.files + stats.skipped == 0 and job.place.shard.count == 1:
        raise UsageError("no input at all: nothing was given to transcribe")
    if output.report_path is not None:
        _write_report(output.report_path, stats)
    told.finished(stats)
    if not quiet:
        show(report_table(stats))
    if stats.failed_before:
        say(f"{stats.failed_before} failed in an earlier run and were left alone; --retry-failed tries them again")
    if stats.failed + stats.failed_before:
        raise typer.Exit(1)


def _open_output(job: _Job, transcriber: Transcriber) -> FolderOutput | StreamOutput:
    from fastscribe.output import FolderOutput, StreamOutput

    place = job.place
    if place.directory is None:
        if sys.stdout is None:
            raise StdoutClosed
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        return StreamOutput(sys.stdout, job.style, place.shard, ordered=place.ordered)
    try:
        return FolderOutput(
            place.directory,
            job.style,
            _fingerprint(job, transcriber),
            place.shard,
            overwrite=place.overwrite,
            retry_failed=place.retry_failed,
            ordered=place.ordered,
        )
    except OSError as error:
        raise UsageError(f"{place.directory}: cannot be used as output folder: {error.strerror or error}") from error


def _fingerprint(job: _Job, transcriber: Transcriber) -> dict[str, Any]:
    from fastscribe.fingerprint import fingerprint, model_digest

    recognizer = transcriber.recognizer
    digest = model_digest(job.model)
    return fingerprint(digest, recognizer.dtype, recognizer.decoder_name, job.options, job.style)


def _write_report(path: Path, stats: RunStats) -> None:
    try:
        path.write_text(json.dumps(stats.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(str(path), error) from error


def _write_all(
    transcriber: Transcriber, job: _Job, output: FolderOutput | StreamOutput, told: Events, show_progress: bool
) -> RunStats:
    from fastscribe.run import run_stats

    start = perf_counter()
    results = transcriber.transcribe(job.inputs, output)
    with without_mp3_chatter(), ProgressBar(transcriber, show_progress) as bar, closing(results):
        for result in results:
            with transcriber.progress.stopwatch.time("write"):
                written = _write(output, result, transcriber)
            if isinstance(written, Failure):
                bar.say(failure_line(written))
                told.failed(written)
            bar.update()
            told.progress(transcriber)
    return run_stats(transcriber, perf_counter() - start, job.price_per_hour)


def _write(
    output: FolderOutput | StreamOutput, result: Transcript | Failure, transcriber: Transcriber
) -> Transcript | Failure:
    """What became of the result: itself, or the Failure that stands in for one that could not be written."""
    try:
        output.write(result)
    except BrokenPipeError as error:
        raise StdoutClosed from error
    except OSError as error:
        if error.errno in _DISK_PROBLEMS or isinstance(result, Failure):
            raise OutputError(result.path if isinstance(result, Failure) else result.audio.path, error) from error
        transcriber.not_written(result)
        return _write(output, to_failure(result.audio, "write", error), transcriber)
    return result


def _say_what_would_be_done(job: _Job, quiet: bool) -> None:
    """A table on stderr, and one JSON object on stdout."""
    from fastscribe.run import Transcriber
    from fastscribe.stats import list_price
    from fastscribe.survey import survey

    transcriber = Transcriber.load(job.model, job.device, job.dtype, job.options, say)
    price = list_price(transcriber.recognizer.device_name)
    usd_per_hour = price.usd_per_hour if price is not None else None
    if job.price_per_hour is not None:
        usd_per_hour = job.price_per_hour
    with without_mp3_chatter():
        found = survey(
            transcriber, job.inputs, _ledger(job, transcriber), usd_per_hour, lambda failure: say(failure_line(failure))
        )
    if found.files + found.failed + found.skipped == 0 and job.place.shard.count == 1:
        raise UsageError("no input at all: nothing was given to transcribe")
    if not quiet:
        show(survey_table(found))
    print(json.dumps(found.to_json()))
    if found.failed:
        raise typer.Exit(1)


def _ledger(job: _Job, transcriber: Transcriber) -> Ledger:
    """What is left to do in the output folder, which is not touched."""
    from fastscribe.journal import Paths, peek
    from fastscribe.ledger import Ledger

    place = job.place
    if place.directory is None or place.overwrite:
        return Ledger(place.shard)
    paths = Paths(place.directory, place.shard.suffix)
    if not paths.journal.exists():
        return Ledger(place.shard)
    decides = {**_fingerprint(job, transcriber), "shard": str(place.shard)}
    return Ledger(place.shard, peek(paths, decides), place.retry_failed)
