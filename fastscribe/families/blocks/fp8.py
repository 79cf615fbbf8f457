"""Linear layers with fp8 (e4m3) products on NVIDIA GPUs of the Ada, Hopper or later generations. Opt-in, like int8.

Weights have one static scale per output. Inputs have one dynamic scale per row (frame), computed by a Triton kernel
(cuda/fp8_triton.py) that reads the row once. The product accumulates in float32 and returns bf16. Each fast step has a plain
reference, which also runs on a CPU, so that the effect of fp8 on the text can be measured there.

The format is that of Micikevicius et al. 2022: 4 bits of exponent, 3 of mantissa, largest value 448, no infinity.

Shapes: R rows (all leading dimensions), K inputs, N outputs.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

from fastscribe.cuda.fp8_format import FP8, MAX_VALUE, MIN_MAXIMUM
from fastscribe.errors import first_line
from fastscribe.families.blocks.forms import LAYER_MATRICES, example_linear, linears_below

_MULTIPLE = 16  # required of both sides of a matrix
_MIN_CAPABILITY = (8, 9)


class Fp8Linear(nn.Module):
    """y = x W' + b, [..., K] to [..., N], in bf16 on a GPU. On a CPU the same values from float32 products, in x's dtype."""

    bias_N: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        # Attributes and not buffers, because a later cast of the module must not change them.
        self.weight_NK, scale_N1 = quantise_rows(linear.weight.detach())
        self.scale_1N = scale_N1.t().contiguous()
        self.register_buffer("bias_N", None if linear.bias is None else linear.bias.detach(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x_RK = x.flatten(0, -2)
        if x.is_cuda:
            from fastscribe.cuda.fp8_triton import quantise_rows as quantise_rows_in_triton

            y_RN = _scaled_product(*quantise_rows_in_triton(x_RK), self.weight_NK, self.scale_1N, self.bias_N)
        else:
            y_RN = scaled_product(*quantise_rows(x_RK), self.weight_NK, self.scale_1N, self.bias_N)
        return torch.unflatten(y_RN.to(x.dtype), 0, x.shape[:-1])


def quantise_rows(x_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference: quantise rows to (fp8 [R, K], float32 scale [R, 1]) with x ~ fp8 * scale."""
    x_RK = x_RK.float()
    scale_R1 = x_RK.abs().amax(dim=1, keepdim=True).clamp(min=MIN_MAXIMUM) / MAX_VALUE
    return (x_RK / scale_R1).to(FP8), scale_R1


def scaled_product(
    x_RK: torch.Tensor,
    x_scale_R1: torch.Tensor,
    weight_NK: torch.Tensor,
    weight_scale_1N: torch.Tensor,
    bias_N: torch.Tensor | None,
) -> torch.Tensor:
    """Reference: multiply to [R, N] in float32."""
    y_RN = (x_RK.float() @ weight_NK.float().t()) * x_scale_R1 * weight_scale_1N
    return y_RN if bias_N is None else y_RN + bias_N.float()


def _scaled_product(
    x_RK: torch.Tensor,
    x_scale_R1: torch.Tensor,
    weight_NK: torch.Tensor,
    weight_scale_1N: torch.Tensor,
    bias_N: torch.Tensor | None,
) -> torch.Tensor:
    return torch._scaled_mm(
        x_RK, weight_NK.t(), x_scale_R1, weight_scale_1N, bias_N, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def fp8_hardware_problem(device: torch.device) -> str | None:
    """Return the reason why this device has no fp8, or None."""
    if device.type != "cuda":
        return "fp8 needs an NVIDIA GPU"
    capability = torch.cuda.get_device_capability(device)
    if capability < _MIN_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (_MIN_CAPABILITY, capability))
        return f"fp8 needs compute capability {needed} or newer; {torch.cuda.get_device_name(device)} has {found}"
    return None


def fp8_problem(device: torch.device) -> str | None:
    """Return the reason why this device or this torch does not support fp8, or None."""
    if (problem := fp8_hardware_problem(device)) is not None:
        return problem
    if importlib.util.find_spec("triton") is None:
        return "fp8 needs triton, which this torch lacks"
    linear = example_linear(64, 48).to(device, torch.bfloat16)
    x_RK = torch.linspace(-1, 1, 32 * 64, device=device, dtype=torch.bfloat16).reshape(32, 64)
    try:
        with torch.inference_mode():
            layer = Fp8Linear(linear)
            expected_RN = scaled_product(*quantise_rows(x_RK), layer.weight_NK, layer.scale_1N, layer.bias_N)
            right = torch.allclose(layer(x_RK).float(), expected_RN, atol=3e-2, rtol=3e-2)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"this torch cannot multiply fp8 here ({first_line(error)})"
    return None if right else "this torch multiplies fp8 wrongly here"


def quantise_fp8_(encoder: nn.Module) -> None:
    """Replace the conformer layers' matrices. Call last: on the final device, in bf16, with the layers in inference form."""
    for owner, name, linear in linears_below(encoder):
        if name in LAYER_MATRICES and linear.in_features % _MULTIPLE == 0 and linear.out_features % _MULTIPLE == 0:
            setattr(owner, name, Fp8Linear(linear))
