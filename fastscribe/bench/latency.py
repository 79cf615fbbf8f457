"""How long one batch takes from int16 audio in host memory to texts with word times, nothing else going on: percentiles by
batch size and duration, in two dtypes side by side, in the layout of NVIDIA's inference tables for Jasper and QuartzNet.

Every recording is as long as the next and no two are alike; a case goes round a few batches, so that what varies is the
machine's doing and the texts'. A percentile that so few iterations cannot tell is None: the 99th needs a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np

from fastscribe.batching import Budget
from fastscribe.bench import synthetic
from fastscribe.bench.notebook import describe
from fastscribe.bench.speed import free, peak, reset_peak
from fastscribe.bench.throughput import batches_of
from fastscribe.device import is_out_of_memory
from fastscribe.run import Transcriber
from fastscribe.transcript import assemble
from fastscribe.types import Batch

CASE = ("model", "dtype", "batch_size", "duration_s")
PERCENTILES = (50, 90, 95, 99)
_BATCHES = 8  # different ones of a case
_WARM_UPS = 3
_NOISE_PARTS = 5  # of the iterations, whose medians say how noisy they are

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
            found: list[Row] = []
            for transcriber in transcribers:
                key: Row = dict(zip(CASE, (name, transcriber.recognizer.dtype, batch_size, duration_s), strict=True))
                found.append(key | _measured(transcriber, batch_size, duration_s, effort))
            for row in found[1:]:
                if "error" not in row and "error" not in found[0]:
                    row["speedup_ratio"] = found[0]["average_ms"] / row["average_ms"]
            yield found


def _measured(transcriber: Transcriber, batch_size: int, duration_s: float, effort: Effort) -> Row:
    device = transcriber.recognizer.device
    reset_peak(device)
    try:
        batches = _batches(transcriber, batch_size, duration_s)
        times_ms, labels = _times_ms(transcriber, batches, effort)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        free(device)
        return {"error": describe(error)}
    audio_s = batch_size * duration_s
    return {
        **summary(times_ms),
        "sequences_per_s": 1000 * batch_size / fmean(times_ms),
        "rtfx": 1000 * audio_s / fmean(times_ms),
        "labels_per_audio_s": labels / audio_s,
        "iterations": len(times_ms),
        "iterations_asked": effort.iterations,
        "peak_bytes": peak(transcriber),
    }


def summary(times_ms: Sequence[float]) -> Row:
    """Average, percentiles, and medians of parts of the iterations in their order."""
    parts = [part for part in np.array_split(np.asarray(times_ms), _NOISE_PARTS) if len(part)]
    return {
        "average_ms": fmean(times_ms),
        **{f"p{percent}_ms": percentile(times_ms, percent) for percent in PERCENTILES},
        "p50_ms_runs": [float(median(part.tolist())) for part in parts],
        "min_ms": min(times_ms),
        "max_ms": max(times_ms),
    }


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The smallest value that `percent` % of all do not exceed; None where fewer than one value lies above it."""
    rank = -(-len(values) * percent // 100)
    return sorted(values)[rank - 1] if rank < len(values) or percent == 50 else None


def _times_ms(transcriber: Transcriber, batches: Sequence[Batch], effort: Effort) -> tuple[list[float], float]:
    """Of each iteration, and labels a batch."""
    start = perf_counter()
    for number in range(_WARM_UPS):
        text_of(transcriber, batches[number % len(batches)])
        if perf_counter() - start > effort.max_s / 2:
            break
    found: list[float] = []
    labels = 0
    start = perf_counter()
    while len(found) < effort.iterations and (not found or perf_counter() - start < effort.max_s):
        before = perf_counter()
        labels += text_of(transcriber, batches[len(found) % len(batches)])
        found.append(1000 * (perf_counter() - before))
    return found, labels / len(found)


def text_of(transcriber: Transcriber, batch: Batch) -> int:
    """Transcripts of one batch; returns the number of labels found."""
    recognizer = transcriber.recognizer
    is_tdt, labels = recognizer.decoder_name == "tdt", 0
    for utterance, hypothesis in zip(batch.utterances, recognizer.transcribe(batch), strict=True):
        parts = [(utterance, hypothesis)]
        assemble(utterance.audio, parts, transcriber.tokenizer, transcriber.config.frame_s, is_tdt)
        labels += len(hypothesis.token_ids)
    return labels


def _batches(transcriber: Transcriber, batch_size: int, duration_s: float) -> list[Batch]:
    """Synthetic audio, the same whatever the dtype."""
    waves = synthetic.waves([duration_s] * batch_size * _BATCHES, seed=batch_size)
    budget = Budget(batch_size * transcriber.config.num_frames(duration_s))
    return batches_of(waves, transcriber, budget)


def side_by_side(found: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The numbers of a line of the table: for each dtype sequences/s, 90 %, 95 %, 99 % and average, then the speed-ups."""
    numbers: list[float | None] = []
    for row in found:
        numbers += [row.get(key) for key in ("sequences_per_s", "p90_ms", "p95_ms", "p99_ms", "average_ms")]
    return [*numbers, *(row.get("speedup_ratio") for row in found[1:])]
