"""Linear layers in oneDNN's weight layout, for inference on a CPU.

torch computes float32 products with MKL, which on AMD processors is less than half as fast as oneDNN (199 against 449 GFLOP/s
on two Zen 5 cores at this model's shapes; docs/log.md, 2026-11-21). The operators are those that torch's compiler emits;
because they are private, they are checked once on a small product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

_TYPICAL_ROWS = 1600  # frames in a batch; only a hint for the layout
# Names of the conformer layers' matrices in inference form: nine tenths of an encoder's products.
LAYER_MATRICES = ("linear1", "linear2", "linear_qkv", "linear_out", "pointwise1", "pointwise2")


class PackedLinear(nn.Module):
    """y = activation(x W' + b) with W in oneDNN's layout. `activation` is "none" or "swish" (SiLU).

    ReLU is not supported: oneDNN's turns NaN into 0, which would hide damaged weights from decode/checked.py.
    """

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        multiply: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise
        return multiply(x, self.weight, self.bias, self.activation, [], "")


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Return True if this torch computes correct products of packed weights on this processor."""
    linear = example_linear(32, 48).to(dtype)
    x = torch.linspace(-1, 1, 5 * 32).reshape(5, 32).to(dtype)
    try:
        with torch.inference_mode():
            ours, exact = PackedLinear(linear, "swish")(x), F.silu(linear(x))
            return torch.allclose(ours.float(), exact.float(), atol=2e-2, rtol=2e-2)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def example_linear(inputs: int, outputs: int) -> nn.Linear:
    """Make a layer for a trial product. nn.Linear's initialisation would advance the caller's random generator."""
    linear = nn.Linear(inputs, outputs, device="meta")
    ramp = torch.linspace(-1, 1, inputs * outputs + outputs)
    weight, bias = (37 * ramp).sin().split([inputs * outputs, outputs])
    linear.weight = nn.Parameter(weight.view(outputs, inputs).clone() / inputs**0.5, requires_grad=False)
    linear.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return linear


def pack_linears_(module: nn.Module, dtype: torch.dtype) -> None:
    """Replace every nn.Linear below `module` if packing works; results are equal up to rounding."""
    if can_pack(dtype):
        for owner, name, linear in linears_below(module):
            setattr(owner, name, PackedLinear(linear, pop_activation_(owner, name)))


def linears_below(module: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """List owner, name in the owner and layer of every nn.Linear, so that the caller can replace layers."""
    return [
        (owner, name, linear)
        for owner in module.modules()
        for name, linear in owner.named_children()
        if isinstance(linear, nn.Linear)
    ]


def pop_activation_(owner: nn.Module, name: str) -> str:
    """Return "swish" and remove the owner's SiLU if it directly follows the layer, else "none"."""
    if name != "linear1" or not isinstance(getattr(owner, "activation", None), nn.SiLU):
        return "none"
    owner.activation = nn.Identity()
    return "swish"
