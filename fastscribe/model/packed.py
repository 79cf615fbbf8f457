"""Linear layers in oneDNN's own weight layout, for inference on a CPU.

torch sends float32 products to MKL, which on AMD processors runs at less than half of what oneDNN reaches on the same
core (199 against 449 GFLOP/s on two Zen 5 cores at this model's shapes; docs/log.md, 2026-11-21). The operators used here
are the ones torch's own compiler emits, so they are checked once on a small product before anything relies on them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

_TYPICAL_ROWS = 1600  # frames in a batch; only a hint for the layout
# Nine tenths of an encoder's products: the conformer layers' matrices, by their names in the inference forms.
LAYER_MATRICES = ("linear1", "linear2", "linear_qkv", "linear_out", "pointwise1", "pointwise2")


class PackedLinear(nn.Module):
    """y = activation(x W' + b) with W laid out for oneDNN. `activation` is "none" or "swish" (SiLU).

    ReLU is not among them: oneDNN's makes 0 of NaN, which would hide damaged weights from decode/checked.py.
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
    """Whether this torch on this processor multiplies packed weights, and multiplies them right."""
    linear = example_linear(32, 48).to(dtype)
    x = torch.linspace(-1, 1, 5 * 32).reshape(5, 32).to(dtype)
    try:
        with torch.inference_mode():
            ours, exact = PackedLinear(linear, "swish")(x), F.silu(linear(x))
            return torch.allclose(ours.float(), exact.float(), atol=2e-2, rtol=2e-2)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def example_linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer to try a product out on. nn.Linear's own first weights would take numbers from the caller's random stream."""
    linear = nn.Linear(inputs, outputs, device="meta")
    ramp = torch.linspace(-1, 1, inputs * outputs + outputs)
    weight, bias = (37 * ramp).sin().split([inputs * outputs, outputs])
    linear.weight = nn.Parameter(weight.view(outputs, inputs).clone() / inputs**0.5, requires_grad=False)
    linear.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return linear


def pack_linears_(module: nn.Module, dtype: torch.dtype) -> None:
    """Replaces every nn.Linear below `module` where that is possible; the model is the same up to rounding."""
    if can_pack(dtype):
        for owner, name, linear in linears_below(module):
            setattr(owner, name, PackedLinear(linear, take_activation_(owner, name)))


def linears_below(module: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """(owner, name in the owner, layer) of every nn.Linear; the list stays good while layers are replaced."""
    return [
        (owner, name, linear)
        for owner in module.modules()
        for name, linear in owner.named_children()
        if isinstance(linear, nn.Linear)
    ]


def take_activation_(owner: nn.Module, name: str) -> str:
    """A SiLU that follows the layer directly is computed with it; the owner then has none to apply."""
    if name != "linear1" or not isinstance(getattr(owner, "activation", None), nn.SiLU):
        return "none"
    owner.activation = nn.Identity()
    return "swish"
