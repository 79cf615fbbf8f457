"""What loading does with a module beyond casting it: base classes of modules that have other forms for inference.

families/model.py looks for them in every part of a model. Beside them, conversions of layers:
BatchNorm folded into a convolution, and a linear layer of given weights.
"""

from __future__ import annotations

import torch
from torch import nn


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
