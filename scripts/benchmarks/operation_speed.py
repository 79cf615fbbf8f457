"""Compare the Triton form of each encoder operation with its torch form: time, rates, and error against float32.

Subsampling's convolutions run over eight times as many mel frames, or twice, with a quarter of the width as channels.

Shapes: B batch, T frames, D width, H heads, K head width, R rows of the position table, W taps, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fastscribe.bench.roofline import time_call
from fastscribe.families.conformer import operations as definition
from fastscribe.families.conformer.config import subsampled

_TAPS, _MELS = 9, 128
Arguments = tuple[Any, ...]
NAMES = (
    "rel_attention", "glu_depthwise", "layer_norm", "layer_norm_twice_", "first_convolutions", "relu_depthwise",
)  # fmt: skip


def operations(form: str) -> definition.Operations:
    """ "torch" or "triton"; "triton" raises if Triton is missing."""
    if form == "torch":
        return definition.TORCH
    from fastscribe.families.conformer import triton_kernels

    return triton_kernels.TRITON


def arguments(name: str, batch: int, frames: int, width: int, heads: int, device: torch.device) -> Arguments:
    """Return random bf16 inputs for the operation, with rows of several lengths."""
    lengths_B = torch.linspace(frames, max(1, frames * 9 // 10), batch, device=device).long()

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    if name == "rel_attention":
        multiple = definition.POSITION_ROWS_MULTIPLE
        rows = -(-2 * frames // multiple) * multiple
        positions_HRK = random(heads, rows, width // heads)
        return random(batch, frames, 3 * width), positions_HRK, random(heads, rows, dtype=torch.float32), lengths_B
    if name == "glu_depthwise":
        return random(batch, frames, 2 * width), 0.3 * random(_TAPS, width), random(width), lengths_B, True
    channels = width // 4
    if name == "first_convolutions":
        weights = 0.3 * random(9, channels), random(channels), 0.3 * random(9, channels)
        return random(batch, 8 * frames, _MELS), *weights, 8 * lengths_B
    if name == "relu_depthwise":
        return random(batch, 2 * frames, _MELS // 4, channels), 0.3 * random(9, channels)
    shift_D = random(width, dtype=torch.float32)
    norms = [random(width) for _ in range(2 if name == "layer_norm" else 4)]
    return random(batch, frames, width), shift_D, *norms


def measure(
    form: str, name: str, batch: int, frames: int, width: int, heads: int, device: torch.device
) -> dict[str, Any]:
    """Measure an operation in one form at one size. The error is the largest difference from float32 torch, relative."""
    torch.manual_seed(0)
    given = arguments(name, batch, frames, width, heads, device)
    call: Callable[..., torch.Tensor] = getattr(operations(form), name)
    error = _error(call, name, given)
    row: dict[str, Any] = time_call(lambda: call(*given), device, seconds=0.2).row()
    flops, num_bytes = _work(name, batch, frames, width)
    return {
        "relative_error": error,
        "tflop_per_s": 1e-9 * flops / row["ms"],
        "gb_per_s": 1e-6 * num_bytes / row["ms"],
        **row,
    }


def _error(call: Callable[..., torch.Tensor], name: str, given: Arguments) -> float:
    """Return the error on a few rows of the batch, over their valid frames."""
    few = (given[0][:4].clone(), *given[1:])
    if name in ("rel_attention", "glu_depthwise"):
        lengths_B = given[3][:4]
        few = (*few[:3], lengths_B, *few[4:])
    elif name == "first_convolutions":
        lengths_B = subsampled(given[4][:4], 2, is_causal=False)
        few = (*few[:4], given[4][:4])
    else:
        lengths_B = torch.full((len(few[0]),), few[0].shape[1])
    wide = tuple(
        value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in few
    )
    with sdpa_kernel(SDPBackend.MATH):  # the form that no GPU refuses
        wanted = getattr(definition.TORCH, name)(*wide)
    found = call(*few).float()
    worst = torch.stack(
        [(a[:n] - b[:n]).norm() / b[:n].norm() for a, b, n in zip(found, wanted, lengths_B.tolist(), strict=True)]
    )
    return float(worst.max())


def _work(name: str, batch: int, frames: int, width: int) -> tuple[float, float]:
    """Return the operations, and the minimum bytes to move in bf16."""
    elements = batch * frames * width
    if name == "rel_attention":
        return 8.0 * elements * frames, 2.0 * 4 * elements
    if name == "glu_depthwise":
        return 2.0 * _TAPS * elements, 2.0 * 3 * elements
    outputs = batch * frames * (_MELS // 4) * (width // 4)
    if name == "first_convolutions":  # nine taps, and nine windows of nine at a fourth of the stride
        return 2.0 * 2 * (9 + 4 * 9) * outputs, 2.0 * (2 * outputs + batch * 8 * frames * _MELS)
    if name == "relu_depthwise":
        return 2.0 * 9 * outputs / 2, 2.0 * (2 * outputs + outputs / 2)
    return 8.0 * elements, 2.0 * (2 if name == "layer_norm" else 3) * elements
