"""`fastscribe bench throughput`, which `fastscribe bench` alone is too: RTFx by batch budget, and what it costs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from fastscribe.bench.commands.against import PEER_BATCH_SIZES_HELP, PEER_MODEL_HELP, PEER_PYTHON_HELP
from fastscribe.bench.commands.common import DEVICE_HELP, JsonFile, ReportHtml, bench, check_places, result
from fastscribe.bench.commands.subject import BEAM_HELP, MODEL_OPTION_HELP, RANDOM_HELP, load, subject
from fastscribe.bench.peer_comparison.peers import PeerName
from fastscribe.cli.app import option, repeated_choice
from fastscribe.cli.terminal import say, show
from fastscribe.config import DtypeChoice
from fastscribe.errors import UsageError
from fastscribe.pipeline.prices import MAX_USD

if TYPE_CHECKING:
    from fastscribe.bench.roofline import Roofline
    from fastscribe.bench.speed import Measurement, Recordings, Subject
    from fastscribe.transcriber import Transcriber

_PASSES, _QUICK_PASSES = 5, 3
_SECONDS, _QUICK_SECONDS = 90.0, 10.0  # of passes, when it is left to us how much audio there is
_SMALLER = 4  # the budget beside "auto" is that by so much
_WARM_UPS = 2  # one from memory, one from files
_UNITS = ((3600, "h", 1), (60, "min", 0), (1, "s", 0))
_STATISTIC = (
    "rtfx: paths to JSONL on disk; memory_rtfx: batches in host memory to texts with times; medians of the passes, after one "
    "that does not count; model loaded"
)

_NOT_WITH_PEER = ("random", "beam", "batch_frames", "clips", "quick", "price_per_hour")
_ONLY_WITH_PEER = ("peer_python", "peer_model", "peer_batch_sizes")

Frames = int | Literal["auto"]


@dataclass(frozen=True)
class _Settings:
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


@bench.command(
    short_help="RTFx by batch size, from memory and from files; memory; cost.",
    epilog="Example: fastscribe bench --random parakeet-tdt-0.6b --dtype bf16 --json speed.json",
)
def throughput(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recordings, as for transcribe. Default: synthetic, with durations like the leaderboard's."
        ),
    ] = None,
    model: Annotated[str | None, option("--model", "-m", help=MODEL_OPTION_HELP)] = None,
    random: Annotated[str | None, option("--random", help=RANDOM_HELP)] = None,
    beam: Annotated[int | None, option("--beam", min=1, help=BEAM_HELP)] = None,
    batch_frames: Annotated[
        str | None,
        option(
            "--batch-frames",
            metavar="N|auto,...",
            help="Encoder frames per batch, separated by commas. Default: auto, and a quarter of auto.",
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        repeated_choice("--dtype", among=get_args(DtypeChoice), help="Repeat for several. Default: auto."),
    ] = None,
    device: Annotated[str, option("--device", help=DEVICE_HELP)] = "auto",
    clips: Annotated[
        int | None,
        option("--clips", min=1, help="Number of recordings. Default: as many as take a minute or two."),
    ] = None,
    passes: Annotated[
        int | None,
        option("--passes", min=1, help="Number of passes; the median counts. Default: 5, or 3 with --quick."),
    ] = None,
    quick: Annotated[
        bool, option("--quick", help="In about 20 s: fewer passes over less audio, with the automatic batch size.")
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
    against: Annotated[
        list[str] | None,
        repeated_choice(
            "--against",
            among=get_args(PeerName),
            help="Also run this tool, alternately on the same files. Repeat for several.",
        ),
    ] = None,
    peer_python: Annotated[Path | None, option("--peer-python", help=PEER_PYTHON_HELP)] = None,
    peer_model: Annotated[str | None, option("--peer-model", help=PEER_MODEL_HELP)] = None,
    peer_batch_sizes: Annotated[str | None, option("--peer-batch-sizes", help=PEER_BATCH_SIZES_HELP)] = None,
    json_file: JsonFile = None,
    report_html: ReportHtml = None,
) -> None:
    """RTFx by batch size, from memory and from files, beside the machine's limits; memory and cost."""
    dtypes = tuple(dict.fromkeys(dtype or ["auto"]))
    _refuse_what_would_be_dropped(context, bool(against))
    check_places(json_file, report_html, inputs or ())
    if against:
        from fastscribe.bench.commands.against import run

        theirs = (peer_python, passes or _PASSES, json_file, report_html, peer_model, peer_batch_sizes)
        run(against, inputs or (), model, device, dtypes, *theirs)
        return
    passes = passes or (_QUICK_PASSES if quick else _PASSES)
    settings = _Settings(
        tuple(inputs or ()), dtypes, _budgets(batch_frames, quick), clips, passes, quick, price_per_hour
    )
    chosen = subject(model, random, device, list(dtypes), beam)
    with (
        result("throughput", chosen.device, _case(), json_file, report_html) as found,
        tempfile.TemporaryDirectory(prefix="fastscribe-bench-") as folder,
    ):
        _measure(chosen, settings, Path(folder), found)


def _refuse_what_would_be_dropped(context: typer.Context, with_peer: bool) -> None:
    """Raises UsageError for options that the command line has and the measurement it asks for would not read. What the
    environment has is for any command."""
    for name in _NOT_WITH_PEER if with_peer else _ONLY_WITH_PEER:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given = f"--{name.replace('_', '-')}"
            raise UsageError(f"{given}: not with --against" if with_peer else f"{given} is for --against")


def _budgets(text: str | None, quick: bool) -> tuple[Frames, ...] | None:
    if text is None:
        return ("auto",) if quick else None
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "auto" or (part.isdecimal() and int(part) > 0) for part in parts):
        raise typer.BadParameter(f"--batch-frames {text!r}: not numbers above 0, or auto, separated by commas")
    return tuple(dict.fromkeys("auto" if part == "auto" else int(part) for part in parts))


def _case() -> Sequence[str]:
    from fastscribe.bench.speed import CASE

    return CASE


def _measure(chosen: Subject, settings: _Settings, folder: Path, found: dict[str, Any]) -> None:
    """Settings, and rows as they come."""
    from fastscribe.bench import roofline
    from fastscribe.bench.memory import release
    from fastscribe.bench.model_name import about
    from fastscribe.bench.speed import Measurement, Plan

    recordings: Recordings | None = None
    audio = "synthetic" if not settings.inputs else "given"
    found |= {"model": chosen.name, "audio": audio, "passes": settings.passes, "statistic": _STATISTIC, "ceilings": []}
    found["refused"] = chosen.refused
    rows, reaches = found["rows"], found["ceilings"]
    memory_gb_per_s: float | None = None
    (folder / "out").mkdir()
    for dtype in settings.dtypes:
        transcriber = load(chosen, dtype)
        if any(one["dtype"] == transcriber._recognizer.dtype for one in reaches):  # what auto is here
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
        plan = Plan(settings.budgets or (smaller, "auto"), settings.passes)
        ceilings = [measurement.ceiling(frames, memory_gb_per_s) for frames in plan.batch_frames]
        for frames, ceiling in zip(plan.batch_frames, ceilings, strict=True):
            key = {"dtype": transcriber._recognizer.dtype, "batch_frames": frames}
            reaches.append(key | ceiling.row())
            budget = f"auto={measurement.auto_frames}" if frames == "auto" else frames
            for line in _ceiling_lines(f"{key['dtype']}, {budget} frames per batch", ceiling):
                show(line)
        show(_HEADER)
        for row in _priced(measurement.rows(plan, ceilings, folder / "out"), transcriber, settings.price_per_hour):
            rows.append(row)
            show(_line(row))
        del transcriber, measurement
        release(chosen.device)


def _recordings(transcriber: Transcriber, settings: _Settings, folder: Path) -> Recordings:
    from fastscribe.bench import speed, throughput_passes

    if settings.clips is not None:
        return (
            speed.Recordings(settings.inputs, settings.clips)
            if settings.inputs
            else speed.make_recordings(folder, settings.clips)
        )
    rtfx = speed.guessed_rtfx(transcriber)
    seconds, fewest = (_QUICK_SECONDS, speed.QUICK_FEWEST) if settings.quick else (_SECONDS, speed.FEWEST)
    amount = speed.amount(rtfx, seconds, settings.all_passes, fewest)
    if not settings.inputs:
        return speed.make_recordings(folder, amount, rtfx)
    clips = throughput_passes.first_of(transcriber, settings.inputs, amount * speed.MEAN_S)
    if clips is not None:
        say(f"the first {clips} of these recordings are taken, which hold enough; --clips takes another number")
    return speed.Recordings(settings.inputs, clips, rtfx=rtfx)


def _about(measurement: Measurement, chosen: Subject, passes: int) -> Iterator[str]:
    for failure in measurement.failures:
        say(f"{failure.path}: left out: {failure.message}")
    count, copies, rtfx = len(measurement.lengths_s), measurement.recordings.copies, measurement.recordings.rtfx
    often = f", {copies} times a pass" if copies > 1 else ""
    yield (
        f"{chosen.name} on {measurement.transcriber._recognizer.device_name}: {count} utterances of "
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
    from fastscribe.bench.price_comparison import price_of, usd_per_hours

    usd_per_hour, source = price_of(transcriber._recognizer.device_name, price_per_hour)
    for row in rows:
        if "error" not in row:
            row |= usd_per_hours(row["rtfx"], usd_per_hour)
            row |= {"usd_per_hour": usd_per_hour, "price_source": source}
        yield row
