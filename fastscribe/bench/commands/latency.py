"""`fastscribe bench latency`: how long one batch takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args

import typer

from fastscribe.bench.commands.common import DEVICE_HELP, JsonFile, ReportHtml, bench, check_places, numbers, result
from fastscribe.bench.commands.subject import BEAM_HELP, MODEL_OPTION_HELP, RANDOM_HELP, load, subject
from fastscribe.cli.app import option, repeated_choice
from fastscribe.cli.terminal import show
from fastscribe.config import DtypeChoice, FloatDtypeName
from fastscribe.errors import UsageError

_ITERATIONS, _QUICK_ITERATIONS = 500, 20
_QUICK_S = 2.0
_MIN_S = 0.1
_STATISTIC = (
    "wall clock of one batch, int16 audio in host memory to texts with word times, model loaded, after 3 uncounted"
)


@bench.command(
    short_help="Latency of a batch by batch size and duration, in two dtypes.",
    epilog="Example: fastscribe bench latency --random parakeet-tdt-0.6b --batch-sizes 1,8 --durations-s 7",
)
def latency(
    model: Annotated[str | None, option("--model", "-m", help=MODEL_OPTION_HELP)] = None,
    random: Annotated[str | None, option("--random", help=RANDOM_HELP)] = None,
    beam: Annotated[int | None, option("--beam", min=1, help=BEAM_HELP)] = None,
    batch_sizes: Annotated[
        str, option("--batch-sizes", help="Recordings per batch, separated by commas.")
    ] = "1,2,4,8,16",
    durations_s: Annotated[
        str, option("--durations-s", help="Seconds per recording, separated by commas.")
    ] = "2.0,7.0,16.7",
    dtype: Annotated[
        list[str] | None,
        repeated_choice(
            "--dtype",
            among=get_args(DtypeChoice),
            help="One, or repeat for two. Default: fp32, then bf16.",
        ),
    ] = None,
    iterations: Annotated[
        int | None, option("--iterations", min=1, help="Batches per case. Default: 500, or 20 with --quick.")
    ] = None,
    max_seconds: Annotated[
        float,
        option("--max-seconds", min=_MIN_S, help="A case ends after this time; its row has the number of batches."),
    ] = 20.0,
    quick: Annotated[bool, option("--quick", help="20 iterations, and at most 2 s per case.")] = False,
    device: Annotated[str, option("--device", help=DEVICE_HELP)] = "auto",
    json_file: JsonFile = None,
    report_html: ReportHtml = None,
) -> None:
    """Latency of a batch, average and percentiles, by batch size and duration, in two dtypes side by side."""
    check_places(json_file, report_html)
    sizes, lengths_s = numbers(batch_sizes), _seconds(durations_s)
    dtypes = list(dict.fromkeys(dtype or get_args(FloatDtypeName)))
    if len(dtypes) > 2:
        raise typer.BadParameter("--dtype: one or two, which stand side by side")
    chosen = subject(model, random, device, dtypes, beam)
    from fastscribe.bench import batch_latency as measuring
    from fastscribe.bench.model_name import about

    transcribers = [load(chosen, one) for one in dtypes]
    found_dtypes = [one._recognizer.dtype for one in transcribers]
    if len(set(found_dtypes)) < len(found_dtypes):
        raise UsageError(f"--dtype: {' and '.join(dtypes)} are both {found_dtypes[0]} here")
    count = iterations or (_QUICK_ITERATIONS if quick else _ITERATIONS)
    effort = measuring.Effort(count, min(max_seconds, _QUICK_S) if quick else max_seconds)
    show(
        f"{chosen.name} on {transcribers[0]._recognizer.device_name}, {count} iterations or {effort.max_s:g} s per case"
    )
    for line in _header(found_dtypes):
        show(line)
    settings = {"model": chosen.name, "iterations": count, "max_seconds_s": effort.max_s, "statistic": _STATISTIC}
    settings["refused"] = chosen.refused
    with result("latency", chosen.device, measuring.CASE, json_file, report_html) as left:
        left |= {**settings, **about(transcribers[0])}
        for found in measuring.rows(chosen.name, transcribers, lengths_s, sizes, effort):
            left["rows"] += found
            show(_line(found, measuring.side_by_side(found)))


def _seconds(text: str) -> list[float]:
    """ "2.0,7" -> [2.0, 7.0]"""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(_MIN_S <= seconds < math.inf for seconds in found):
        raise typer.BadParameter(f"--durations-s {text!r}: not seconds from {_MIN_S}, separated by commas")
    return found


_COLUMN = "   seq/s     90 %     95 %     99 %   avg ms"


def _header(dtypes: Sequence[str]) -> list[str]:
    names = "".join(f"  {name + ', ms':^{len(_COLUMN)}}" for name in dtypes)
    return [
        f"{'':17}{names}",
        f"batch  duration s{'  '.join(['', *[_COLUMN] * len(dtypes)])}{'  speed-up' * (len(dtypes) - 1)}",
    ]


def _line(found: Sequence[Mapping[str, Any]], cells: Sequence[float | None]) -> str:
    start = f"{found[0]['batch_size']:5}  {found[0]['duration_s']:10g}"
    parts = []
    for number, row in enumerate(found):
        if "error" in row:
            parts.append(f"{row['error'][: len(_COLUMN)]:>{len(_COLUMN)}}")
        else:
            rate, *times_ms = cells[5 * number : 5 * number + 5]
            parts.append(f"{rate:8.1f}" + "".join(f"{'-':>9}" if ms is None else f"{ms:9.2f}" for ms in times_ms))
    speedups = "".join(f"{'-':>10}" if ratio is None else f"{ratio:9.2f}x" for ratio in cells[5 * len(found) :])
    fewer = [
        f"{row['iterations']} in {row['dtype']}"
        for row in found
        if row.get("iterations", math.inf) < row.get("iterations_asked", 0)
    ]
    return "  ".join([start, *parts]) + speedups + (f"  (only {', '.join(fewer)})" if fewer else "")
