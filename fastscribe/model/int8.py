"""Linear layers that multiply in int8 on a CPU. Opt-in: the text may differ from float32's a little more than bf16's does.

Weights have one scale an output, fixed at load. Inputs have one scale a row (a frame), found anew each time, so nothing is
calibrated and no row's result depends on its neighbours: sums of integers are exact in any order. The product is oneDNN's,
through the operator that torch's compiler emits. It takes unsigned inputs, so rows are shifted by 128 and the shift is
taken out of the exact sum again; with signed inputs this oneDNN falls back to a loop ten thousand times slower.

`int8_linear` says what is computed, in plain torch. Only the conformer layers' big matrices are replaced. What is narrow
or decides on labels (subsampling, joint, predictor) keeps its dtype.

Shapes: R rows (all leading dimensions), K inputs, N outputs.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.errors import first_line
from fastscribe.model.packed import LAYER_MATRICES, example_linear, linears_below, take_activation_

_LEVELS = 127  # on either side of zero
_SHIFT = 128  # what zero becomes in an unsigned row
_SMALLEST = 1e-30  # a row or column of zeros still needs a scale to divide by


class Int8Linear(nn.Module):
    """y = activation(x W' + b) in x's dtype, [..., K] -> [..., N]. `activation` is "none" or "swish" (SiLU)."""

    bias_N: torch.Tensor | None

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        weight_NK, self.scale_N = quantise_weight(linear.weight.detach())
        self.weight = torch.ops.onednn.qlinear_prepack(weight_NK, None)
        self.zeros_N = torch.zeros_like(self.scale_N, dtype=torch.int32)
        self.register_buffer("bias_N", None if linear.bias is None else linear.bias.detach(), persistent=False)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows_RK, scale_R1 = quantise_rows(x.flatten(0, -2))
        y_RN = torch.ops.onednn.qlinear_pointwise(
            rows_RK, 1.0, _SHIFT, self.weight, self.scale_N, self.zeros_N, None, 1.0, 0, x.dtype, "none", [], ""
        )
        y_RN = y_RN.mul_(scale_R1) if self.bias_N is None else torch.addcmul(self.bias_N, y_RN, scale_R1)
        if self.activation == "swish":
            F.silu(y_RN, inplace=True)
        return torch.unflatten(y_RN, 0, x.shape[:-1])


def quantise_rows(x_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x -> (uint8 [R, K] around 128, scale [R, 1]) with x ~ (uint8 - 128) * scale.

    The scale is rounded to x's dtype before it is used: multiplying by it afterwards then undoes exactly this division.
    """
    scale_R1 = x_RK.abs().amax(dim=1, keepdim=True).clamp_(min=_SMALLEST).div_(_LEVELS)
    levels_RK = torch.mul(x_RK, scale_R1.float().reciprocal())
    return levels_RK.add_(_SHIFT + 0.5).to(torch.uint8), scale_R1  # the cast rounds down


def quantise_weight(weight_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """W -> (int8 [N, K], float32 scale [N]) with W ~ int8 * scale."""
    weight_NK = weight_NK.float()
    scale_N = weight_NK.abs().amax(dim=1).clamp_(min=_SMALLEST).div_(_LEVELS)
    return (weight_NK / scale_N[:, None]).round_().to(torch.int8), scale_N


def int8_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The definition of right: [..., K] -> [..., N] in float32. Exact up to K = 512, where 24 bits hold every sum."""
    rows_RK, x_scale_R1 = quantise_rows(x.flatten(0, -2))
    weight_NK, weight_scale_N = quantise_weight(weight)
    y_RN = ((rows_RK.float() - _SHIFT) @ weight_NK.float().t()) * weight_scale_N * x_scale_R1.float()
    return torch.unflatten(y_RN if bias is None else y_RN + bias, 0, x.shape[:-1])


@cache
def why_no_int8() -> str | None:
    """Why int8 cannot be had on this processor with this torch; None where it can."""
    linear = example_linear(64, 48)
    x_RK = torch.linspace(-1, 1, 5 * 64).reshape(5, 64)
    x_RK[:2] = 1.0  # rows and columns of the largest values: sums of pairs in 16 bits would overflow
    try:
        if not torch.cpu._is_vnni_supported():
            return "this processor has no VNNI instructions"
        with torch.inference_mode():
            linear.weight[:8] = 1.0
            ours_RN = Int8Linear(linear)(x_RK)
            right = torch.allclose(ours_RN, int8_linear(x_RK, linear.weight, linear.bias), atol=1e-4)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"this torch cannot multiply int8 here ({first_line(error)})"
    return None if right else "this torch multiplies int8 wrongly here"


def quantise_int8_(encoder: nn.Module) -> None:
    """Replaces the conformer layers' matrices. Call on float32 weights on the CPU, fused, before any cast or packing."""
    for owner, name, linear in linears_below(encoder):
        if name in LAYER_MATRICES:
            setattr(owner, name, Int8Linear(linear, take_activation_(owner, name)))
