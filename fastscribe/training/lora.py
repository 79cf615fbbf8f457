"""LoRA (Hu et al. 2021): low-rank adapters of the encoder's linear layers learn, and the encoder's own weights stay.

A layer computes x W^T + alpha / rank * (x A^T) B^T. B is zero at first, so the first step starts from the model that was given.
Written models hold the sum W + alpha / rank * B A as their weight, so nothing that reads them knows of adapters.

Shapes: I inputs, O outputs, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.errors import UsageError
from fastscribe.training.recipe import LoraRecipe


class LoraLinear(nn.Linear):
    """A linear layer with an adapter. The layer's own parameters keep their names and get no gradient."""

    lora_A: nn.Parameter  # [R, I]
    lora_B: nn.Parameter  # [O, R]
    scale: float
    dropout: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adapted = F.linear(F.dropout(x, self.dropout, self.training), self.lora_A)
        return super().forward(x) + self.scale * F.linear(adapted, self.lora_B)


def add_adapters(encoder: nn.Module, recipe: LoraRecipe, seed: int) -> None:
    """Give the target layers adapters, in place. Nothing else of the encoder gets a gradient.

    Raises:
        UsageError: the encoder lacks a target, or a layer is too small for the rank.
    """
    encoder.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    found = set()
    for path, module in encoder.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(module, nn.Linear) and name in recipe.target_modules:
            found.add(name)
            _add_adapter(module, recipe, generator, name)
    missing = [name for name in recipe.target_modules if name not in found]
    if missing:
        raise UsageError(f"optimiser.lora.target_modules: this model has no {missing[0]}")


def _add_adapter(linear: nn.Linear, recipe: LoraRecipe, generator: torch.Generator, name: str) -> None:
    most = min(linear.in_features, linear.out_features)
    if recipe.rank > most:
        raise UsageError(f"optimiser.lora.rank: {recipe.rank} is more than {most}, the width of this model's {name}")
    weight = linear.weight
    a_RI = torch.empty(recipe.rank, linear.in_features)
    nn.init.kaiming_uniform_(a_RI, a=math.sqrt(5), generator=generator)  # as nn.Linear
    linear.__class__ = LoraLinear
    assert isinstance(linear, LoraLinear)
    linear.lora_A = nn.Parameter(a_RI.to(weight))
    linear.lora_B = nn.Parameter(weight.new_zeros(linear.out_features, recipe.rank))
    linear.scale, linear.dropout = recipe.alpha / recipe.rank, recipe.dropout


def merge_adapters(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `weights`, which have the names of the model's state dict, with each adapter added to its layer in float32."""
    merged = dict(weights)
    for path, layer in model.named_modules():
        if not isinstance(layer, LoraLinear):
            continue
        a_RI, b_OR = (merged.pop(f"{path}.{name}").float() for name in ("lora_A", "lora_B"))
        weight_OI = merged[f"{path}.weight"].float()
        merged[f"{path}.weight"] = weight_OI + (layer.scale * (b_OR @ a_RI)).to(weight_OI.device)
    return merged
