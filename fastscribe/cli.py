"""The command line: parse, call, print. Exit codes: 0 all done, 1 some files failed, 2 wrong usage or unusable model,
130 interrupted, 143 terminated, 141 stdout closed.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fastscribe import __version__
from fastscribe.audio.source import to_failure
from fastscribe.config import OUTPUT_FORMATS, Options
from fastscribe.errors import DeviceFailed, FastscribeError, OutputError, UsageError
from fastscribe.openmp import wait_politely
from fastscribe.terminal import ProgressBar, failure_line, report_table, say, without_mp3_chatter
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.checkpoint import Checkpoint
    from fastscribe.output import FolderOutput, StreamOutput
    from fastscribe.run import Transcriber
    from fastscribe.stats import RunStats

_ClickException: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_INTERRUPTED, _TERMINATED = 130, 143
# These stop a run; another error of one output file costs that file alone.
_DISK_PROBLEMS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}

app = typer.Typer(
    name="fastscribe",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),  # --batch_size is --batch-size
    },
)


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


class StoredDtype(str, Enum):
    bf16 = "bf16"
    fp32 = "fp32"


class Decoder(str, Enum):
    rnnt = "rnnt"
    tdt = "tdt"
    ctc = "ctc"


def main() -> None:
    """Runs the command line and exits with the documented code; every expected error is one line on stderr."""
    sys.exit(_run())


class _StdoutClosed(Exception):
    """The reader of our stdout has gone. typer would answer a BrokenPipeError with exit code 1."""


def _run() -> int:
    wait_politely()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = int(app(standalone_mode=False) or 0)
    except _ClickException as error:
        say(f"{error.format_message()} (try --help)".replace("\n", " "))
        return int(error.exit_code)
    except (OutputError, DeviceFailed) as error:
        say(str(error))
        return 1
    except FastscribeError as error:
        say(" ".join(str(error).split()))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except _StdoutClosed:
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
        return 141
    except _Terminated:
        say("terminated; what was finished is kept")
        return _TERMINATED
    if code == _INTERRUPTED:  # some versions of typer turn Ctrl-C into this code themselves
        say("interrupted; what was finished is kept")
    return code


class _Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is SIGINT."""


def _terminate(signal_number: int, frame: object) -> None:
    raise _Terminated


def _version(value: bool) -> None:
    if value:
        print(f"fastscribe {__version__}")
        raise typer.Exit


@app.callback()
def fastscribe(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Audio into text, fast: FastConformer RNN-T, TDT and CTC checkpoints on a GPU or a CPU."""


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
_REPORT_NAME = "report.json"


@app.command(epilog="Example: fastscribe transcribe interviews/ --model model.nemo -o out -f jsonl,srt")
def transcribe(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs, NeMo manifests (.jsonl, .json), or - for paths on stdin.", metavar="INPUTS..."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", envvar="FASTSCRIBE_MODEL", help=".nemo file, Hugging Face folder or fastscribe folder."
        ),
    ],
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="Folder for results; without it they go to stdout.")
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            "--format", "-f", help=f"{', '.join(OUTPUT_FORMATS)}; repeat or separate by commas. Default jsonl."
        ),
    ] = None,
    decoder: Annotated[
        Decoder | None, typer.Option(help="Which head of the checkpoint to use. Default: its own.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ..")] = "auto",
    dtype: Annotated[
        Dtype,
        typer.Option(
            help="auto: bf16 on GPUs, and on CPUs that multiply it natively for wide models; else fp32. int8 (CPUs) and "
            "fp8 (GPUs) multiply the encoder's large matrices in 8 bits; a few words differ."
        ),
    ] = Dtype.auto,
    cuda_graphs: Annotated[
        CudaGraphs,
        typer.Option(
            help="How a GPU decodes: full (one graph with a loop inside), chunked (a graph of a few steps, replayed), off, "
            "or auto, the first of these that works here."
        ),
    ] = CudaGraphs.auto,
    batch_frames: Annotated[
        str | None, typer.Option(help="Encoder frames in a batch (rows x longest), or auto.", metavar="N|auto")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="At most so many utterances in a batch; alone, it lifts the frame budget.")
    ] = None,
    max_utterance_s: Annotated[
        float, typer.Option(min=0, help="Cut longer audio at a quiet place; 0 = never.")
    ] = _DEFAULTS.max_utterance_s,
    channel: Annotated[
        int | None, typer.Option(min=0, help="Use this channel (from 0) instead of the mean of all.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Write every token with its times and confidence too.")
    ] = False,
    window: Annotated[int, typer.Option(min=1, help="Inputs to sort by length together.")] = _DEFAULTS.window,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that read audio. Default: by the number of processors.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="USD an hour of this machine, for the cost in the report.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no report on stderr; failures still show.")
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
) -> None:
    """Transcribe recordings. Transcripts go to stdout or a folder; progress and a speed and cost report to stderr."""
    formats = _formats(format)
    if output_dir is None and len(formats) > 1:
        raise typer.BadParameter("several formats need --output-dir")
    options = Options(
        decoder=decoder.value if decoder else None,
        cuda_graphs=cuda_graphs.value,
        batch_frames=_frames(batch_frames),
        batch_size=batch_size,
        max_utterance_s=max_utterance_s,
        channel=channel,
        window=window,
        threads=threads,
    )
    from fastscribe.run import Transcriber

    transcriber = Transcriber.load(model, device, dtype.value, options, say)
    with _open_output(output_dir, formats, tokens) as output:
        stats = _write_all(transcriber, inputs, output, price_per_hour, show_progress=not (quiet or no_progress))
    if stats.files == 0:
        raise UsageError("no input at all: nothing was given to transcribe")
    if output_dir is not None:
        _write_report(output_dir / _REPORT_NAME, stats)
    if not quiet:
        print(report_table(stats), file=sys.stderr)
    if stats.failed:
        raise typer.Exit(1)


def _open_output(directory: Path | None, formats: tuple[str, ...], tokens: bool) -> FolderOutput | StreamOutput:
    from fastscribe.output import FolderOutput, StreamOutput

    if directory is None:
        if sys.stdout is None:
            raise _StdoutClosed
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        return StreamOutput(sys.stdout, formats[0], tokens)
    try:
        output = FolderOutput(directory, formats, tokens)
        (directory / _REPORT_NAME).unlink(missing_ok=True)  # an earlier run's would be read as this one's
        return output
    except OSError as error:
        raise UsageError(f"{directory}: cannot be used as output folder: {error.strerror or error}") from error


def _write_report(path: Path, stats: RunStats) -> None:
    try:
        path.write_text(json.dumps(stats.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(str(path), error) from error


def _write_all(
    transcriber: Transcriber,
    inputs: list[str],
    output: FolderOutput | StreamOutput,
    price_per_hour: float | None,
    show_progress: bool,
) -> RunStats:
    from contextlib import closing
    from time import perf_counter

    from fastscribe.run import run_stats

    start = perf_counter()
    results = transcriber.transcribe(inputs)
    with without_mp3_chatter(), ProgressBar(transcriber, show_progress) as bar, closing(results):
        for result in results:
            with transcriber.progress.stopwatch.time("write"):
                written = _write(output, result, transcriber)
            if isinstance(written, Failure):
                bar.say(failure_line(written))
            bar.update()
    return run_stats(transcriber, perf_counter() - start, price_per_hour)


def _write(
    output: FolderOutput | StreamOutput, result: Transcript | Failure, transcriber: Transcriber
) -> Transcript | Failure:
    """What became of the result: itself, or the Failure that stands in for one that could not be written."""
    try:
        output.write(result)
    except BrokenPipeError as error:
        raise _StdoutClosed from error
    except OSError as error:
        if error.errno in _DISK_PROBLEMS or isinstance(result, Failure):
            raise OutputError(result.path if isinstance(result, Failure) else result.audio.path, error) from error
        transcriber.not_written(result)
        return _write(output, to_failure(result.audio, "write", error), transcriber)
    return result


def _read_model(path: str) -> Checkpoint:
    from fastscribe.checkpoint import read_checkpoint
    from fastscribe.model.model import build_model

    checkpoint = read_checkpoint(path)
    build_model(checkpoint.config, checkpoint.weights, checkpoint.path)  # the names must match, or it is no model
    return checkpoint


@app.command(epilog="Example: fastscribe inspect model.nemo --json | jq .family")
def inspect(
    model: Annotated[str, typer.Argument(help=".nemo file, Hugging Face folder or fastscribe folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a checkpoint is: family, sizes, vocabulary, frame length, dtype, work a second of audio."""
    from fastscribe.describe import describe

    facts = describe(_read_model(model))
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    for key, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(f"{key:<28} {shown:,}" if type(shown) is int else f"{key:<28} {shown}")


@app.command(epilog="Example: fastscribe convert model.nemo model-folder --dtype bf16")
def convert(
    model: Annotated[str, typer.Argument(help=".nemo file, Hugging Face folder or fastscribe folder.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write: config.json, model.safetensors and the tokenizer.")],
    dtype: Annotated[StoredDtype, typer.Option(help="What to store the weights as.")] = StoredDtype.bf16,
) -> None:
    """Write a checkpoint as fastscribe's own folder."""
    import torch

    from fastscribe.checkpoint import native

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: exists and is not an empty folder; name another")
    checkpoint = _read_model(model)
    try:
        native.write(checkpoint, folder, torch.bfloat16 if dtype is StoredDtype.bf16 else torch.float32)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from error
    say(f"{folder}: {checkpoint.num_parameters:,} parameters as {dtype.value}")


if __name__ == "__main__":
    main()
