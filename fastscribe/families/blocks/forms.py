"""What loading does with a module beyond casting it: base classes of modules that have other forms for inference.

families/model.py looks for them in every part of a model. Beside them, conversions of layers: BatchNorm folded into a
convolution, and linear layers in the form in which a CPU computes them fastest: in oneDNN's weight layout, or as they are, for
MKL.

torch computes float32 products with MKL, which on AMD processors with AVX-512 is less than half as fast as oneDNN (199 against
449 GFLOP/s on two Zen 5 cores at this model's shapes; docs/log.md, 2026-11-21). With AVX2 alone MKL is the faster one for many
rows (88 and 73 GFLOP/s on a Zen 3 core; 2026-11-26), so the large matrices of layers stay as they are there. The operators are
those that torch's compiler emits; because they are private, they are checked once on a small product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe._system.processors import instructions

_TYPICAL_ROWS = 1600  # frames in a batch; only a hint for the layout
_MIN_MKL_ROWS, _MIN_MKL_WIDTH = 16, 512  # for each thread; of a matrix
# Names of the conformer layers' matrices in inference form: nine tenths of an encoder's products.
LAYER_MATRICES = ("linear1", "linear2", "linear_qkv", "linear_out", "pointwise1", "pointwise2")


class Container(nn.Module):
    """A module that has parts and no weights but theirs. Models are loaded part by part."""


class Optimised(nn.Module):
    """A module with an inference form: the same function, computed faster; the names of its weights change."""

    def optimise_(self) -> None:
        """Convert to the inference form, in eval mode and before any cast."""
        raise NotImplementedError


class FusedOnCpu(nn.Module):
    """A module with another form for a CPU, made of its float32 weights."""

    def fuse_for_cpu_(self, dtype: torch.dtype) -> None:
        """Convert to a CPU's form, whose results have this dtype."""
        raise NotImplementedError


@torch.no_grad()
def fold_norm_(conv: nn.Conv1d, norm: nn.BatchNorm1d) -> None:
    """Fold a BatchNorm in eval mode, a scale and shift per channel, into the convolution, which becomes float32."""
    assert norm.running_var is not None and norm.running_mean is not None
    conv.float()
    norm.float()
    scale_D = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    old_bias_D = conv.bias if conv.bias is not None else torch.zeros_like(scale_D)
    conv.weight = nn.Parameter(conv.weight * scale_D[:, None, None], requires_grad=False)
    conv.bias = nn.Parameter((old_bias_D - norm.running_mean) * scale_D + norm.bias, requires_grad=False)


def linear_from(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    """Make a layer that shares these weights, [N, K] and [N]."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def joined(*parts: nn.Linear) -> nn.Linear:
    """Make a layer with the outputs of several layers of one input, one behind the other."""
    biases = tuple(part.bias for part in parts if part.bias is not None)
    return linear_from(torch.cat(tuple(part.weight for part in parts)), torch.cat(biases) if biases else None)


class PackedLinear(nn.Module):
    """y = activation(x W' + b) with W in oneDNN's layout. `activation` is "none" or "swish" (SiLU).

    ReLU is not supported: oneDNN's turns NaN into 0, which would hide damaged weights from decode/decoder.py.
    """

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        multiply: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise
        return multiply(x, self.weight, self.bias, self.activation, [], "")


class LevelsLinear(nn.Module):
    """A layer whose inputs are levels of 8 bits, with a scale for each row: int8.py has it."""

    scale_N: torch.Tensor
    bias_N: torch.Tensor | None

    def product(self, levels_RK: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Compute levels W' [R, N] in `dtype`; times the rows' scales plus the bias, it is the result."""
        raise NotImplementedError


class UnpackedLinear(nn.Module):
    """y = x W' + b by MKL. A row's result does not depend on the number of rows, as with PackedLinear.

    MKL computes few rows in another order, whose last bits differ, so these get company.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = _MIN_MKL_ROWS * torch.get_num_threads() - x.numel() // max(1, x.shape[-1])
        if missing <= 0:
            return F.linear(x, self.linear.weight, self.linear.bias)
        x_RK = x.flatten(0, -2)
        y_RN = F.linear(F.pad(x_RK, (0, 0, 0, missing)), self.linear.weight, self.linear.bias)
        return torch.unflatten(y_RN[: len(x_RK)], 0, x.shape[:-1])


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


def has_faster_mkl(dtype: torch.dtype) -> bool:
    """Return True if torch's own products of many rows, MKL's, are faster than oneDNN's on this processor."""
    return dtype == torch.float32 and torch.backends.mkl.is_available() and "avx512f" not in instructions()


def packs(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Return True if a layer's matrix of this shape is packed, so that its product may activate."""
    return can_pack(dtype) and (min(shape) < _MIN_MKL_WIDTH or not has_faster_mkl(dtype))


def example_linear(inputs: int, outputs: int) -> nn.Linear:
    """Make a layer for a trial product. nn.Linear's initialisation would advance the caller's random generator."""
    ramp = torch.linspace(-1, 1, inputs * outputs + outputs)
    weight, bias = (37 * ramp).sin().split([inputs * outputs, outputs])
    return linear_from(weight.view(outputs, inputs).clone() / inputs**0.5, bias.clone())


def pack_linears_(module: nn.Module, dtype: torch.dtype) -> None:
    """Replace every nn.Linear below `module` if packing works; results are equal up to rounding."""
    if not can_pack(dtype):
        return
    for owner, name, linear in linears_below(module):
        if name in LAYER_MATRICES and not packs(linear.weight.shape, dtype):
            setattr(owner, name, UnpackedLinear(linear))
        else:
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
