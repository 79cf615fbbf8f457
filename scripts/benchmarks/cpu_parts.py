"""Time by part of a conformer encoder on a CPU, beside what its products take alone: where a pass could still gain.

    python -m scripts.benchmarks.cpu_parts [--shape parakeet-tdt-0.6b] [--batch 8x16 --batch 55x2.9] --json FILE

Three layers of random weights compute batches of noise in every dtype, in one thread. The figures are that thread's
processor time for a layer, the smallest of the passes, taken by turns: other programs that share the machine change them
least. A product "alone" is the same call again, right after the pass: its ceiling. `other` is what no part covers:
attention's products, allocation, Python. The plain layer has torch's operators (conformer/encoder.py) in place of the loops
(blocks/row_kernels.py).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any
from unittest.mock import patch

import torch

from fastscribe._system.malloc_tuning import disable_malloc_trim
from fastscribe.bench.machine import facts
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.cpu_layers import Matrix, Product, Rows, Stream, conformer_for_cpu_
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.cpu_form import to_cpu_form_, torch_dtype
from scripts.shapes import SHAPES

DTYPES = ("fp32", "bf16", "int8")
_LAYERS = 3  # what a pass does once, such as the positions, is divided by it


def encoder_of(config: EncoderConfig, dtype: str, with_loops: bool) -> Encoder:
    """Return a small encoder as a Recognizer builds it, or with the plain layers."""
    torch.manual_seed(0)
    encoder = Encoder(replace(config, num_layers=_LAYERS)).eval().requires_grad_(False)
    encoder.optimise_()
    to_cpu_form_(encoder, dtype, quantises=True)
    if with_loops:
        conformer_for_cpu_(encoder)
    return encoder


@dataclass
class Parts:
    """Seconds by part of a pass, and the calls that were products."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, list[Callable[[], Product]]] = field(default_factory=lambda: defaultdict(list))


@contextmanager
def watched() -> Iterator[Parts]:
    """Collect the parts of what runs meanwhile."""
    parts, run, multiply = Parts(), Stream.run, Matrix.forward

    def timed_run(stream: Stream, loop: str, *arguments: Any) -> None:
        start = thread_time()
        run(stream, loop, *arguments)
        parts.seconds[loop] += thread_time() - start

    def timed_product(matrix: Matrix, rows: Rows, dtype: torch.dtype) -> Product:
        start = thread_time()
        product = multiply(matrix, rows, dtype)
        name = f"product {rows.values_RN.shape[1]} x {product.values_RN.shape[1]}"
        parts.seconds[name] += thread_time() - start
        parts.calls[name].append(partial(multiply, matrix, rows, dtype))
        return product

    with patch.object(Stream, "run", timed_run), patch.object(Matrix, "forward", timed_product):
        yield parts


def seconds_of(call: Callable[[], object]) -> float:
    start = thread_time()
    call()
    return thread_time() - start


def one_pass(encoder: Encoder, plain: Encoder, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> dict[str, float]:
    """Return seconds by part of a pass through a layer, of its products alone, and of the plain layer."""
    with watched() as parts:
        layer_s = seconds_of(lambda: encoder.layers(x_BTD.clone(), lengths_B))
    times = {**parts.seconds, "other": layer_s - sum(parts.seconds.values()), "layer": layer_s}
    for name, calls in parts.calls.items():
        times[f"{name} alone"] = sum(seconds_of(call) for call in calls)
    times["plain layer"] = seconds_of(lambda: plain.layers(x_BTD.clone(), lengths_B))
    return times


def measure(config: EncoderConfig, rows: int, seconds: float, passes: int) -> list[dict[str, Any]]:
    """Return a row for each dtype, with milliseconds by part of a batch of `rows` recordings."""
    num_frames = config.num_frames(round(100 * seconds))
    forms = {dtype: (encoder_of(config, dtype, True), encoder_of(config, dtype, False)) for dtype in DTYPES}
    x_BTD, lengths_B = torch.randn(rows, num_frames, config.d_model), torch.full((rows,), num_frames)
    least: dict[str, dict[str, float]] = {dtype: {} for dtype in DTYPES}
    for _ in range(passes + 1):
        for dtype, (encoder, plain) in forms.items():
            for part, taken_s in one_pass(encoder, plain, x_BTD.to(torch_dtype(dtype)), lengths_B).items():
                least[dtype][part] = min(taken_s, least[dtype].get(part, math.inf))
    gflop = products_gflop(config, rows * num_frames)
    return [
        {
            "dtype": dtype,
            "batch": f"{rows} x {seconds:g} s",
            "ms": {part: round(1000 * taken_s / _LAYERS, 2) for part, taken_s in least[dtype].items()},
            "gflop_per_s": {name: round(_LAYERS * work / least[dtype][name]) for name, work in gflop.items()},
        }
        for dtype in DTYPES
    ]


def products_gflop(config: EncoderConfig, num_rows: int) -> dict[str, float]:
    """Return the work of a layer's products by their name."""
    width, hidden = config.d_model, config.ff_hidden
    counts = {(width, hidden): 2, (hidden, width): 2, (width, 3 * width): 1, (width, 2 * width): 1, (width, width): 2}
    return {f"product {k} x {n}": count * 2e-9 * num_rows * k * n for (k, n), count in counts.items()}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each part, with milliseconds by dtype and what its products reach of their rate alone."""
    lines = []
    for batch in dict.fromkeys(row["batch"] for row in rows):
        ms = {(row["dtype"], part): taken for row in rows if row["batch"] == batch for part, taken in row["ms"].items()}
        lines.append(f"{batch:<28}" + "".join(f"{dtype:>18}" for dtype in DTYPES))
        for part in dict.fromkeys(part for _, part in ms if not part.endswith(" alone")):
            cells = []
            for dtype in DTYPES:
                taken, alone = ms.get((dtype, part)), ms.get((dtype, f"{part} alone"))
                cell = "" if taken is None else f"{taken:.2f} ms"
                cells.append(cell if taken is None or alone is None else f"{cell} ({alone / taken:.0%})")
            lines.append(f"{part:<28}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="parakeet-tdt-0.6b", help="a name in scripts/shapes.py")
    parser.add_argument("--batch", action="append", help="recordings x seconds; repeatable. Default: 8x16 and 55x2.9")
    parser.add_argument("--passes", type=int, default=12)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    config = SHAPES[given.shape].encoder
    if not isinstance(config, EncoderConfig):
        raise SystemExit(f"{given.shape}: its encoder is no FastConformer")
    disable_malloc_trim()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for batch in given.batch or ("8x16", "55x2.9"):
            recordings, seconds = batch.split("x")
            rows += measure(config, int(recordings), float(seconds), given.passes)
    print(table(rows), file=sys.stderr)
    document = {
        "benchmark": "cpu parts",
        "shape": given.shape,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "statistic": f"processor time of one thread, smallest of {given.passes + 1} passes by turns; a layer of {_LAYERS}",
        "rows": rows,
        "machine": facts(torch.device("cpu"), Path(__file__).resolve().parents[2]),
    }
    text = json.dumps(document)
    if given.json is not None:
        given.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
