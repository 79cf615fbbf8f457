"""`fastscribe bench`: measurements of this machine. Tables go to stderr; the last line of stdout is one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastscribe import __version__
from fastscribe.cli.app import MODEL_HELP, app, option
from fastscribe.errors import OutputError
from fastscribe.model_location import locate
from fastscribe.terminal import say, show

if TYPE_CHECKING:
    import torch

    from fastscribe.bench.train import Speed
    from fastscribe.config import ModelConfig

bench = typer.Typer(no_args_is_help=True, help="Measure this machine.")
app.add_typer(bench, name="bench")

JSON_HELP = "Store the result in this file too."
DEVICE_HELP = "auto, cpu, cuda or cuda:N."


class BenchDtype(str, Enum):
    fp32 = "fp32"
    bf16 = "bf16"


def numbers(text: str) -> list[int]:
    """ "1,2,4" -> [1, 2, 4]"""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r}: not whole numbers above 0, separated by commas")
    return [int(part) for part in parts]


def finish(name: str, device: torch.device, results: Mapping[str, Any], path: Path | None) -> None:
    """Prints what was found, with what it was found on, as the last line of stdout; and stores it."""
    from fastscribe.bench import machine

    stored = {
        "benchmark": name,
        "fastscribe": __version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
        **results,
        "machine": machine.facts(device, Path.cwd()),
    }
    if path is not None:
        try:
            path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(str(path), error) from error
    print(json.dumps(stored))


@bench.command(
    epilog="Example: fastscribe bench train --random parakeet-tdt-0.6b --batch-sizes 8,16,32 --json train.json"
)
def train(
    model: Annotated[
        str | None,
        option("--model", "-m", help=f"Whose shape to train: {MODEL_HELP} Default: the one that comes with it."),
    ] = None,
    random: Annotated[
        str | None, option("--random", help="A published model's shape by its name, in place of --model.")
    ] = None,
    batch_sizes: Annotated[str, option("--batch-sizes", help="Sequences a rank, by commas.")] = "1,2,4,8,16",
    dtype: Annotated[list[BenchDtype] | None, option("--dtype", help="bf16 or fp32; repeat. Default: both.")] = None,
    ranks: Annotated[str, option("--ranks", help="Processes that train together, by commas.")] = "1",
    sequence_s: Annotated[float, option("--sequence-s", min=0.5, help="Length of a sequence.")] = 16.7,
    device: Annotated[str, option("--device", help=DEVICE_HELP)] = "auto",
    json_file: Annotated[Path | None, option("--json", help=JSON_HELP)] = None,
) -> None:
    """Sequences a second in training: whole steps over noise, by batch size, dtype and number of ranks."""
    from fastscribe.bench.train import measure
    from fastscribe.recognizer import choose_device

    at, sizes, counts = choose_device(device), numbers(batch_sizes), numbers(ranks)
    name, config = _config(model, random)
    dtypes = [one.value for one in dtype or (BenchDtype.fp32, BenchDtype.bf16)]
    show(f"{name} on {at}, sequences of {sequence_s:g} s")
    show("ranks  batch a rank  dtype    step ms  sequences/s  audio s/s  scaling")
    rows = []
    for speed in measure(config, at, sizes, dtypes, counts, sequence_s):
        rows.append(speed.row())
        show(_line(speed))
    finish("train", at, {"model": name, "device": str(at), "rows": rows}, json_file)


def _config(model: str | None, random: str | None) -> tuple[str, ModelConfig]:
    if random is not None:
        from fastscribe.bench.shapes import SHAPES

        if random not in SHAPES:
            raise typer.BadParameter(f"--random {random}: not one of {', '.join(SHAPES)}")
        return random, SHAPES[random]
    from fastscribe.checkpoint import read_checkpoint

    path = locate(model or "default", say)
    return model or "the packaged model", read_checkpoint(path).config


def _line(speed: Speed) -> str:
    row = speed.row()
    start = f"{row['ranks']:5}  {row['batch_size']:12}  {row['dtype']:5}"
    if speed.sequences_per_s is None:
        return f"{start}  out of memory"
    scaling = "" if speed.efficiency is None else f"{100 * speed.efficiency:6.1f} %"
    return f"{start}  {row['step_ms']:9.1f}  {speed.sequences_per_s:11.2f}  {row['audio_s_per_s']:9.1f}  {scaling}"
