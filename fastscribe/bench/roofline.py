"""The speed that a machine could reach with a model: what it multiplies and copies in a second, measured, over the work.

The matrices are the layers' own, in the form in which a Recognizer of that dtype runs them (oneDNN's layout on a CPU, 8
bits where asked), with as many rows as a batch has frames. A real run can at best be as fast as the slower of the two
rates allows; where arithmetic and memory traffic do not overlap, as fast as both one after the other. The memory's rate is
that of copies beyond any cache: what a small model leaves in a processor's caches moves faster. Data are random, because zeros
run faster; calls are warmed up and repeated, on the device's own clock on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from fastscribe.config import EncoderSettings
from fastscribe.cuda.device import free_bytes
from fastscribe.families.blocks.forms import pack_linears_
from fastscribe.families.blocks.fp8 import quantise_fp8_
from fastscribe.families.blocks.int8 import Int8Linear, quantise_int8_, quantise_rows
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.granite.config import GraniteConfig
from fastscribe.families.jasper.config import JasperConfig
from fastscribe.families.model import torch_dtype

_MAX_ROWS = 32_768
_COPY_BYTES = {"cpu": 1 << 28, "cuda": 4 << 30}
_MEASURED_S = 0.2  # a matrix


@dataclass(frozen=True)
class Timing:
    """Milliseconds, of which `ms` is the median; `first_ms` is the first call's, with what is compiled or captured then."""

    ms: float
    min_ms: float
    max_ms: float
    first_ms: float
    runs: int


def time_call(
    call: Callable[[], object], device: torch.device, seconds: float = 0.3, least: int = 3, most: int = 100
) -> Timing:
    """`call` repeated for about `seconds`, after three that do not count."""
    first_ms = wall_ms(call, device)
    wall_ms(call, device)
    runs = max(least, min(most, int(1000 * seconds / max(1e-3, wall_ms(call, device)))))
    times = _events_ms(call, runs) if device.type == "cuda" else [wall_ms(call, device) for _ in range(runs)]
    return Timing(median(times), min(times), max(times), first_ms, runs)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wall_ms(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds from an idle device until it is idle again."""
    synchronize(device)
    start = perf_counter()
    call()
    synchronize(device)
    return 1000 * (perf_counter() - start)


def _events_ms(call: Callable[[], object], runs: int) -> list[float]:
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    for start, end in marks:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks]


def matmul(device: torch.device, m: int, k: int, n: int, dtype: torch.dtype) -> dict[str, float]:
    """[m, k] x [k, n], the second stored as nn.Linear stores it."""
    a = torch.randn(m, k, device=device, dtype=dtype)
    b = torch.randn(n, k, device=device, dtype=dtype)
    return _rate("tflop_per_s", 2e-9 * m * k * n, time_call(lambda: a @ b.t(), device))


def scaled_matmul(device: torch.device, m: int, k: int, n: int, scales: str) -> dict[str, float]:
    """The same in fp8 (e4m3) with bf16 results; `scales` is "tensor" or "row"."""
    a = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
    shape_a, shape_b = ((m, 1), (1, n)) if scales == "row" else ((), ())
    scale_a, scale_b = torch.ones(shape_a, device=device), torch.ones(shape_b, device=device)

    def call() -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)

    return _rate("tflop_per_s", 2e-9 * m * k * n, time_call(call, device))


def _rate(name: str, amount: float, timing: Timing) -> dict[str, float]:
    return {name: amount / timing.ms, **asdict(timing)}


def copy(device: torch.device, num_bytes: int) -> dict[str, float]:
    """Device to device; bytes read and bytes written both count."""
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _rate("gb_per_s", 2e-6 * num_bytes, time_call(lambda: target.copy_(source), device))


def host_to_device(device: torch.device, num_bytes: int, pinned: bool) -> dict[str, float]:
    source = torch.zeros(num_bytes, dtype=torch.uint8)
    if pinned:
        source = source.pin_memory()
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    return _rate("gb_per_s", 1e-6 * num_bytes, time_call(lambda: target.copy_(source, non_blocking=True), device))


class _LayerMatrices(nn.Module):
    """One conformer layer's, under the names by which the inference forms replace them."""

    def __init__(self, encoder: EncoderConfig | GraniteConfig) -> None:
        super().__init__()
        width, hidden, bias = encoder.d_model, encoder.ff_hidden, encoder.use_bias
        channels = encoder.conv_width if isinstance(encoder, GraniteConfig) else width
        self.linear1 = nn.Linear(width, hidden, bias=bias)
        self.linear2 = nn.Linear(hidden, width, bias=bias)
        self.linear_qkv = nn.Linear(width, 3 * width, bias=bias)
        self.linear_out = nn.Linear(width, width, bias=bias)
        self.pointwise1 = nn.Linear(width, 2 * channels, bias=bias)
        self.pointwise2 = nn.Linear(channels, width, bias=bias)


class _BlockMatrices(nn.Module):
    """Each size of a Jasper encoder's convolutions once, as the matrix that it multiplies every frame's inputs with."""

    def __init__(self, encoder: JasperConfig) -> None:
        super().__init__()
        channels, sizes = encoder.num_mels, set()
        for block in encoder.blocks:
            for _ in range(min(2, block.repeat)):
                sizes.add((channels * (1 if block.separable else block.kernel) // block.groups, block.filters))
                channels = block.filters
        for inputs, outputs in sorted(sizes):
            self.add_module(f"from_{inputs}_to_{outputs}", nn.Linear(inputs, outputs))


_MATRICES: dict[type, Callable[[Any], nn.Module]] = {
    EncoderConfig: _LayerMatrices,
    GraniteConfig: _LayerMatrices,
    JasperConfig: _BlockMatrices,
}


@dataclass(frozen=True)
class Roofline:
    """Rates of the machine and work of a second of audio, weights read once a batch included."""

    matrix_tflop_per_s: float
    memory_gb_per_s: float
    gflop_per_audio_s: float
    mb_per_audio_s: float

    @property
    def matrix_rtfx(self) -> float:
        return 1000 * self.matrix_tflop_per_s / self.gflop_per_audio_s

    @property
    def memory_rtfx(self) -> float:
        return 1000 * self.memory_gb_per_s / self.mb_per_audio_s

    @property
    def ceiling_rtfx(self) -> float:
        return min(self.matrix_rtfx, self.memory_rtfx)

    @property
    def one_after_the_other_rtfx(self) -> float:
        return 1 / (1 / self.matrix_rtfx + 1 / self.memory_rtfx)

    def row(self) -> dict[str, Any]:
        names = ("matrix_rtfx", "memory_rtfx", "ceiling_rtfx", "one_after_the_other_rtfx")
        return asdict(self) | {name: getattr(self, name) for name in names}


def matrix_rate(encoder: EncoderSettings, device: torch.device, dtype: str, rows: int) -> float:
    """TFLOP/s over a layer's matrices, each by the share of the work that it has; feed-forward ones are there twice."""
    with torch.inference_mode():
        layer = _MATRICES[type(encoder)](encoder).eval()
        sizes = {
            name: (one.in_features, one.out_features)
            for name, one in layer.named_children()
            if isinstance(one, nn.Linear)
        }
        _prepare_(layer, device, dtype)
        rows, flop, total_ms = min(rows, _MAX_ROWS), 0.0, 0.0
        for name, matrix in layer.named_children():
            inputs, outputs = sizes[name]
            call = _product(matrix, torch.randn(rows, inputs, device=device).to(torch_dtype(dtype)))
            times = 2 if name in ("linear1", "linear2") else 1
            total_ms += times * time_call(call, device, seconds=_MEASURED_S).ms
            flop += times * 2.0 * rows * inputs * outputs
    return 1e-9 * flop / total_ms


def _product(matrix: nn.Module, x_RK: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return the call of the product alone: rows for int8 are quantised already, which is no arithmetic of the model's."""
    if isinstance(matrix, Int8Linear):
        return partial(matrix.product, quantise_rows(x_RK)[0], x_RK.dtype)
    return partial(matrix, x_RK)


def memory_rate(device: torch.device) -> float:
    """GB/s of a large copy, bytes read and bytes written."""
    num_bytes = _COPY_BYTES[device.type]
    if device.type == "cuda":
        num_bytes = min(num_bytes, free_bytes(device) // 4)
    return copy(device, num_bytes)["gb_per_s"]


def _prepare_(layer: nn.Module, device: torch.device, dtype: str) -> None:
    """Prepare it as the recognizer prepares a model."""
    if dtype == "int8":
        quantise_int8_(layer)
    layer.to(device, torch_dtype(dtype))
    if dtype == "fp8":
        quantise_fp8_(layer)
    if device.type == "cpu":
        pack_linears_(layer, torch_dtype(dtype))
