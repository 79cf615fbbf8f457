"""Options of `fastscribe transcribe`; run.py runs them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from fastscribe.cli.app import MODEL_HELP, ReportHtml, app, find_model, option
from fastscribe.cli.event_log import EventLog
from fastscribe.cli.job import OutputTarget, TranscribeJob
from fastscribe.cli.run import report_dry_run, run
from fastscribe.cli.terminal import log_to
from fastscribe.config import (
    OUTPUT_FORMATS,
    DecoderName,
    DtypeChoice,
    GraphMode,
    Options,
    OutputFormat,
    OutputStyle,
    SubtitleStyle,
    VadName,
)
from fastscribe.resume.shards import choose_shard


def _frames(value: str | None) -> int | Literal["auto"] | None:
    if value is None or value == "auto":
        return "auto" if value else None
    if not value.isdigit() or int(value) == 0:
        raise typer.BadParameter("give a number of encoder frames, or auto")
    return int(value)


def _formats(values: Iterable[str] | None) -> tuple[OutputFormat, ...]:
    known: dict[str, OutputFormat] = {format: format for format in OUTPUT_FORMATS}
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"unknown format {unknown[0]!r}; choose from {', '.join(known)}")
    return tuple(dict.fromkeys(known[name] for name in names)) or ("jsonl",)


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
    model: Annotated[
        str | None, option("--model", "-m", help=f"{MODEL_HELP} Default: the small English one that comes with it.")
    ] = None,
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
        DecoderName | None, option("--decoder", help="Which head of the checkpoint to use. Default: its own.")
    ] = None,
    beam: Annotated[
        int | None,
        option(
            "--beam",
            min=1,
            help="Hypotheses that an RNN-T or TDT model keeps in view: 1 is greedy decoding; 4 to 8 find likelier texts, "
            "and decoding, a part of the whole, takes a few times as long. Default: what the model's language model asks "
            "for, if it has one; else 1.",
        ),
    ] = _DEFAULTS.beam,
    device: Annotated[str, option("--device", help="auto, cpu, cuda, cuda:1 ..")] = "auto",
    dtype: Annotated[
        DtypeChoice,
        option(
            "--dtype",
            help="auto: bf16 on GPUs, and on CPUs that multiply it natively for wide models; else fp32. int8 (CPUs) and "
            "fp8 (GPUs) multiply the encoder's large matrices in 8 bits; a few words differ.",
        ),
    ] = "auto",
    attention: Annotated[
        str | None,
        option(
            "--attention",
            metavar="full|local:L,R",
            help="What a frame sees: all frames, or L before and R after it (80 ms each), whose cost does not grow with "
            "the square of the length. Default: the checkpoint's.",
        ),
    ] = None,
    language: Annotated[
        str | None,
        option("--language", help="Spoken language, as en, de ..: for models of the Canary family. Default en."),
    ] = None,
    target_language: Annotated[
        str | None, option("--target-language", help="Canary: translate into this language. Default: the spoken one.")
    ] = None,
    pnc: Annotated[
        bool | None, option("--pnc/--no-pnc", help="Canary: punctuation and capitals, or neither. Default: with them.")
    ] = None,
    timestamps: Annotated[
        bool,
        option(
            "--timestamps",
            help="Canary: word times, from the checkpoint's aligner or written by the model; up to twice as long.",
        ),
    ] = False,
    max_utterance_s: Annotated[
        float, option("--max-utterance-s", min=0, help="Cut longer audio at a quiet place; 0 = never.")
    ] = _DEFAULTS.max_utterance_s,
    vad: Annotated[
        VadName, option("--vad", help="What tells speech from silence: energy, or silero (needs fastscribe[vad]).")
    ] = _DEFAULTS.vad,
    recover_gaps: Annotated[
        bool | None,
        option(
            "--recover-gaps/--no-recover-gaps",
            help="Decode speech that came out without words again, and add the words found, marked in JSON; or keep the "
            "text of the model's one pass, and list that speech only. Default: off.",
        ),
    ] = _DEFAULTS.recover_gaps,
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
        bool, option("--overwrite", help="Remove the results that the folder's journal lists, and start over.")
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
        GraphMode,
        option(
            "--cuda-graphs",
            help="How a GPU decodes: full (one graph with a loop inside), chunked (a graph of a few steps, replayed), off, "
            "or auto, the first of these that works here.",
        ),
    ] = _DEFAULTS.cuda_graphs,
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
        Path | None,
        option(
            "--log-file",
            help="Append what is said on stderr, with times, to this file, which is new or an earlier log.",
        ),
    ] = None,
    events: Annotated[
        Path | None,
        option(
            "--events",
            help="Progress for programs: JSON lines to this pipe, /dev/fd/3, or file, which is new or of an earlier run.",
        ),
    ] = None,
    report_html: ReportHtml = None,
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
    if price_per_hour is not None and not math.isfinite(price_per_hour):
        raise typer.BadParameter("--price-per-hour: not a number of USD")
    if report_html is not None and dry_run:
        raise typer.BadParameter("--report-html is about a run: not with --dry-run")
    options = Options(
        decoder=decoder,
        beam=beam,
        cuda_graphs=cuda_graphs,
        batch_frames=_frames(batch_frames),
        batch_size=batch_size,
        max_utterance_s=max_utterance_s,
        attention=attention,
        language=language,
        target_language=target_language,
        pnc=pnc,
        timestamps=timestamps,
        vad=vad,
        channel=channel,
        recover_gaps=recover_gaps,
        window=window,
        threads=threads,
    )
    target = OutputTarget(output_dir, choose_shard(shard, os.environ), overwrite, retry_failed, ordered)
    page = None
    if report_html is not None:
        from fastscribe.cli.run_page import page_path

        page = page_path(report_html, target.shard)
    path = find_model(model, show_progress=not (quiet or no_progress))
    job = TranscribeJob(inputs, str(path), device, dtype, options, style, target, price_per_hour, page)
    job = replace(job, events=events, log_file=log_file)
    with EventLog(events) as event_log:
        if dry_run:
            report_dry_run(job, quiet)
        else:
            run(job, event_log, quiet, show_progress=not (quiet or no_progress))
