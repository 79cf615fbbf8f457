"""Options of `fastscribe transcribe`; run.py runs them."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fastscribe import rooms
from fastscribe.checkpoint.hub_name import DEFAULT, PACKAGED
from fastscribe.checkpoint.location import locate
from fastscribe.cli import run_options
from fastscribe.cli.app import MODEL_HELP, HelpAll, app, local_file, options_in
from fastscribe.cli.job import is_one_short_file, is_stream
from fastscribe.cli.room_options import CommandWithRooms, room_hooks
from fastscribe.cli.run import run
from fastscribe.cli.run_hooks import PackagedModel, TranscribeJob
from fastscribe.cli.terminal import log_to, say
from fastscribe.config import (
    MAX_BATCH_SIZE,
    MAX_BEAM,
    MAX_THREADS,
    OUTPUT_FORMATS,
    DecoderName,
    DtypeChoice,
    GraphMode,
    Options,
    SubtitleStyle,
    VadName,
)
from fastscribe.errors import CheckpointError, UsageError


def _frames(value: str | None) -> int | Literal["auto"] | None:
    if value is None or value == "auto":
        return "auto" if value else None
    if not value.isdigit() or int(value) == 0:
        raise UsageError(f"--batch-frames {value}: not a number of encoder frames from 1, nor auto")
    return int(value)


def _with_paths(options: Options, is_here: bool, show_progress: bool) -> Options:
    """Return the options with the paths of their models. The nodes of a cluster look up names for themselves."""
    for name, model in rooms.paths_in(options, "side model", "model").items():
        is_side, found = rooms.PATHS[name] == "side model", model
        try:
            if is_here or os.path.exists(model):
                found = os.path.abspath(locate(model, say, show_progress=show_progress, side_model=is_side))
        except CheckpointError as error:
            if not is_side or not str(error).startswith(model):
                raise
            raise UsageError(f"--{name} {error}") from error
        path: Any = {name: found}
        options = replace(options, **path)
    return options


# The groups of --help.
basic_option, decoding_option, audio_option = (
    options_in("Basics"),
    options_in("Model and decoding"),
    options_in("Audio"),
)
job_option, speed_option, message_option = (
    options_in("Big jobs"),
    options_in("Speed"),
    options_in("Messages and reports"),
)
_DEFAULTS = Options()


@app.command(cls=CommandWithRooms, epilog="Example: fastscribe transcribe calls/ -m model.nemo -o out -f jsonl,srt")
def transcribe(
    context: typer.Context,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs, lists (NeMo, Lhotse, Kaldi, CSV, tar, .txt), URLs or - for stdin: a recording or list."
            "\fURLs begin with s3://, gs://, az://, hf:// or https://. On stdin, a list has paths and URLs, one a line or each "
            "ended by a NUL (find -print0), or is a manifest.",
            metavar="INPUTS",
        ),
    ],
    model: Annotated[
        str | None,
        basic_option(
            "--model",
            "-m",
            everyday=True,
            help="Path or Hugging Face name; default: small, English.\fThe default is the one in the package. "
            f"{MODEL_HELP}",
        ),
    ] = None,
    output_dir: run_options.OutputDir = None,
    format: Annotated[
        list[str] | None,
        basic_option(
            "--format",
            "-f",
            everyday=True,
            help=f"{', '.join(OUTPUT_FORMATS)}.\fRepeat or separate by commas. Default: those of the "
            "folder's results; else jsonl; without -o in a terminal: txt.",
        ),
    ] = None,
    tokens: run_options.Tokens = False,
    ordered: run_options.Ordered = False,
    decoder: Annotated[
        DecoderName | None,
        decoding_option("--decoder", help="Head of the checkpoint. Default: its own."),
    ] = None,
    beam: Annotated[
        int | None,
        decoding_option(
            "--beam",
            min=1,
            max=MAX_BEAM,
            help="Beam width of RNN-T and TDT; 1 is greedy.\f4 to 8 find likelier texts, but decoding, a part of the whole, "
            "takes a few times as long. Default: the width that the model's language model names, if it has one; else 1.",
        ),
    ] = _DEFAULTS.beam,
    nbest: Annotated[
        int | None,
        decoding_option(
            "--nbest",
            min=1,
            max=MAX_BEAM,
            help="Also write the N best texts, up to --beam.\fThey are those of each utterance, with their scores, in the "
            "JSON formats.",
        ),
    ] = _DEFAULTS.nbest,
    device: run_options.Device = "auto",
    dtype: Annotated[
        DtypeChoice,
        decoding_option(
            "--dtype",
            help="Precision.\fauto: bf16 on GPUs; on CPUs fp32, or for wide models bf16 if it is faster on such a "
            "processor. fastest: also int8 (CPUs) or fp8 (GPUs), the encoder's large matrices in 8 bits; a few "
            "words differ. A folder's results stay in their dtype.",
        ),
    ] = "auto",
    attention: Annotated[
        str | None,
        decoding_option(
            "--attention",
            metavar="full|local:L,R|L,R",
            help="Frames that each frame attends to.\fAll, or L before and R after it (80 ms each), so that the cost does "
            "not grow with the square of the length. L,R is another context of a streaming model. Default: the checkpoint's.",
        ),
    ] = None,
    language: Annotated[
        str | None,
        decoding_option(
            "--language",
            "-l",
            everyday=True,
            help="Spoken language.\fen, de, German ... Canary follows it, by default en, and Nemotron 3.5, by default auto. "
            "IndicConformer needs it. A model that finds the language itself writes its letters only; a row may name "
            "its own in `language`.",
        ),
    ] = None,
    target_language: Annotated[
        str | None,
        decoding_option("--target-language", help="Canary: translate into this one.\fDefault: the spoken language."),
    ] = None,
    pnc: Annotated[
        bool | None,
        decoding_option("--pnc/--no-pnc", help="Canary: punctuation and capitals.\fDefault: with."),
    ] = None,
    timestamps: Annotated[
        bool,
        decoding_option(
            "--timestamps",
            help="Canary: word times.\fThey come from the checkpoint's aligner or the model; takes up to twice as long. Other "
            "models always time their words.",
        ),
    ] = False,
    max_utterance_s: Annotated[
        float | None,
        audio_option(
            "--max-utterance-s",
            min=0,
            help="Split longer audio at pauses; 0 = never.\fAt least 1. Default: 40; less, and at every clear pause, for a "
            "model that says that it learnt on shorter utterances.",
        ),
    ] = _DEFAULTS.max_utterance_s,
    vad: Annotated[
        VadName,
        audio_option("--vad", help="Finder of pauses and speech.\fsilero needs the extra vad."),
    ] = _DEFAULTS.vad,
    channel: run_options.ChannelText = None,
    track: Annotated[
        int | None,
        audio_option(
            "--track",
            min=0,
            help="Audio track of videos. Default: 0, the first.\fA manifest's row may have an audio_track.",
        ),
    ] = None,
    max_line_width: run_options.MaxLineWidth = run_options.DEFAULTS.max_line_width,
    max_lines: run_options.MaxLines = run_options.DEFAULTS.max_lines,
    max_cue_s: run_options.MaxCueS = run_options.DEFAULTS.max_cue_s,
    min_cue_s: run_options.MinCueS = run_options.DEFAULTS.min_cue_s,
    max_chars_per_second: run_options.MaxCharsPerSecond = run_options.DEFAULT_CHARS_PER_SECOND,
    highlight_words: run_options.HighlightWords = False,
    retry_failed: run_options.RetryFailed = False,
    allow_failures: run_options.AllowFailures = None,
    moved: run_options.MovedText = None,
    overwrite: run_options.Overwrite = False,
    shard: Annotated[
        str | None,
        job_option(
            "--shard",
            metavar="I/N",
            help="Do part I of N (from 0), or auto/N.\fThe parts are by a hash of the files' names. auto/N: the part that a "
            "SLURM array, a Kubernetes indexed job or an AWS Batch array names. Default: that of a SLURM array, if it runs in "
            "one. See fastscribe merge.",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        speed_option(
            "--devices",
            metavar="DEVICES",
            everyday=True,
            help="Several: all, 0,2 (GPUs) or cpu:N.\fall is every GPU that is visible. The numbers are those of --device "
            "cuda:N, not a count. cpu:N is N processes that share the processors. Each device has a process with a model of "
            "its own; helper processes read files and make texts for all of them. Not together with --device.",
        ),
    ] = None,
    window: Annotated[
        int,
        speed_option(
            "--window",
            min=1,
            help="Inputs to sort by length together.\fFewer give the first long recordings earlier. While fewer are there, "
            "they wait up to 1 s for a slow list on stdin.",
        ),
    ] = _DEFAULTS.window,
    dry_run: Annotated[
        bool,
        job_option(
            "--dry-run",
            everyday=True,
            help="Only estimate the work, the time and the cost.\fFiles, hours, batches, time and cost: a table on stderr, and "
            "one JSON object on stdout unless that is a terminal.",
        ),
    ] = False,
    batch_frames: Annotated[
        str | None,
        speed_option(
            "--batch-frames",
            help="Encoder frames in a batch (rows x longest).\fauto: what fits the device.",
            metavar="N|auto",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        speed_option(
            "--batch-size",
            min=1,
            max=MAX_BATCH_SIZE,
            help="Maximum number of utterances in a batch.\fGiven alone, it replaces the frame budget.",
        ),
    ] = None,
    cuda_graphs: Annotated[
        GraphMode,
        speed_option(
            "--cuda-graphs",
            metavar="MODE",
            help="On GPUs: auto|full|chunked|off.\ffull (one graph with a loop inside), chunked (a graph of a few steps, "
            "replayed), off, or auto, the first of these that works here.",
        ),
    ] = _DEFAULTS.cuda_graphs,
    threads: Annotated[
        int | None,
        speed_option(
            "--threads",
            min=0,
            max=MAX_THREADS,
            help="Threads that read audio, or helper processes.\fOn a GPU with 256 or more inputs, and with --devices, helper "
            "processes read the audio and make the texts; elsewhere threads read it. Default: by the number of processors. 0: "
            "the same number, but a run on a GPU stays in one process, without helpers.",
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        message_option(
            "--price-per-hour",
            min=0,
            help="Price of this machine, for the report.\fUSD per hour, for the whole machine with all its GPUs.",
        ),
    ] = None,
    quiet: run_options.Quiet = False,
    help_all: HelpAll = False,
    no_progress: run_options.NoProgress = False,
    verbose: run_options.Verbose = False,
    log_file: run_options.LogFile = None,
    events: Annotated[
        Path | None,
        message_option(
            "--events",
            callback=local_file,
            help="Write progress as JSON lines to this file.\fOr to a pipe or file descriptor (/dev/fd/3). The file is new or "
            "of an earlier run.",
        ),
    ] = None,
) -> None:
    """Transcribe recordings. Results go to stdout or a folder, messages to stderr."""
    if log_file is not None:
        log_to(log_file)
    subtitles = SubtitleStyle(
        max_line_width, max_lines, max_cue_s, min_cue_s, max_chars_per_second or None, highlight_words
    )
    style = run_options.make_style(format, tokens, subtitles, output_dir, "jsonl" if nbest else "txt")
    if price_per_hour is not None and not math.isfinite(price_per_hour):
        raise typer.BadParameter("--price-per-hour: not a number of USD")
    hooks = tuple(room_hooks(context))
    is_here = not any(hook.is_elsewhere for hook in hooks)
    _check_devices(device, devices, threads)
    show_progress = not (quiet or no_progress)
    for hook in hooks:
        style = hook.styled(style)
    output = run_options.make_output(
        style, inputs, output_dir, shard, overwrite=overwrite, retry_failed=retry_failed, ordered=ordered, moved=moved
    )
    fields: dict[str, Any] = {name: value for hook in hooks for name, value in hook.fields.items()}
    options = Options(
        decoder=decoder,
        beam=beam,
        nbest=nbest,
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
        channel=run_options.channel_of(channel),
        track=track,
        window=window,
        threads=threads,
        **fields,
    )
    options = _with_paths(options, is_here, show_progress)
    is_brief = quiet or (not dry_run and is_here and is_one_short_file(inputs))
    names_at_end = not dry_run and (is_brief or (output_dir is None and is_stream(inputs)))  # PackagedModel says it
    if is_here or model is None:
        path = locate(DEFAULT if model is None else model, say, show_progress=show_progress)
        if path == PACKAGED:
            is_usual = beam is None and decoder is None
            is_named = model is None and not quiet
            named = PackagedModel(("at the end" if names_at_end else "first") if is_named else None, is_usual)
            hooks = (*hooks, named)
        model = str(path)
    elif os.path.exists(model):
        model = os.path.abspath(model)  # the workers look up other names, each node for itself
    show_report, allowed = verbose or not is_brief, run_options.allowed_failures(allow_failures)
    job = TranscribeJob(model, device, dtype, options, output, price_per_hour, events, log_file, devices, hooks=hooks)
    job = replace(job, allowed_failures=allowed, quiet=quiet, show_progress=show_progress, show_report=show_report)
    job = replace(job, verbose=verbose)
    with ExitStack() as opened:
        event_log = None
        if events is not None:
            from fastscribe.cli.event_log import EventLog

            event_log = opened.enter_context(EventLog(events))
        if dry_run:
            from fastscribe.cli.report_dry_run import report_dry_run

            report_dry_run(job)
        else:
            run(job, event_log)


def _check_devices(device: str, devices: str | None, threads: int | None) -> None:
    """Raise typer.BadParameter or UsageError for --devices that cannot be used, before a download."""
    if devices is None:
        return
    if device != "auto":
        raise typer.BadParameter("--device and --devices exclude each other: --devices alone names all devices")
    if threads == 0:
        raise typer.BadParameter("--threads 0 keeps a run in one process, and --devices starts others: leave one out")
    from fastscribe.pipeline.workers.devices import parse_devices

    parse_devices(devices)
