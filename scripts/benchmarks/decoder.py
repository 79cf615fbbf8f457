"""`python -m scripts.benchmarks.decoder`: time of a transducer's decoding, by loop and graph mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastscribe.bench.result import DEVICE_HELP, JsonFile, numbers, result
from fastscribe.bench.subject import MODEL_OPTION_HELP, load, subject
from fastscribe.cli import main
from fastscribe.cli.app import new_app, option
from fastscribe.cli.terminal import say, show
from fastscribe.config import DtypeChoice

PROGRAM = "python -m scripts.benchmarks.decoder"
app = new_app()

_BATCH_SIZES = {"cpu": "1,4,16", "cuda": "1,8,32,128,256"}
_QUICK_BATCH_SIZES, _QUICK_S = "1,4", 1.0
_STATISTIC = (
    "ms: median from frames to hypotheses on the host; encoder_ms: from features to frames; decoder_share: of these two alone, "
    "not of a run, which also copies, makes features and writes texts; recordings of duration_s down to nine tenths of it, "
    "3 to 4 labels a second; greedy decodes row after row, as many as the time allows"
)

_UNEQUAL = (
    "where rows differ from greedy's, products of other shapes may have been rounded otherwise; --dtype fp32 tells"
)
_UNEQUAL_IN_FP32 = "rows differ from greedy's in fp32, which is an error: please report it"


@app.command(epilog="Example: python -m scripts.benchmarks.decoder --model parakeet-rnnt-1.1b --batch-sizes 1,32,256")
def decoder(
    model: Annotated[str | None, option("--model", "-m", help=f"Whose shape: {MODEL_OPTION_HELP}")] = None,
    batch_sizes: Annotated[
        str | None, option("--batch-sizes", help="Recordings a batch, by commas. Default: 1,4,16; on a GPU up to 256.")
    ] = None,
    duration_s: Annotated[float, option("--duration-s", min=0.1, help="Seconds a recording.")] = 8.0,
    dtype: Annotated[DtypeChoice, option("--dtype", help="int8 and fp8 hold for the encoder alone.")] = ("auto"),
    max_seconds: Annotated[float, option("--max-seconds", min=0.1, help="For greedy, each batch size.")] = 10.0,
    quick: Annotated[bool, option("--quick", help="Batches of 1 and 4, and 1 s for greedy.")] = False,
    device: Annotated[str, option("--device", help=DEVICE_HELP)] = "auto",
    json_file: JsonFile = None,
) -> None:
    """Measure the greedy loop, label-looping and its CUDA graphs: steps, microseconds per step, share of the encoder's time."""
    sizes = numbers(batch_sizes) if batch_sizes else None
    chosen = subject(model, device, [dtype])
    from scripts.benchmarks import decode_loops

    sizes = sizes or numbers(_QUICK_BATCH_SIZES if quick else _BATCH_SIZES[chosen.device.type])
    transcriber = load(chosen, dtype)
    recognizer = transcriber._recognizer
    is_random = transcriber._has_random_weights
    if not is_random:
        say(
            "a random predictor and joint of this shape stand in for the model's own, and are tuned to speak (0.6B: a minute)"
        )
    loops = decode_loops.Loops(chosen.name, transcriber, is_random)
    show(f"{chosen.name} in {recognizer.dtype} on {recognizer.device_name}, recordings of {duration_s:g} s")
    show("batch  mode       steps   us a step         ms  encoder ms  share of both  equal to greedy")
    settings = {"model": chosen.name, "dtype": recognizer.dtype, "duration_s": duration_s, "statistic": _STATISTIC}
    with result("decoder", chosen.device, decode_loops.CASE, json_file, PROGRAM) as found:
        found |= {**settings, "random_weights": is_random}
        for row in loops.rows(sizes, duration_s, min(max_seconds, _QUICK_S) if quick else max_seconds):
            found["rows"].append(row)
            show(_line(row))
        if any(row.get("equal_to_greedy_share", 1.0) < 1.0 for row in found["rows"]):
            say(_UNEQUAL_IN_FP32 if recognizer.dtype == "fp32" else _UNEQUAL)


def _line(row: Mapping[str, Any]) -> str:
    start = f"{row['batch_size']:5}  {row['mode']:9}"
    if "error" in row:
        return f"{start}  {row['error']}"
    same = f"{row['equal_to_greedy_share']:.1%} of {row['rows_compared']}"
    if row["mode"] == "greedy":
        same = "" if row["ms"] is not None else f"(in time: {row['rows_compared']} rows)"
    steps, ms, share = (row[key] for key in ("steps", "ms", "decoder_share"))
    cells = ["-" if steps is None else str(steps), f"{row['us_per_step']:.1f}", "-" if ms is None else f"{ms:.2f}"]
    cells += [f"{row['encoder_ms']:.2f}", "-" if share is None else f"{share:.1%}"]
    widths = (6, 11, 10, 11, 14)
    return " ".join(
        [start, *(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), f" {same}"]
    ).rstrip()


if __name__ == "__main__":
    main(app)
