"""Linear layers with int8 products on a CPU. Opt-in: text may differ from float32's slightly more than bf16's does.

Weights have one static scale per output. Inputs have one dynamic scale per row (frame), so there is no calibration, and no
row depends on its neighbours, because integer sums are exact in any order. With VNNI or AMX oneDNN computes the product through
the operator that torch's compiler emits. It takes unsigned inputs, so rows are shifted by 128, and the exact sum is corrected;
for signed inputs this oneDNN falls back to a loop ten thousand times slower. With AVX2 alone int8_avx2.py computes it.

`int8_linear` is the reference in plain torch. Only the conformer layers' large matrices are replaced. Narrow layers, and
those that decide on labels (subsampling, joint, predictor), keep their dtype.

Shapes: R rows (all leading dimensions), K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe._system.jit import runs_in_python
from fastscribe._system.processors import has_avx2, has_native_int8, instruction_names
from fastscribe.errors import first_line
from fastscribe.families.blocks import int8_avx2, int8_packing
from fastscribe.families.blocks.forms import (
    LAYER_MATRICES,
    LevelsLinear,
    example_linear,
    linears_below,
    pop_activation_,
)
from fastscribe.families.blocks.row_kernels import LEVELS, MIN_MAXIMUM, SHIFT

_BLOCK_ELEMENTS = 1 << 18  # a thread's of a block of rows: 1 MiB in float32, which a second-level cache holds


class Int8Linear(LevelsLinear):
    """y = activation(x W' + b) in x's dtype, [..., K] to [..., N]. `activation` is "none" or "swish" (SiLU)."""

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        self.uses_onednn = has_native_int8()
        self.weight, self.scale_N = quantise_and_pack(linear.weight.detach())
        self.zeros_N = torch.zeros_like(self.scale_N, dtype=torch.int32)
        self.register_buffer("bias_N", None if linear.bias is None else linear.bias.detach(), persistent=False)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows_RK, scale_R1 = quantise_rows(x.flatten(0, -2))
        y_RN = self.product(rows_RK, x.dtype)
        y_RN = y_RN.mul_(scale_R1) if self.bias_N is None else torch.addcmul(self.bias_N, y_RN, scale_R1)
        if self.activation == "swish":
            F.silu(y_RN, inplace=True)
        return torch.unflatten(y_RN, 0, x.shape[:-1])

    def product(self, levels_RK: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Compute (levels - 128) W' [R, N] in `dtype`; times the rows' scales plus the bias, it is y before activation."""
        if not self.uses_onednn:
            return int8_avx2.product(levels_RK, self.weight, self.scale_N).to(dtype)
        multiply: Callable[..., torch.Tensor] = torch.ops.onednn.qlinear_pointwise
        scales = (1.0, SHIFT, self.weight, self.scale_N, self.zeros_N)
        return multiply(levels_RK, *scales, None, 1.0, 0, dtype, "none", [], "")


def quantise_rows(x_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows to (uint8 [R, K], scale [R, 1]) with x ~ (uint8 - 128) * scale.

    The scale is rounded to x's dtype before the division, so that multiplying by it later is the exact inverse. Wide rows are
    quantised a block at a time, which stays in the processor's cache.
    """
    rows, width = x_RK.shape
    block = max(1, _BLOCK_ELEMENTS * torch.get_num_threads() // max(1, width))
    if rows <= block:
        return _quantise_block(x_RK)
    levels_RK = torch.empty_like(x_RK, dtype=torch.uint8)
    scale_R1 = x_RK.new_empty(rows, 1)
    for start in range(0, rows, block):
        part = slice(start, start + block)
        levels_RK[part], scale_R1[part] = _quantise_block(x_RK[part])
    return levels_RK, scale_R1


def _quantise_block(x_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale_R1 = x_RK.abs().amax(dim=1, keepdim=True).clamp_(min=float(MIN_MAXIMUM)).div_(LEVELS)
    levels_RK = torch.mul(x_RK, scale_R1.float().reciprocal())
    return levels_RK.add_(SHIFT + 0.5).to(torch.uint8), scale_R1  # the cast rounds down


def quantise_and_pack(weight_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a matrix. Return its levels as this processor's products take them, and the scales [N]."""
    if not has_native_int8():
        found = int8_avx2.quantise_and_pack(weight_NK)
        if found is not None:
            return found
        levels_NK, scale_N = quantise_weight(weight_NK)
        return int8_avx2.pack(levels_NK), scale_N
    packed = int8_packing.pack(weight_NK)
    if packed is not None:
        return packed[0], torch.from_numpy(packed[1])
    levels_NK, scale_N = quantise_weight(weight_NK)
    return torch.ops.onednn.qlinear_prepack(levels_NK, None), scale_N


def quantise_weight(weight_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a matrix to (int8 [N, K], float32 scale [N]) with W ~ int8 * scale.

    A block of rows at a time stays in the processor's cache.
    """
    outputs, inputs = weight_NK.shape
    levels_NK, scale_N = torch.empty(outputs, inputs, dtype=torch.int8), torch.empty(outputs)
    block = max(1, _BLOCK_ELEMENTS // max(1, inputs))
    for start in range(0, outputs, block):
        part = slice(start, start + block)
        rows_NK = weight_NK[part].float()
        torch.amax(rows_NK.abs(), dim=1, out=scale_N[part])
        scale_N[part].clamp_(min=float(MIN_MAXIMUM)).div_(LEVELS)
        levels_NK[part] = (rows_NK / scale_N[part, None]).round_()
    return levels_NK, scale_N


def int8_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Reference: [..., K] to [..., N] in float32. Exact up to K = 512, as long as 24 bits hold every sum."""
    rows_RK, x_scale_R1 = quantise_rows(x.flatten(0, -2))
    weight_NK, weight_scale_N = quantise_weight(weight)
    y_RN = ((rows_RK.float() - SHIFT) @ weight_NK.float().t()) * weight_scale_N * x_scale_R1.float()
    return torch.unflatten(y_RN if bias is None else y_RN + bias, 0, x.shape[:-1])


def int8_hardware_problem() -> str | None:
    """Return the reason why this processor has no int8, or None."""
    if has_native_int8() or has_avx2():
        return None
    return f"this processor has none of AVX2, AVX-VNNI, AVX512-VNNI and AMX-INT8 ({instruction_names()})"


@cache
def int8_problem() -> str | None:
    """Return the reason why this processor or this torch does not support int8, or None."""
    if (problem := int8_hardware_problem()) is not None:
        return problem
    if not has_native_int8() and runs_in_python():
        return "NUMBA_DISABLE_JIT is set, and this processor multiplies int8 in compiled loops"
    linear = example_linear(64, 48)
    x_RK = torch.linspace(-1, 1, 5 * 64).reshape(5, 64)
    x_RK[:2] = 1.0  # largest values, whose pairwise sums overflow in 16 bits
    try:
        with torch.inference_mode():
            linear.weight[:8] = 1.0
            ours_RN = Int8Linear(linear)(x_RK)
            right = torch.allclose(ours_RN, int8_linear(x_RK, linear.weight, linear.bias), atol=1e-4)
    except ImportError as error:
        return f"numba cannot be loaded ({first_line(error)})"
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"this torch cannot multiply int8 here ({first_line(error)})"
    return None if right else "int8 is multiplied wrongly here"


def quantise_int8_(encoder: nn.Module) -> None:
    """Replace the conformer layers' matrices. Call on fused float32 weights on the CPU, before any cast or packing."""
    for owner, name, linear in linears_below(encoder):
        if name in LAYER_MATRICES:
            setattr(owner, name, Int8Linear(linear, pop_activation_(owner, name)))
