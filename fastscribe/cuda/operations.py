"""The choice between the two forms of the encoder's memory-bound operations (model/operations.py): torch's or Triton's.

Triton's form is used where it compiles on the device and gives torch's results on small random cases.

Shapes: B batch, T frames, D width, H heads, K head width, R rows of a position table, W taps of a convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fastscribe.config import EncoderConfig, LocalAttention
from fastscribe.model.operations import POSITION_ROWS_MULTIPLE, TORCH, Operations

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # of the largest value


def choose_operations(
    config: EncoderConfig, dtype: torch.dtype, device: torch.device, adds_products: bool = False
) -> tuple[Operations, str | None]:
    """Triton's form where it is right on this device, else torch's and the reason. Compiles what such a model will run.

    `adds_products`: the norms add products to the stream, as in a model in fp8. No other model runs these variants, so their
    failure costs no other model its kernels.
    """
    try:
        from fastscribe.cuda.triton_kernels import TRITON
    except ImportError as error:
        return TORCH, f"Triton cannot be imported ({error})"
    try:
        wrong = first_wrong(TRITON, config, dtype, device, adds_products)
    except Exception as error:  # a compiler, a driver or a missing tool may fail in any way; none must stop the run
        summary = " ".join(str(error).split())[:200]
        return TORCH, f"Triton fails on this device ({type(error).__name__}: {summary})"
    return (TORCH, f"Triton computes {wrong} wrongly on this device") if wrong else (TRITON, None)


def first_wrong(
    form: Operations, config: EncoderConfig, dtype: torch.dtype, device: torch.device, adds_products: bool = False
) -> str | None:
    """The name of the first operation whose result differs from torch's in float32 on the CPU by more than rounding."""
    lengths_B = torch.tensor([70, 33, 1, 0])
    real_BT = torch.arange(70) < lengths_B[:, None]
    for name, *arguments in _random_cases(config, dtype, lengths_B, adds_products):
        exact = [argument.float().clone() if is_floating(argument) else argument for argument in arguments]
        ours = [
            argument.to(device, copy=True) if isinstance(argument, torch.Tensor) else argument for argument in arguments
        ]
        expected_BTD = getattr(TORCH, name)(*exact)
        with torch.cuda.device_of(ours[0]):
            result_BTD = getattr(form, name)(*ours)
        for got, right in ((result_BTD, expected_BTD), (ours[0], exact[0])):  # the first argument may be written to
            got = got.cpu().float()
            error = (got - right)[real_BT].abs().max()
            if not got.isfinite().all() or error > _TOLERANCE[dtype] * right.abs().max():
                return str(name)
    return None


def _random_cases(
    config: EncoderConfig, dtype: torch.dtype, lengths_B: torch.Tensor, adds_products: bool
) -> Iterator[tuple[Any, ...]]:
    """Each operation's name and arguments for a small batch, in every variant that a model of this config runs."""
    random = torch.Generator().manual_seed(0)
    batch, num_frames = len(lengths_B), int(lengths_B.max())
    width, heads, rows = config.d_model, config.num_heads, 2 * POSITION_ROWS_MULTIPLE

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    table_HRK, bias_HR = normal(heads, rows, width // heads), normal(heads, rows).float()
    window = None if config.attention is None else LocalAttention(40, 3)  # whose blocks begin and end within the batch
    yield "rel_attention", normal(batch, num_frames, 3 * width), table_HRK, bias_HR, lengths_B, window
    batch_norm = config.conv_norm == "batch_norm"
    bias_D = normal(width) if batch_norm or config.use_bias else None
    gates_BTD, weight_WD = normal(batch, num_frames, 2 * width), normal(config.conv_kernel, width)
    yield "glu_depthwise", gates_BTD, weight_WD, bias_D, lengths_B, batch_norm
    x_BTD = normal(batch, num_frames, width)
    shift_D = normal(width).float() if config.use_bias else None
    yield "layer_norm", x_BTD, None, normal(width), normal(width)
    yield "layer_norm", x_BTD, shift_D, normal(width), normal(width)
    yield "layer_norm_twice_", x_BTD, shift_D, normal(width), normal(width), normal(width), normal(width)
    if not adds_products:
        return
    added_BTD = normal(batch, num_frames, width)
    yield "layer_norm", x_BTD, shift_D, normal(width), normal(width), added_BTD
    yield "layer_norm_twice_", x_BTD, shift_D, *(normal(width) for _ in range(4)), added_BTD


def is_floating(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.is_floating_point()
