"""`fastscribe bench`: measure a model on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from fastscribe._system.urls import is_url
from fastscribe.audio.formats import MAGIC, STDIN
from fastscribe.bench.result import STDOUT, JsonFile, usable_json
from fastscribe.cli.app import MODEL_HELP, app, option, repeated_choice
from fastscribe.config import DtypeChoice, FloatDtypeName
from fastscribe.errors import UsageError
from fastscribe.pipeline.prices import MAX_USD

_OF_THROUGHPUT = ("inputs", "batch_frames", "clips", "passes", "price_per_hour")
_DURATIONS_S = "2.0,7.0,16.7"


@app.command(
    short_help="Measure speed, latency, memory and cost on this machine.",
    epilog="Example: fastscribe bench recordings/ --model model.nemo --dtype bf16 --dtype int8 --json speed.json",
)
def bench(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recordings, as for transcribe. Default: synthetic, with durations like the leaderboard's."
        ),
    ] = None,
    model: Annotated[
        str | None,
        option("--model", "-m", help=f"{MODEL_HELP} Default: the small English model in the package."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        repeated_choice(
            "--dtype",
            among=get_args(DtypeChoice),
            help="Repeat for several. Default: auto; with --latency fp32, then bf16.",
        ),
    ] = None,
    beam: Annotated[
        int | None, option("--beam", min=1, help="Beam width of an RNN-T or TDT model, as for transcribe.")
    ] = None,
    device: Annotated[str, option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    batch_frames: Annotated[
        str | None,
        option(
            "--batch-frames",
            metavar="N|auto,...",
            help="Encoder frames per batch, separated by commas. Default: auto, and a quarter of auto.",
        ),
    ] = None,
    clips: Annotated[
        int | None,
        option(
            "--clips",
            min=1,
            help="Number of recordings, spread over all. Default: as many as take a minute or two.",
        ),
    ] = None,
    passes: Annotated[
        int | None,
        option("--passes", min=1, help="Number of passes; the median counts. Default: 5, or 3 with --quick."),
    ] = None,
    latency: Annotated[
        str | None,
        option(
            "--latency",
            metavar="N,...",
            help="Measure the latency of a batch of N recordings, by dtype, in place of throughput: 1,2,4,8,16, for example.",
        ),
    ] = None,
    durations_s: Annotated[
        str, option("--durations-s", help="With --latency: seconds per recording, separated by commas.")
    ] = _DURATIONS_S,
    quick: Annotated[
        bool, option("--quick", help="In about 20 s: fewer passes over less audio, or 2 s per case of --latency.")
    ] = False,
    price_per_hour: Annotated[
        float | None,
        option(
            "--price-per-hour",
            min=0,
            max=MAX_USD,
            help="Price of this machine in USD per hour. Default: its list price, if known.",
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """RTFx by batch size, from memory and from files, beside the machine's limits; memory and cost. Or latency of a batch."""
    if _is_from(context, "latency", "ENVIRONMENT") and _typed(context, _OF_THROUGHPUT):
        latency = None
    _refuse_what_would_be_dropped(context, latency is not None)
    _check_inputs(inputs or ())
    if json_file not in (None, STDOUT) and os.path.realpath(json_file) in map(os.path.realpath, inputs or ()):
        raise UsageError(f"--json {json_file}: it is one of the inputs: name another place")
    json_file = usable_json(json_file)
    if latency is not None:
        dtypes = list(dict.fromkeys(dtype or get_args(FloatDtypeName)))
        if len(dtypes) > 2:
            raise UsageError(f"--dtype {', '.join(dtypes)}: one or two with --latency, which stand side by side")
        from fastscribe.bench import batch_latency
        from fastscribe.bench.speed import Subject

        sizes, lengths_s = batch_latency.sizes(latency), batch_latency.seconds(durations_s)
        batch_latency.run(Subject.of(model, device, dtypes, beam), dtypes, sizes, lengths_s, quick, json_file)
        return
    from fastscribe.bench import throughput
    from fastscribe.bench.speed import Subject

    settings = throughput.Settings(
        tuple(inputs or ()),
        tuple(dict.fromkeys(dtype or ["auto"])),
        throughput.budgets(batch_frames, quick),
        clips,
        passes or (throughput.QUICK_PASSES if quick else throughput.PASSES),
        quick,
        price_per_hour,
    )
    throughput.run(Subject.of(model, device, settings.dtypes, beam), settings, json_file)


def _refuse_what_would_be_dropped(context: typer.Context, is_latency: bool) -> None:
    """Raise UsageError for what the command line has and the measurement would not read. The environment is for any command."""
    for name in _typed(context, _OF_THROUGHPUT if is_latency else ("durations_s",)):
        given = "recordings" if name == "inputs" else f"--{name.replace('_', '-')}"
        raise UsageError(f"{given}: not with --latency" if is_latency else f"{given} is for --latency")


def _typed(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Return the parameters of these names that are on the command line."""
    return [name for name in names if _is_from(context, name, "COMMANDLINE")]


def _is_from(context: typer.Context, name: str, place: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == place


def _check_inputs(inputs: Sequence[str]) -> None:
    """Raise UsageError if there are none at all where the inputs say, before a model is loaded for them."""
    if inputs and not any(one == STDIN or is_url(one) or MAGIC.search(one) or os.path.lexists(one) for one in inputs):
        raise UsageError(f"no recording that can be measured: {inputs[0]}: no such file or folder")
