"""`python -m scripts.benchmarks.loss`: memory and time of the transducer losses."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

from fastscribe.bench.result import DEVICE_HELP, JsonFile, check_output, numbers, result
from fastscribe.cli import main
from fastscribe.cli.app import new_app, option, repeated_choice
from fastscribe.cli.terminal import show
from fastscribe.errors import MissingExtra, OutputError
from fastscribe.report.files import check_place
from fastscribe.training.plot import is_plot
from scripts.benchmarks import loss_cases
from scripts.benchmarks.loss_cases import LossDtypeName

PROGRAM = "python -m scripts.benchmarks.loss"
app = new_app()

_BATCH_SIZES = {"cpu": [1, 4], "cuda": [8, 32, 64]}
_HEADLINE_BATCH = {"cpu": 4, "cuda": 1024}
_CASE = ("form", "library", "backend", "dtype", "batch_size", "num_frames", "num_labels", "num_tokens", "joint_width")
_MAX_S, _QUICK_S = 10.0, 1.0
_QUICK_LABELS = (100,)
_STATISTIC = "ms: median of forward and backward; bytes: peak with inputs and gradients, beside the formula's"


def _usable_png(path: Path | None) -> Path | None:
    return None if path is None else check_place("--plot", path, is_plot, "PNG of fastscribe's")


@app.command(epilog="Example: python -m scripts.benchmarks.loss --batch-sizes 1,8 --json loss.json --plot loss.png")
def loss(
    batch_sizes: Annotated[
        str | None, option("--batch-sizes", help="Utterances, by commas. Default: 1,4; on a GPU 8,32,64.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        repeated_choice("--dtype", among=get_args(LossDtypeName), help="Repeat for several. Default: all."),
    ] = None,
    device: Annotated[str, option("--device", help=DEVICE_HELP)] = "auto",
    quick: Annotated[
        bool,
        option("--quick", help="100 labels and the smallest batch only; on a CPU, no joint in fp16 unless asked for."),
    ] = False,
    max_seconds: Annotated[
        float | None,
        option(
            "--max-seconds",
            min=0.1,
            help=f"A kind of case that takes longer is not tried larger. Default: {_MAX_S:g}; with --quick {_QUICK_S:g}.",
        ),
    ] = None,
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None,
        option("--plot", callback=_usable_png, help="Draw memory and time into this PNG (extra: plots)."),
    ] = None,
) -> None:
    """Memory and time of the transducer losses, beside the formula: 200 frames, 28 and 1024 tokens, 100 to 200 labels."""
    check_output(json_file, [] if plot is None else [plot])
    if plot is not None and find_spec("matplotlib") is None:
        raise MissingExtra("--plot", "matplotlib", "plots")
    from fastscribe.pipeline.model_building import choose_device
    from fastscribe.training.loss.logits import compiled_for

    at = choose_device(device)
    check = getattr(compiled_for(at), "check_usable", None)
    if check is not None:
        check()
    sizes = numbers(batch_sizes) if batch_sizes else _BATCH_SIZES[at.type]
    dtypes = [name for name in get_args(LossDtypeName) if not dtype or name in dtype]
    most_s = max_seconds or (_QUICK_S if quick else _MAX_S)
    others = loss_cases.libraries()
    usable = [name for name, problem in others.items() if problem is None]
    for name, problem in others.items():
        show(f"{name}: {problem or 'compared with'}")
    show("form    whose       dtype  tokens  labels  batch    peak MB  formula MB  joint at once MB         ms")
    joint_dtypes = [name for name in dtypes if dtype or at.type != "cpu" or name != "fp16"]  # few CPUs multiply in it
    few = ([min(sizes)], dtypes, usable, _QUICK_LABELS, joint_dtypes) if quick else (sizes, dtypes, usable)
    headline_batch = 1 if quick and at.type == "cpu" else _HEADLINE_BATCH[at.type]
    with result("loss", at, _CASE, json_file, PROGRAM) as found:
        found |= {"statistic": _STATISTIC, "other_libraries": others}
        for row in loss_cases.table(at, list(loss_cases.cases(*few)), most_s):
            found["rows"].append(row)
            show(_line(row))
        found["headline"] = loss_cases.headline(at, "bf16", headline_batch, most_s)
        for line in _about(found["headline"]):
            show(line)
    if plot is not None:
        try:
            loss_cases.plot(found["rows"], plot)
        except OSError as error:
            raise OutputError(str(plot), error) from error


def _line(row: Mapping[str, Any]) -> str:
    whose = row["backend"] if row["library"] == "fastscribe" else row["library"]
    start = f"{row['form']:7} {whose:10} {row['dtype']:>6} {row['num_tokens']:>7} {row['num_labels']:>7} {row['batch_size']:>6}"
    if "error" in row:
        return f"{start}  {row['error']}"
    peak = f"{row['peak_bytes'] / 1e6:10.1f}" if "peak_bytes" in row else f"{'?':>10}"
    sizes = f"{peak} {row['formula_bytes'] / 1e6:11.1f} {row['materialised_fp32_bytes'] / 1e6:17.0f}"
    return f"{start} {sizes} {row['ms']:10.1f}"


def _about(headline: Mapping[str, Any]) -> list[str]:
    shape, small = headline["shape"], headline["measured"]
    sizes = f"{shape['batch_size']} utterances of {shape['num_frames']} frames and {shape['num_labels']} labels"
    whole, here = headline["materialised_fp32_bytes"] / 1e9, headline["formula_bytes"] / 1e9
    fitting = [f"{batch} in {name}" for name, batch in headline["largest_batch_by_formula"].items()]
    found = small.get("error") or (
        f"peak {small.get('peak_bytes', 0) / 1e6:.0f} MB, formula {small['formula_bytes'] / 1e6:.0f} MB, {small['ms']:.0f} ms"
    )
    return [
        f"{sizes}, joint width {shape['joint_width']}, {shape['num_tokens']} tokens, TDT, 16 bits, by the formula: "
        f"{here:.2f} GB here, {headline['formula_bytes_on_a_gpu'] / 1e9:.2f} GB on a GPU, {whole:.0f} GB as a joint in fp32",
        f"the largest batch of these by the formula: {', '.join(fitting)}",
        f"measured with {small['batch_size']} of them: {found}",
    ]


if __name__ == "__main__":
    main(app)
