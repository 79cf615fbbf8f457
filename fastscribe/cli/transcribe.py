"""Options of `fastscribe transcribe`; run.py runs them."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fastscribe import rooms
from fastscribe._system.remote import is_url
from fastscribe.checkpoint.location import DEFAULT
from fastscribe.cli.app import MODEL_HELP, ReportHtml, app, find_model, local_file, options_in
from fastscribe.cli.event_log import EventLog
from fastscribe.cli.job import OutputTarget, RayCluster, TranscribeJob, check_output_dir, is_one_short_file, is_stream
from fastscribe.cli.run import report_dry_run, run
from fastscribe.cli.run_limit import choose_limit
from fastscribe.cli.run_options import (
    Channel,
    Device,
    LogFile,
    NoProgress,
    Ordered,
    OutputDir,
    Overwrite,
    Quiet,
    RetryFailed,
    Tokens,
)
from fastscribe.cli.subtitle_options import (
    DEFAULT_CHARS_PER_SECOND,
    DEFAULTS,
    HighlightWords,
    MaxCharsPerSecond,
    MaxCueS,
    MaxLines,
    MaxLineWidth,
    MinCueS,
    parse_formats,
)
from fastscribe.cli.terminal import log_to, say
from fastscribe.config import (
    CHANNELS,
    MAX_BATCH_SIZE,
    MAX_BEAM,
    MAX_LM_WEIGHT,
    MAX_THREADS,
    OUTPUT_FORMATS,
    DecoderName,
    DtypeChoice,
    GraphMode,
    Options,
    OutputStyle,
    SubtitleStyle,
    VadName,
)
from fastscribe.context.phrases import read_phrases
from fastscribe.errors import UsageError
from fastscribe.readable.options import Itn, Redact, RedactList, RemoveFillers, check_text_options
from fastscribe.results.shards import choose_shard


def _frames(value: str | None) -> int | Literal["auto"] | None:
    if value is None or value == "auto":
        return "auto" if value else None
    if not value.isdigit() or int(value) == 0:
        raise UsageError(f"--batch-frames {value}: not a number of encoder frames from 1, nor auto")
    return int(value)


def _cluster(
    engine: str, address: str | None, workers: int | None, device: str, devices: str | None, report_html: Path | None
) -> RayCluster | None:
    """Return where --engine ray runs; None without it. Raises typer.BadParameter for options that do not fit."""
    if engine == "local":
        for name, given in (("--ray-address", address), ("--ray-workers", workers)):
            if given is not None:
                raise typer.BadParameter(f"{name} needs --engine ray")
        return None
    if device not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(
            f"--device {device}: with --engine ray it is auto, cpu or cuda: Ray numbers the devices"
        )
    if devices is not None:
        raise typer.BadParameter("--devices and --engine ray exclude each other: Ray gives each worker its device")
    if report_html is not None:
        raise typer.BadParameter("--report-html shows the batches of one process, so it does not go with --engine ray")
    return RayCluster(address, workers)


def _second_model(
    name: str | None, cluster: RayCluster | None, show_progress: bool, for_speakers: bool = False
) -> str | None:
    """Return what --align-with or --speakers names: the channels, a path, or a name that each node of a cluster looks up."""
    if name is None or (for_speakers and name == CHANNELS) or (cluster is not None and not os.path.exists(name)):
        return name
    return os.path.abspath(find_model(name, show_progress=show_progress, for_speakers=for_speakers))


def _streaming(text: str) -> Any:
    """Return the value of Options.speaker_streaming."""
    return rooms.enter("speakers", "settings", "--speaker-streaming").parse_streaming(text)


# The groups of --help.
basic_option, decoding_option, audio_option = (
    options_in("Basics"),
    options_in("Model and decoding"),
    options_in("Audio"),
)
output_option, job_option = options_in("Output"), options_in("Big jobs")
speed_option, message_option = options_in("Speed"), options_in("Messages and reports")
_DEFAULTS = Options()


@app.command(epilog="Example: fastscribe transcribe calls/ -m model.nemo -o out -f jsonl,srt")
def transcribe(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs, NeMo manifests (.jsonl, .json), URLs of these, or - for stdin: a recording, or a list."
            "\fURLs begin with s3://, gs://, az://, hf:// or https://. A list has paths and URLs, one a line or each ended by "
            "a NUL (find -print0).",
            metavar="INPUTS",
        ),
    ],
    model: Annotated[
        str | None,
        basic_option(
            "--model",
            "-m",
            help="Path or Hugging Face name; default: small, English.\fThe default is the one in the package. "
            f"{MODEL_HELP}",
        ),
    ] = None,
    output_dir: OutputDir = None,
    format: Annotated[
        list[str] | None,
        basic_option(
            "--format", "-f", help=f"{', '.join(OUTPUT_FORMATS)}.\fRepeat or separate by commas. Default: jsonl."
        ),
    ] = None,
    tokens: Tokens = False,
    ordered: Ordered = False,
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
    device: Device = "auto",
    dtype: Annotated[
        DtypeChoice,
        decoding_option(
            "--dtype",
            help="Precision.\fauto: bf16 on GPUs; on CPUs fp32, or for wide models the faster one of fp32 and bf16, "
            "measured once. fastest: also int8 (CPUs) or fp8 (GPUs), the encoder's large matrices in 8 bits; a few "
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
    align_with: Annotated[
        str | None,
        decoding_option(
            "--align-with",
            metavar="MODEL",
            help="Take word times from this CTC model.\fCTC or hybrid: forced alignment of the text with its CTC head, for "
            "models that write no times. It costs the time of its encoder.",
        ),
    ] = None,
    boost: Annotated[
        str | None,
        decoding_option(
            "--boost",
            metavar="FILE",
            help="Phrases to prefer: names, terms.\fA text file with a phrase a line, in UTF-8. A tab and a number after a "
            "phrase are its weight, where 1 is the usual one. A manifest's row may have phrases of its own in a field boost.",
        ),
    ] = None,
    lm: Annotated[
        Path | None,
        decoding_option(
            "--lm",
            metavar="FILE",
            callback=local_file,
            help="N-gram language model for the beam.\fAn ARPA file, also gzipped, of the model's tokens (NeMo's script for "
            "KenLM) or of words, or a language_model.safetensors.gz. For RNN-T and TDT; the beam is 8 if --beam does not say.",
        ),
    ] = None,
    lm_weight: Annotated[
        float | None,
        decoding_option(
            "--lm-weight",
            min=0,
            max=MAX_LM_WEIGHT,
            help="Its weight beside the audio.\f0: none. Default: what the language model names, or 0.2.",
        ),
    ] = _DEFAULTS.lm_weight,
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
    recover_gaps: Annotated[
        bool | None,
        decoding_option(
            "--recover-gaps/--no-recover-gaps",
            help="Decode speech that got no words again.\fThe words found are added, marked in JSON. Without it, that "
            "speech is only listed. Default: off.",
        ),
    ] = _DEFAULTS.recover_gaps,
    channel: Channel = None,
    speakers: Annotated[
        str | None,
        audio_option(
            "--speakers",
            metavar="channels|MODEL",
            help="Tell who speaks.\fBy channel, or by a speaker model: channels is for calls with a party on each channel: "
            "each is transcribed by itself, and words that leak from one into another are written once. A model (NVIDIA's "
            "Sortformer) tells up to eight speakers of one channel apart: its path or Hugging Face name, such as "
            "nvidia/diar_streaming_sortformer_4spk-v2.1.",
        ),
    ] = None,
    speaker_names: Annotated[
        str | None,
        audio_option(
            "--speaker-names",
            metavar="A,B",
            help="Names of the speakers.\fIn the order of the channels, or in which a model's speakers begin to speak, "
            "separated by commas, such as agent,customer. Default: channel 1 (speaker 1) and so on.",
        ),
    ] = None,
    speaker_streaming: Annotated[
        str | None,
        audio_option(
            "--speaker-streaming",
            metavar="NAME=N",
            help="Settings of a streaming speaker model.\fIn place of the checkpoint's, by NeMo's names, such as "
            "chunk_len=340,chunk_right_context=40,fifo_len=40,spkcache_update_period=300; also chunk_left_context and "
            "spkcache_len. In frames of its encoder. Longer chunks cost less.",
        ),
    ] = None,
    rttm: Annotated[
        Path | None,
        audio_option(
            "--rttm",
            metavar="FILE|DIR",
            callback=local_file,
            help="Take turns from RTTM.\fWords get the speakers that another tool found: a file, or a folder with a file for "
            "each recording.",
        ),
    ] = None,
    voices: Annotated[
        str | None,
        audio_option(
            "--voices",
            metavar="MODEL",
            help="Tell whose voices they are.\fWith --speakers or --rttm: a voice model (NVIDIA's TitaNet or ECAPA-TDNN: its "
            "path or Hugging Face name, such as nvidia/speakerverification_en_titanet_large) makes a voice print of each "
            "speaker. fastscribe speakers finds the persons of all recordings by them.",
        ),
    ] = None,
    track: Annotated[
        int | None,
        audio_option(
            "--track",
            min=0,
            help="Audio track of videos. Default: 0, the first.\fA manifest's row may have an audio_track.",
        ),
    ] = None,
    remove_fillers: RemoveFillers = False,
    itn: Itn = False,
    redact: Redact = None,
    redact_list: RedactList = None,
    max_line_width: MaxLineWidth = DEFAULTS.max_line_width,
    max_lines: MaxLines = DEFAULTS.max_lines,
    max_cue_s: MaxCueS = DEFAULTS.max_cue_s,
    min_cue_s: MinCueS = DEFAULTS.min_cue_s,
    max_chars_per_second: MaxCharsPerSecond = DEFAULT_CHARS_PER_SECOND,
    highlight_words: HighlightWords = False,
    retry_failed: RetryFailed = False,
    overwrite: Overwrite = False,
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
    engine: Annotated[
        Literal["local", "ray"],
        job_option(
            "--engine",
            help="Run here, or on a Ray cluster.\fray needs the extra ray. The results are the same. See "
            "the guide to Ray.",
        ),
    ] = "local",
    ray_address: Annotated[
        str | None,
        job_option(
            "--ray-address",
            metavar="ADDRESS",
            help="Cluster of --engine ray.\fauto, or HOST:PORT. Default: the one that RAY_ADDRESS names or that runs on this "
            "machine; else this machine alone.",
        ),
    ] = None,
    ray_workers: Annotated[
        int | None,
        job_option(
            "--ray-workers",
            metavar="N",
            min=1,
            help="Processes with a model on the cluster.\fDefault: one for each GPU, or for each node without GPUs.",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        speed_option(
            "--devices",
            metavar="DEVICES",
            help="Several: all, 0,2 (GPUs) or cpu:N.\fall is every GPU that is visible. The numbers are those of --device "
            "cuda:N, not a count. cpu:N is N processes that share the processors. Each device has a process with a model of "
            "its own; helper processes read files and make texts for all of them. Not together with --device.",
        ),
    ] = None,
    window: Annotated[
        int, speed_option("--window", min=1, help="Inputs to sort by length together.")
    ] = _DEFAULTS.window,
    stop_at_usd: Annotated[
        float | None,
        job_option(
            "--stop-at-usd",
            help="End this run before it costs more.\fThe same command goes on. The cost is the time since the process "
            "started, with the loading of the model, times the price of the machine (--price-per-hour, or the list price of "
            "its GPU). It counts for one run: each later run, and each shard, has its own. The exit code is 75 if something "
            "is left to do.",
        ),
    ] = None,
    stop_after: Annotated[
        str | None,
        job_option(
            "--stop-after",
            metavar="TIME",
            help="End this run in time: 90m, 2h30m, 3600s.\fThe same command goes on. A number alone is seconds. The "
            "time counts from the start of the process, with the loading of the model. With --stop-at-usd, the first of both "
            "ends it.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        job_option(
            "--dry-run",
            help="Only estimate the work, the time and the cost.\fFiles, hours, batches, time and cost: a table on stderr, one "
            "JSON object on stdout.",
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
            min=1,
            max=MAX_THREADS,
            help="Threads that read audio, or helper processes.\fOn a GPU with 256 or more inputs, and with --devices, helper "
            "processes read the audio and make the texts; elsewhere threads read it. Default: by the number of processors.",
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
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    log_file: LogFile = None,
    events: Annotated[
        Path | None,
        message_option(
            "--events",
            callback=local_file,
            help="Write progress as JSON lines to this file.\fOr to a pipe or file descriptor (/dev/fd/3). The file is new or "
            "of an earlier run.",
        ),
    ] = None,
    report_html: ReportHtml = None,
) -> None:
    """Transcribe recordings. Transcripts go to stdout or a folder; progress and a report of speed and cost go to stderr."""
    if log_file is not None:
        log_to(log_file)
    style = OutputStyle(
        parse_formats(format) or ("jsonl",),
        tokens,
        SubtitleStyle(max_line_width, max_lines, max_cue_s, min_cue_s, max_chars_per_second or None, highlight_words),
    )
    if output_dir is None and len(style.formats) > 1:
        raise typer.BadParameter("several formats need --output-dir")
    for name, given in (("--retry-failed", retry_failed), ("--overwrite", overwrite)):
        if given and output_dir is None:
            raise typer.BadParameter(f"{name} needs --output-dir")
    if price_per_hour is not None and not math.isfinite(price_per_hour):
        raise typer.BadParameter("--price-per-hour: not a number of USD")
    if speakers == CHANNELS and channel is not None:
        raise typer.BadParameter("--channel and --speakers exclude each other: --speakers channels takes all channels")
    if speaker_names is not None and speakers is None:
        raise typer.BadParameter("--speaker-names needs --speakers")
    if speaker_streaming is not None and speakers in (None, CHANNELS):
        raise typer.BadParameter("--speaker-streaming is for a speaker model: --speakers MODEL")
    if rttm is not None and speakers is not None:
        raise typer.BadParameter("--rttm and --speakers exclude each other: both say who speaks")
    if voices is not None and speakers is None and rttm is None:
        raise typer.BadParameter("--voices needs --speakers or --rttm, which tell who speaks when")
    redaction = check_text_options(redact, redact_list)
    if redaction["redact"] and tokens:
        raise typer.BadParameter("--tokens and --redact exclude each other: tokens spell the words that are redacted")
    cluster = _cluster(engine, ray_address, ray_workers, device, devices, report_html)
    if report_html is not None and dry_run:
        raise typer.BadParameter("--report-html and --dry-run exclude each other")
    if devices is not None:
        if device != "auto":
            raise typer.BadParameter("--device and --devices exclude each other: --devices alone names all devices")
        from fastscribe.pipeline.workers.devices import parse_devices

        parse_devices(devices)  # before a download
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
        boost=() if boost is None else read_phrases(boost),
        align_with=_second_model(align_with, cluster, not (quiet or no_progress)),
        lm=None if lm is None else os.path.abspath(lm),
        lm_weight=lm_weight,
        vad=vad,
        channel=channel,
        speakers=_second_model(speakers, cluster, not (quiet or no_progress), for_speakers=True),
        speaker_names=None if speaker_names is None else tuple(map(str.strip, speaker_names.split(","))),
        speaker_streaming=None if speaker_streaming is None else _streaming(speaker_streaming),
        rttm=None if rttm is None else os.path.abspath(rttm),
        voices=_second_model(voices, cluster, not (quiet or no_progress), for_speakers=True),
        track=track,
        recover_gaps=recover_gaps,
        window=window,
        threads=threads,
        remove_fillers=remove_fillers,
        itn=itn,
        **redaction,  # type: ignore[arg-type]
    )
    if output_dir is not None:
        check_output_dir(output_dir)
    url = output_dir if output_dir is not None and is_url(output_dir) else None
    folder = Path(output_dir) if output_dir is not None and url is None else None
    target = OutputTarget(folder, url, choose_shard(shard, os.environ), overwrite, retry_failed, ordered)
    page = None
    if report_html is not None:
        from fastscribe.report.transcribe_page import page_path

        page = page_path(report_html, target.shard)
    is_brief = quiet or (not dry_run and cluster is None and is_one_short_file(inputs))
    if model is None and is_brief:
        model = DEFAULT  # without the line about it
    limit = choose_limit(stop_at_usd, stop_after, device, price_per_hour, devices)
    if limit is not None and cluster is not None:
        raise typer.BadParameter(
            f"{limit.option} and --engine ray exclude each other: stop the run with SIGTERM instead"
        )
    late_notes: list[str] = []  # of a stream to stdout: only its end tells whether the text alone is printed
    is_late = not dry_run and output_dir is None and is_stream(inputs)
    tell = late_notes.append if model is None and is_late else say
    show_progress = not (quiet or no_progress)
    with nullcontext() if limit is None or dry_run else limit.enforced():
        if cluster is None or model is None:
            model = str(find_model(model, tell, show_progress=show_progress))
        elif os.path.exists(model):
            model = os.path.abspath(model)  # the workers look up other names, each node for itself
        job = TranscribeJob(inputs, model, device, dtype, options, style, target, price_per_hour, page)
        job = replace(job, events=events, log_file=log_file, limit=limit, devices=devices, cluster=cluster)
        with EventLog(events) as event_log:
            if dry_run:
                report_dry_run(job, quiet)
            else:
                run(job, event_log, quiet, show_progress, show_report=not is_brief, late_notes=late_notes)
