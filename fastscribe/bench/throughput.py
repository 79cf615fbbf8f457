"""What `fastscribe bench` measures of many recordings: RTFx by batch budget with its stages, memory, and what it costs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastscribe._system.text_layout import count_of
from fastscribe.audio.formats import STDIN
from fastscribe.audio.inputs import expand
from fastscribe.bench import roofline, speed, throughput_passes
from fastscribe.bench.machine import release
from fastscribe.bench.result import result
from fastscribe.bench.roofline import Roofline
from fastscribe.bench.speed import Measurement, Recordings, Subject, about
from fastscribe.cli.terminal import say, show
from fastscribe.errors import UsageError
from fastscribe.pipeline.prices import price_of
from fastscribe.transcriber import Transcriber

PASSES, QUICK_PASSES = 5, 3
_SECONDS, _QUICK_SECONDS = 90.0, 10.0  # of passes, when it is left to us how much audio there is
_SMALLER = 4  # the budget beside "auto" is that by so much
_WARM_UPS = 2  # one from memory, one from files
_UNITS = ((3600, "h", 1), (60, "min", 0), (1, "s", 0))
_STATISTIC = (
    "rtfx: paths to JSONL on disk; memory_rtfx: batches in host memory to texts with times; medians of the passes, after one "
    "that does not count; model loaded"
)

Frames = int | Literal["auto"]


@dataclass(frozen=True)
class Settings:
    """`budgets` None: to be chosen when the automatic one is known."""

    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    budgets: tuple[Frames, ...] | None
    clips: int | None
    passes: int
    quick: bool
    price_per_hour: float | None

    @property
    def all_passes(self) -> int:
        """Over the audio, warm-ups included."""
        return len(self.dtypes) * len(self.budgets or ("auto", _SMALLER)) * (2 * self.passes + _WARM_UPS)


def budgets(text: str | None, quick: bool) -> tuple[Frames, ...] | None:
    """Return what --batch-frames names. Raises UsageError."""
    if text is None:
        return ("auto",) if quick else None
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "auto" or (part.isdecimal() and int(part) > 0) for part in parts):
        raise UsageError(f"--batch-frames {text}: not numbers above 0, or auto, separated by commas")
    return tuple(dict.fromkeys("auto" if part == "auto" else int(part) for part in parts))


def run(chosen: Subject, settings: Settings, json_file: Path | None) -> None:
    """Measure, print the table, and leave the document."""
    with (
        result("throughput", chosen.device, speed.CASE, json_file) as found,
        tempfile.TemporaryDirectory(prefix="fastscribe-bench-") as folder,
    ):
        _measure(chosen, settings, Path(folder), found)


def _measure(chosen: Subject, settings: Settings, folder: Path, found: dict[str, Any]) -> None:
    """Settings, and rows as they come."""
    recordings: Recordings | None = None
    audio = "synthetic" if not settings.inputs else "given"
    found |= {"model": chosen.name, "audio": audio, "passes": settings.passes, "statistic": _STATISTIC, "ceilings": []}
    found["refused"] = chosen.refused
    rows, reaches = found["rows"], found["ceilings"]
    memory_gb_per_s: float | None = None
    (folder / "out").mkdir()
    for dtype in settings.dtypes:
        transcriber = chosen.load(dtype)
        if any(one["dtype"] == transcriber._recognizer.dtype for one in reaches):  # what auto is here
            del transcriber  # before the next one is loaded
            release(chosen.device)
            continue
        if recordings is None:
            recordings = _recordings(transcriber, settings, folder)
            found |= {"clips": recordings.clips, "copies": recordings.copies}
            found |= about(transcriber)
        measurement = Measurement.of(transcriber, chosen, recordings)
        memory_gb_per_s = memory_gb_per_s or roofline.memory_rate(chosen.device)
        for line in [] if rows else _about(measurement, chosen, settings.all_passes):
            show(line)
        smaller = max(1, round(measurement.auto_frames / _SMALLER))
        ceilings = [
            (frames, measurement.ceiling(frames, memory_gb_per_s)) for frames in settings.budgets or (smaller, "auto")
        ]
        for frames, ceiling in ceilings:
            key = {"dtype": transcriber._recognizer.dtype, "batch_frames": frames}
            reaches.append(key | ceiling.row())
            budget = f"auto={measurement.auto_frames}" if frames == "auto" else frames
            for line in _ceiling_lines(f"{key['dtype']}, {budget} frames per batch", ceiling):
                show(line)
        show(_HEADER)
        measured = measurement.rows(ceilings, settings.passes, folder / "out")
        for row in _priced(measured, transcriber, settings.price_per_hour):
            rows.append(row)
            show(_line(row))
        if doubts := list(_of_equal_batches(rows)):
            found["doubts"] = [*found.get("doubts", ()), *doubts]
        del transcriber, measurement
        release(chosen.device)


def _of_equal_batches(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line if several budgets make the same batches of these recordings."""
    by_batches: dict[tuple[Any, ...], list[str]] = {}
    for row in (one for one in rows if "error" not in one and one["dtype"] == rows[-1]["dtype"]):
        batches = tuple(row[name] for name in ("batches", "rows_of_largest_batch", "padding_share"))
        by_batches.setdefault(batches, []).append(str(row["batch_frames"]))
    for budgets in (one for one in by_batches.values() if len(one) > 1):
        yield (
            f"{rows[-1]['dtype']}: budgets of {', '.join(budgets)} frames make the same batches, so what differs between them "
            "is chance: take more recordings (--clips)"
        )


def _recordings(transcriber: Transcriber, settings: Settings, folder: Path) -> Recordings:
    clips = settings.clips
    inputs = list(expand(settings.inputs)) if STDIN in settings.inputs else settings.inputs  # stdin is read once
    if clips is not None:
        if not inputs:
            return speed.make_recordings(folder, clips)
        return speed.Recordings(throughput_passes.spread_over(inputs, clips), clips)
    rtfx = speed.guessed_rtfx(transcriber)
    seconds, fewest = (_QUICK_SECONDS, speed.QUICK_FEWEST) if settings.quick else (_SECONDS, speed.FEWEST)
    amount = speed.amount(rtfx, seconds, settings.all_passes, fewest)
    if not inputs:
        return speed.make_recordings(folder, amount, rtfx)
    clips = throughput_passes.with_audio(transcriber, inputs, amount, amount * speed.MEAN_S)
    taken = throughput_passes.spread_over(inputs, clips)
    if len(taken) < clips:
        return speed.Recordings(inputs, rtfx=rtfx)
    say(f"{clips} of these recordings are taken, spread over all, which hold enough; --clips takes another number")
    return speed.Recordings(taken, clips, rtfx=rtfx)


def _about(measurement: Measurement, chosen: Subject, passes: int) -> Iterator[str]:
    for failure in measurement.failures:
        say(f"{failure.path}: left out: {failure.message}")
    count, copies, rtfx = len(measurement.lengths_s), measurement.recordings.copies, measurement.recordings.rtfx
    often = f", {copies} times a pass" if copies > 1 else ""
    yield (
        f"{chosen.name} on {measurement.transcriber._recognizer.facts.device_name}: {count_of(count, 'utterance')} of "
        f"{measurement.audio_s / count:.1f} s on average, {measurement.audio_s:.0f} s of audio{often}"
    )
    if rtfx is not None:
        seconds = passes * copies * measurement.audio_s / rtfx
        yield f"{passes} passes over that, warm-ups included, take about {_duration(seconds)}"


def _duration(seconds: float) -> str:
    unit_s, unit, digits = next(one for one in _UNITS if seconds >= 2 * one[0] or one[0] == 1)
    return f"{seconds / unit_s:.{digits}f} {unit}"


def _ceiling_lines(what: str, ceiling: Roofline) -> Iterator[str]:
    yield (
        f"ceiling in {what}: {ceiling.matrix_tflop_per_s:.3g} TFLOP/s over {ceiling.gflop_per_audio_s:.3g} GFLOP a second "
        f"of audio = {_rtfx(ceiling.matrix_rtfx)} RTFx; {ceiling.memory_gb_per_s:.3g} GB/s over "
        f"{ceiling.mb_per_audio_s:.3g} MB = {_rtfx(ceiling.memory_rtfx)} RTFx"
    )
    yield (
        f"  so at best {_rtfx(ceiling.ceiling_rtfx)} RTFx; {_rtfx(ceiling.one_after_the_other_rtfx)} where arithmetic and "
        "memory wait for each other"
    )


def _rtfx(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


_HEADER = (
    "dtype    frames/batch  RTFx memory  RTFx files  of ceiling  features  encode  decode    text  padding  peak MB"
    "  USD/1000 h"
)


def _line(row: Mapping[str, Any]) -> str:
    settings = f"auto={row['budget_frames']}" if row["batch_frames"] == "auto" else str(row["batch_frames"])
    start = f"{row['dtype']:5}  {settings:>14}"
    if "error" in row:
        return f"{start}  {row['error']}"
    shares = [row[f"{name}_share"] for name in ("features", "encode", "decode", "text", "padding")]
    usd = row["usd_per_1000_audio_hours"]
    return (
        f"{start} {row['memory_rtfx']:12,.1f} {row['rtfx']:11,.1f} {row['ceiling_reached_share']:11.1%} "
        f"{shares[0]:9.1%} {shares[1]:7.1%} {shares[2]:7.1%} {shares[3]:7.1%} {shares[4]:8.1%} {row['peak_bytes'] / 1e6:8,.0f}"
        f"{'unknown' if usd is None else f'{usd:.2f}':>12}"
    )


def _priced(
    rows: Iterator[dict[str, Any]], transcriber: Transcriber, price_per_hour: float | None
) -> Iterator[dict[str, Any]]:
    """With what an hour of audio from files costs."""
    usd_per_hour, source = price_of(transcriber._recognizer.facts.device_name, price_per_hour)
    for row in rows:
        if "error" not in row:
            row |= speed.usd_per_hours(row["rtfx"], usd_per_hour)
            row |= {"usd_per_hour": usd_per_hour, "price_source": source}
        yield row
