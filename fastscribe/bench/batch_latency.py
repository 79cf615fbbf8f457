"""Latency of one batch on an idle machine, from int16 audio in host memory to texts with word times.

The rows hold percentiles by batch size and duration for two dtypes, in the layout of NVIDIA's inference tables for Jasper
and QuartzNet. All recordings have the same length and different content; a case cycles through a few batches, so only the
machine and the texts vary. The dtypes alternate in short blocks: a machine that slows down slows down both. A percentile
is None if there are too few iterations for it; the 99th needs a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np

from fastscribe.bench import synthetic
from fastscribe.bench.machine import release, reset_peak
from fastscribe.bench.result import describe_error, result
from fastscribe.bench.speed import Subject, about, peak
from fastscribe.bench.throughput_passes import batches_of, make_texts
from fastscribe.cli.terminal import show
from fastscribe.errors import UsageError, is_out_of_memory
from fastscribe.pipeline.batching import Budget
from fastscribe.transcriber import Transcriber
from fastscribe.types import Batch

CASE = ("model", "dtype", "batch_size", "duration_s")
PERCENTILES = (50, 90, 95, 99)
_BATCHES = 8  # different ones of a case
_WARM_UPS = 3
_BLOCKS = 10  # of a case, in each of which each dtype has a turn
_NOISE_PARTS = 5  # of the iterations: how far these differ says how noisy a statistic is

Row = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How often a case is run: `iterations` times, or as often as fits in `max_s`, once at least."""

    iterations: int
    max_s: float


def rows(
    name: str,
    transcribers: Sequence[Transcriber],
    durations_s: Sequence[float],
    batch_sizes: Sequence[int],
    effort: Effort,
) -> Iterator[list[Row]]:
    """The rows of each duration and batch size, one a transcriber; a later one's `speedup_ratio` is over the first."""
    for duration_s in durations_s:
        for batch_size in batch_sizes:
            cases = [_Case(transcriber, batch_size, duration_s) for transcriber in transcribers]
            _measure(cases, effort)
            found = [dict(zip(CASE, (name, case.dtype, batch_size, duration_s), strict=True)) for case in cases]
            found = [key | case.row(effort) for key, case in zip(found, cases, strict=True)]
            for row in found[1:]:
                if "error" not in row and "error" not in found[0]:
                    row |= _speedup(found[0], row)
            yield found


@dataclass
class _Case:
    """Batches of one size and duration, and what they took one transcriber. An error ends it."""

    transcriber: Transcriber
    batch_size: int
    duration_s: float
    batches: list[Batch] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    labels: int = 0
    peak_bytes: int = 0
    error: str | None = None

    @property
    def dtype(self) -> str:
        return self.transcriber._recognizer.dtype

    def attempt(self, step: Callable[[], None]) -> None:
        """`step`, unless there has been an error; no room for it is one."""
        if self.error is not None:
            return
        try:
            step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.error, self.batches = describe_error(error), []
            release(self.transcriber._recognizer.device)

    def make_batches(self) -> None:
        """Batches of synthetic audio."""
        waves = synthetic.waves([self.duration_s] * self.batch_size * _BATCHES, seed=self.batch_size)
        budget = Budget(self.batch_size * self.transcriber._config.num_frames(self.duration_s))
        self.batches = batches_of(waves, self.transcriber, budget)

    def warm_up(self, max_s: float) -> None:
        """Iterations that do not count but for the memory that they take."""
        reset_peak(self.transcriber._recognizer.device)
        start = perf_counter()
        for number in range(_WARM_UPS):
            text_of(self.transcriber, self.batches[number % len(self.batches)])
            if perf_counter() - start > max_s / 2:
                break
        self.peak_bytes = peak(self.transcriber)

    def block(self, iterations: int, max_s: float) -> None:
        """Run up to this many more iterations within `max_s`, and at least one."""
        start = perf_counter()
        for _ in range(iterations):
            before = perf_counter()
            self.labels += text_of(self.transcriber, self.batches[len(self.times_ms) % len(self.batches)])
            after = perf_counter()
            self.times_ms.append(1000 * (after - before))
            if after - start >= max_s:
                break

    def row(self, effort: Effort) -> Row:
        if self.error is not None:
            return {"error": self.error}
        found, audio_s = summary(self.times_ms), self.batch_size * self.duration_s
        for name, amount in (("sequences_per_s", self.batch_size), ("rtfx", audio_s)):
            found[name] = 1000 * amount / found["average_ms"]
            if "average_ms_runs" in found:
                found[f"{name}_runs"] = [1000 * amount / run_ms for run_ms in found["average_ms_runs"]]
        return found | {
            "labels_per_audio_s": self.labels / len(self.times_ms) / audio_s,
            "iterations": len(self.times_ms),
            "iterations_asked": effort.iterations,
            "peak_bytes": self.peak_bytes,
        }


def _measure(cases: Sequence[_Case], effort: Effort) -> None:
    """Blocks in turns; who goes first changes from one to the next. When one has had its time, all have."""
    first = cases[0]
    first.attempt(first.make_batches)
    for case in cases:  # over the same audio, in the same memory
        case.batches, case.error = first.batches, first.error
    for case in cases:
        case.attempt(partial(case.warm_up, effort.max_s))
    size, turns = -(-effort.iterations // _BLOCKS), list(cases)
    while turns:
        for case in turns:
            left = effort.iterations - len(case.times_ms)
            case.attempt(partial(case.block, min(size, left), effort.max_s / _BLOCKS))
        if max(sum(case.times_ms) for case in cases) >= 1000 * effort.max_s:
            break
        turns = [case for case in reversed(turns) if case.error is None and len(case.times_ms) < effort.iterations]


def _speedup(first: Row, row: Row) -> Row:
    found: Row = {"speedup_ratio": first["average_ms"] / row["average_ms"]}
    if "average_ms_runs" in first and "average_ms_runs" in row:
        # One that had few iterations may have had fewer than the other.
        runs = zip(first["average_ms_runs"], row["average_ms_runs"], strict=False)
        found["speedup_ratio_runs"] = [first_ms / its_ms for first_ms, its_ms in runs]
    return found


def summary(times_ms: Sequence[float]) -> Row:
    """Average, percentiles and extremes, each with its own of parts of the iterations in their order, if these can tell."""
    statistics: dict[str, Callable[[Sequence[float]], float | None]] = {
        "average_ms": fmean,
        **{f"p{percent}_ms": partial(percentile, percent=percent) for percent in PERCENTILES},
        "min_ms": min,
        "max_ms": max,
    }
    found: Row = {}
    for name, statistic in statistics.items():
        found[name] = statistic(times_ms)
        if parts := _of_parts(times_ms, statistic):
            found[f"{name}_runs"] = parts
    return found


def _of_parts(times_ms: Sequence[float], statistic: Callable[[Sequence[float]], float | None]) -> list[float]:
    """As many parts as can each tell the statistic; empty where not even two can."""
    for count in range(min(_NOISE_PARTS, len(times_ms)), 1, -1):
        parts = [statistic(part.tolist()) for part in np.array_split(np.asarray(times_ms), count)]
        values = [value for value in parts if value is not None]
        if len(values) == count:
            return values
    return []


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The smallest value that `percent` % of all do not exceed; None where fewer than one value lies above it."""
    rank = -(-len(values) * percent // 100)
    return sorted(values)[rank - 1] if rank < len(values) or percent == 50 else None


def text_of(transcriber: Transcriber, batch: Batch) -> int:
    """Transcripts of one batch; returns the number of labels found."""
    hypotheses = list(transcriber._recognizer.transcribe(batch))
    make_texts(transcriber, batch, hypotheses)
    return sum(len(hypothesis.token_ids) for hypothesis in hypotheses)


def side_by_side(found: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The numbers of a line of the table: for each dtype sequences/s, 90 %, 95 %, 99 % and average, then the speed-ups."""
    numbers: list[float | None] = []
    for row in found:
        numbers += [row.get(key) for key in ("sequences_per_s", "p90_ms", "p95_ms", "p99_ms", "average_ms")]
    return [*numbers, *(row.get("speedup_ratio") for row in found[1:])]


_EFFORT, _QUICK_EFFORT = Effort(500, 20.0), Effort(20, 2.0)
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
    transcribers = [chosen.load(one) for one in dtypes]
    found_dtypes = [one._recognizer.dtype for one in transcribers]
    if len(set(found_dtypes)) < len(found_dtypes):
        raise UsageError(f"--dtype: {' and '.join(dtypes)} are both {found_dtypes[0]} here")
    effort = _QUICK_EFFORT if quick else _EFFORT
    device_name = transcribers[0]._recognizer.facts.device_name
    show(f"{chosen.name} on {device_name}, {effort.iterations} iterations or {effort.max_s:g} s per case")
    for line in _header(found_dtypes):
        show(line)
    settings = {"model": chosen.name, "iterations": effort.iterations, "max_seconds_s": effort.max_s}
    settings |= {"statistic": _STATISTIC, "refused": chosen.refused}
    with result("latency", chosen.device, CASE, json_file) as left:
        left |= {**settings, **about(transcribers[0])}
        for found in rows(chosen.name, transcribers, durations_s, batch_sizes, effort):
            left["rows"] += found
            show(_line(found, side_by_side(found)))


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
