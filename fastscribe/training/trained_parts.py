"""Which weights of a model learn: all, or those that a recipe does not freeze, or adapters in place of the encoder's."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from fastscribe.errors import UsageError
from fastscribe.families.model import Model
from fastscribe.training.changed_model import Head
from fastscribe.training.lora import add_adapters
from fastscribe.training.recipe import Recipe
from fastscribe.training.weights import freeze, keep_in_eval

_PARTS: dict[Head, tuple[str, ...]] = {"transducer": ("predictor", "joint"), "ctc": ("ctc",)}


def choose_trained(model: Model, recipe: Recipe, new_heads: Collection[Head] = ()) -> None:
    """Add the recipe's adapters and freeze its frozen parts, in place.

    Args:
        new_heads: heads with weights that no training has touched yet.

    Raises:
        UsageError: the model lacks a part that the recipe names, a frozen part is new, or nothing that the loss depends on is
            left to train.
    """
    optimiser = recipe.optimiser
    untrained = [part for head in sorted(new_heads) for part in _PARTS[head] if part in optimiser.freeze]
    if untrained:
        raise UsageError(
            f"optimiser.freeze: {', '.join(untrained)}: has new weights, which would never learn; leave out"
        )
    if optimiser.lora is not None:
        add_adapters(model.encoder, optimiser.lora, recipe.run.seed)
        for module in model.encoder.modules():
            if isinstance(module, nn.BatchNorm1d):
                keep_in_eval(module)  # statistics are the encoder's own, as its weights are
    freeze(model, optimiser.freeze)
    if not num_trained(model, recipe.loss.ctc_weight):
        frozen = ", ".join(optimiser.freeze)
        raise UsageError(f"optimiser.freeze: nothing that the loss depends on is left to train: {frozen}")


def num_trained(model: Model, ctc_weight: float) -> int:
    """Return the number of weights that learn: an idle head, which the loss does not depend on, has none."""
    parts = _used_parts(model, ctc_weight)
    return sum(weight.numel() for part in parts for weight in part.parameters() if weight.requires_grad)


def _used_parts(model: Model, ctc_weight: float) -> list[nn.Module]:
    idle = None
    if model.transducer is not None and model.ctc is not None:
        idle = {0.0: model.ctc, 1.0: model.transducer}.get(ctc_weight)
    return [part for part in model.children() if part is not idle]
