"""What `fastscribe bench --latency` measures: how long one batch takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastscribe.bench import batch_latency
from fastscribe.bench.result import result
from fastscribe.bench.speed import Subject
from fastscribe.bench.subject import about, load
from fastscribe.cli.terminal import show
from fastscribe.errors import UsageError

_EFFORT, _QUICK_EFFORT = batch_latency.Effort(500, 20.0), batch_latency.Effort(20, 2.0)
_MIN_S = 0.1
_STATISTIC = (
    "wall clock of one batch, int16 audio in host memory to texts with word times, model loaded, after 3 uncounted"
)


def run(
    chosen: Subject,
    dtypes: Sequence[str],
    batch_sizes: Sequence[int],
    durations_s: Sequence[float],
    quick: bool,
    json_file: Path | None,
) -> None:
    """Measure, print the table, and leave the document. Raises UsageError where two dtypes are the same here."""
    transcribers = [load(chosen, one) for one in dtypes]
    found_dtypes = [one._recognizer.dtype for one in transcribers]
    if len(set(found_dtypes)) < len(found_dtypes):
        raise UsageError(f"--dtype: {' and '.join(dtypes)} are both {found_dtypes[0]} here")
    effort = _QUICK_EFFORT if quick else _EFFORT
    device_name = transcribers[0]._recognizer.device_name
    show(f"{chosen.name} on {device_name}, {effort.iterations} iterations or {effort.max_s:g} s per case")
    for line in _header(found_dtypes):
        show(line)
    settings = {"model": chosen.name, "iterations": effort.iterations, "max_seconds_s": effort.max_s}
    settings |= {"statistic": _STATISTIC, "refused": chosen.refused}
    with result("latency", chosen.device, batch_latency.CASE, json_file) as left:
        left |= {**settings, **about(transcribers[0])}
        for found in batch_latency.rows(chosen.name, transcribers, durations_s, batch_sizes, effort):
            left["rows"] += found
            show(_line(found, batch_latency.side_by_side(found)))


def sizes(text: str) -> list[int]:
    """ "1,2,4" -> [1, 2, 4], each once"""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--latency {text}: not whole numbers above 0, separated by commas")
    return list(dict.fromkeys(map(int, parts)))


def seconds(text: str) -> list[float]:
    """ "2.0,7" -> [2.0, 7.0]"""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(_MIN_S <= length_s < math.inf for length_s in found):
        raise UsageError(f"--durations-s {text}: not seconds from {_MIN_S}, separated by commas")
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
