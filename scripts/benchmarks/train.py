"""`python -m scripts.benchmarks.train`: training's speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

from fastscribe.bench.result import DEVICE_HELP, JsonFile, numbers, result
from fastscribe.bench.subject import model_name
from fastscribe.cli import main
from fastscribe.cli.app import MODEL_HELP, find_model, new_app, option, repeated_choice
from fastscribe.cli.terminal import say, show
from fastscribe.config import FloatDtypeName, ModelConfig
from fastscribe.errors import UsageError
from scripts.shapes import SHAPES

if TYPE_CHECKING:
    from scripts.benchmarks.training_speed import Speed

PROGRAM = "python -m scripts.benchmarks.train"
app = new_app()

_CASE = ("ranks", "batch_size", "dtype", "sequence_s")


@app.command(
    epilog="Example: python -m scripts.benchmarks.train --shape parakeet-tdt-0.6b --batch-sizes 8,16,32 --json train.json"
)
def train(
    model: Annotated[
        str | None,
        option("--model", "-m", help=f"Whose shape to train: {MODEL_HELP} Default: the one that comes with it."),
    ] = None,
    shape: Annotated[
        str | None, option("--shape", help="A published model's shape by its name, in place of --model.")
    ] = None,
    batch_sizes: Annotated[str, option("--batch-sizes", help="Sequences a rank, by commas.")] = "1,2,4,8,16",
    dtype: Annotated[
        list[str] | None,
        repeated_choice("--dtype", among=get_args(FloatDtypeName), help="Repeat for several. Default: both."),
    ] = None,
    ranks: Annotated[str, option("--ranks", help="Processes that train together, by commas.")] = "1",
    sequence_s: Annotated[float, option("--sequence-s", min=0.5, max=3600.0, help="Length of a sequence.")] = 16.7,
    device: Annotated[str, option("--device", help=DEVICE_HELP)] = "auto",
    json_file: JsonFile = None,
) -> None:
    """Measure sequences per second in training: whole steps over noise, by batch size, dtype and number of ranks."""
    from fastscribe.pipeline.model_building import choose_device
    from fastscribe.training.data import check_trainable
    from scripts.benchmarks.training_speed import measure

    at, sizes, counts = choose_device(device), numbers(batch_sizes), numbers(ranks, "--ranks")
    name, config = _config(model, shape)
    check_trainable(config, name)
    dtypes = list(dtype or get_args(FloatDtypeName))
    show(f"{name} on {at}, sequences of {sequence_s:g} s")
    show("ranks  batch a rank  dtype    step ms  sequences/s  audio s/s  scaling")
    with result("train", at, _CASE, json_file, PROGRAM) as found:
        found["model"] = name
        for speed in measure(config, at, sizes, dtypes, counts, sequence_s):
            row = speed.row()
            failed = {key: row[key] for key in _CASE} | {"error": "out of memory"}
            found["rows"].append(failed if speed.sequences_per_s is None else row)
            show(_line(speed))


def _config(model: str | None, shape: str | None) -> tuple[str, ModelConfig]:
    """Return a name and the configuration of what to train. Nothing is made. Raises UsageError."""
    from fastscribe.checkpoint.reader import read_checkpoint
    from fastscribe.families.indic.language_heads import of_language

    if model is not None and shape is not None:
        raise UsageError("--model and --shape: one of them")
    if shape is not None and shape not in SHAPES:
        raise UsageError(f"--shape {shape}: not one of {', '.join(SHAPES)}")
    if shape is not None:
        return shape, SHAPES[shape]
    path = find_model(model or "default")
    return model_name(model, path), of_language(read_checkpoint(path, say), None).config


def _line(speed: Speed) -> str:
    row = speed.row()
    start = f"{row['ranks']:5}  {row['batch_size']:12}  {row['dtype']:5}"
    if speed.sequences_per_s is None:
        return f"{start}  out of memory"
    scaling = "" if speed.efficiency is None else f"{100 * speed.efficiency:6.1f} %"
    return f"{start}  {row['step_ms']:9.1f}  {speed.sequences_per_s:11.2f}  {row['audio_s_per_s']:9.1f}  {scaling}"


if __name__ == "__main__":
    main(app)
