"""How fast the processor multiplies a model's matrices in each dtype: measured once, and kept in the user's cache folder.

A feed-forward layer and a square matrix of the encoder are converted as the recognizer converts a model, and timed by turns.
One thread computes, and its processor time counts: other programs that share the machine hardly change it. The smallest of a
few times is kept, under a key of all that decides it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import get_clock_info, perf_counter, thread_time
from typing import NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import nn

from fastscribe._system.processors import cpu_name, instructions
from fastscribe._system.safe_files import write_atomic
from fastscribe._system.user_cache import cache_folder
from fastscribe.config import EncoderSettings
from fastscribe.errors import first_line
from fastscribe.families.cpu_form import to_cpu_form_, torch_dtype
from fastscribe.version import __version__

_ROWS = 800  # half of a CPU batch; more change no rate
_FIRST_ROWS = 8
_HOPELESS = (
    8.0  # times the fastest dtype's time for a few rows; such dtypes run in a plain loop, which would take minutes
)
_MIN_ROUNDS, _MAX_ROUNDS, _MAX_S = 2, 6, 1.0
_MAX_WAIT_S = 30.0  # for another process that measures
_MAX_CLOCK_STEP_S = 1e-3  # of a clock that can time a product


class Widths(NamedTuple):
    """Inputs and outputs of an encoder's largest matrices, and whether loops run between them (conformer/cpu_layers.py)."""

    inputs: int
    outputs: int
    with_loops: bool = False


Pass = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Rates:
    """Billions of operations a second of one thread, by dtype. A dtype that is hopelessly slow is not there."""

    gflop_per_s: Mapping[str, float]
    is_new: bool = False  # measured by this call

    def text(self) -> str:
        """Return the rates for people, the fastest first."""
        ordered = sorted(self.gflop_per_s.items(), key=lambda item: -item[1])
        return ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in ordered) + " GFLOP/s a thread"


class CannotKeep(Exception):
    """The rates cannot be kept, so nothing was measured: the next run might find others. The text is the reason."""


def widths_of(encoder: EncoderSettings) -> Widths:
    """Return those of the encoder's largest matrices."""
    return Widths(*encoder.largest_matrix, encoder.has_loops)


def cpu_rates(widths: Widths, dtypes: Sequence[str]) -> Rates:
    """Return the rates of dtypes that work here, measured or as an earlier run measured them.

    Raises:
        CannotKeep: The cache folder cannot be written, or another process has been measuring for long.
    """
    try:
        path, key = cache_folder() / "dtype-rates.json", _key(widths, dtypes)
        found = _kept(path).get(key)
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock"), timeout=_MAX_WAIT_S):
                found = _kept(path).get(key)  # another process may have been quicker
                if found is None:
                    # A write that fails must come before the measurement, so that no run goes by rates that are not kept.
                    write_atomic(path, _content(_kept(path)))
                    found = measure(widths, dtypes)
                    write_atomic(path, _content(_kept(path) | {key: found}))
                    return Rates(found, is_new=True)
    except Timeout as error:
        raise CannotKeep(f"another process holds {error.lock_file}") from error
    except RuntimeError as error:  # a user without a home
        raise CannotKeep(first_line(error)) from error
    except OSError as error:
        raise CannotKeep(f"{path.parent} cannot be written: {error.strerror or first_line(error)}") from error
    return Rates(found)


def measure(widths: Widths, dtypes: Sequence[str]) -> dict[str, float]:
    """Return billions of operations a second of one thread, by dtype, in about a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return _measured(widths, dtypes)
    finally:
        torch.set_num_threads(threads)


def _measured(widths: Widths, dtypes: Sequence[str]) -> dict[str, float]:
    width, hidden, _ = widths
    passes = {dtype: _pass_of(widths, dtype) for dtype in dtypes}
    few = {dtype: min(_time(passes[dtype], _FIRST_ROWS, width, dtype) for _ in range(2)) for dtype in dtypes}
    hopeful = [dtype for dtype in dtypes if few[dtype] <= _HOPELESS * min(few.values())]
    seconds = _smallest({dtype: partial(_time, passes[dtype], _ROWS, width, dtype) for dtype in hopeful})
    flop = 2.0 * _ROWS * (2 * width * hidden + width * width)
    return {dtype: round(1e-9 * flop / max(taken_s, 1e-9), 2) for dtype, taken_s in seconds.items()}


def _smallest(calls: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Return the smallest time of each, taken by turns."""
    start, taken_s = perf_counter(), dict.fromkeys(calls, float("inf"))
    for round_number in range(_MAX_ROUNDS):
        if round_number >= _MIN_ROUNDS and perf_counter() - start > _MAX_S:
            break
        for dtype, call in calls.items():
            taken_s[dtype] = min(taken_s[dtype], call())
    return taken_s


class _Layer(nn.Module):
    """Matrices under the names by which the CPU's forms replace them, all of one value: no dtype's time depends on it."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear1 = _matrix(width, hidden)
        self.activation: nn.Module = nn.SiLU()
        self.linear2 = _matrix(hidden, width)
        self.linear_out = _matrix(width, width)

    def forward(self, x_RD: torch.Tensor) -> torch.Tensor:
        y_RD: torch.Tensor = self.linear_out(self.linear2(self.activation(self.linear1(x_RD))))
        return y_RD


def _matrix(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, device="meta")  # no random numbers of the caller's generator
    linear.weight = nn.Parameter(torch.full((outputs, inputs), 1.0 / inputs), requires_grad=False)
    linear.bias = nn.Parameter(torch.zeros(outputs), requires_grad=False)
    return linear


def _pass_of(widths: Widths, dtype: str) -> Pass:
    """Return the function that computes rows [R, D] as a model of these widths does: with the loops of wide encoders."""
    layer = _Layer(widths.inputs, widths.outputs).eval()
    to_cpu_form_(layer, dtype, quantises=True)
    if not widths.with_loops:
        return layer
    from fastscribe.families.conformer.cpu_layers import CpuFeedForward, Matrix, Norm, Product, Stream

    feed_forward, linear_out = CpuFeedForward(layer.linear1, layer.linear2), Matrix(layer.linear_out)
    norms = [Norm(nn.LayerNorm(widths.inputs), matrix.stores) for matrix in (feed_forward, linear_out)]

    def with_loops(x_RD: torch.Tensor) -> torch.Tensor:
        stream = Stream(x_RD[None], torch.tensor([len(x_RD)]), None)
        rows = stream.norm(norms[0])
        rows = stream.add_norm(feed_forward(stream, rows), np.float32(1.0), norms[1])
        product: Product = linear_out(rows, stream.dtype)
        return product.values_RN

    return with_loops


def _time(compute: Pass, rows: int, width: int, dtype: str) -> float:
    """Return the seconds of a pass."""
    x_RD = torch.ones(rows, width, dtype=torch_dtype(dtype))
    clock = thread_time if get_clock_info("thread_time").resolution <= _MAX_CLOCK_STEP_S else perf_counter
    start = clock()
    compute(x_RD)
    return clock() - start


def _key(widths: Widths, dtypes: Sequence[str]) -> str:
    """Return all that decides the rates, in words."""
    limits = [
        f"{name}={os.environ[name]}" for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY") if name in os.environ
    ]
    return "; ".join(
        (
            f"{widths.inputs} x {widths.outputs} {'with loops ' if widths.with_loops else ''}in {', '.join(dtypes)}",
            cpu_name(),
            " ".join(sorted(instructions())),
            f"torch {torch.__version__}, fastscribe {__version__}",
            *limits,
        )
    )


def _kept(path: Path) -> dict[str, dict[str, float]]:
    """Return the rates in the file; none if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return {key: rates for key, rates in found.items() if _is_rates(rates)} if isinstance(found, dict) else {}


def _is_rates(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(rate, (int, float)) for rate in value.values())


def _content(rates: Mapping[str, Mapping[str, float]]) -> bytes:
    return (json.dumps(rates, indent=2) + "\n").encode()
