"""The float32 weights that the optimiser updates, the rounded copies that the model uses, and their moving average.

In bf16 a step is often smaller than a weight's last bit, so the optimiser works on float32 copies, and the model gets them
rounded (Micikevicius et al. 2018). BatchNorm stays in float32: its statistics are sums over thousands of frames. The moving
average of the weights (Polyak and Juditsky 1992) is what a run validates and saves.

All weights of a model learn, or those that a recipe does not freeze, or adapters in place of the encoder's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fastscribe.errors import UsageError
from fastscribe.families.model import Model
from fastscribe.training.changed_model import Head
from fastscribe.training.lora import add_adapters, merge_adapters
from fastscribe.training.recipe import OptimiserRecipe, Recipe

_PREFIXES = {
    "encoder": "encoder",
    "predictor": "transducer.predictor",
    "joint": "transducer.joint",
    "ctc": "ctc",
    "decoder": "aed",
}
_MAX_WARM_UP = 10  # the warm-up takes at most 1 / _MAX_WARM_UP of the run's steps


class Weights:
    """The optimiser's view of a model. `model`'s parameters are cast to `dtype` in place; those with a gradient learn."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, recipe: OptimiserRecipe) -> None:
        self.recipe, self.num_steps = recipe, 0
        self.warmup_steps, self._warmup_share = recipe.warmup_steps, 0.0
        self._model = model
        masters = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}
        given = {**masters, **{name: buffer.clone() for name, buffer in model.named_buffers()}}
        model.to(dtype)
        for prefix, module in model.named_modules():
            if isinstance(module, nn.BatchNorm1d) or _is_slow_in_bf16(module):
                module.float()
                for name, tensor in (*module.named_parameters(prefix), *module.named_buffers(prefix)):
                    tensor.data.copy_(given[name])  # undo the rounding
        self._parameters = dict(model.named_parameters())
        first_names = {parameter: name for name, parameter in self._parameters.items()}
        self._shared = {  # further names of a parameter, and the one above
            name: first_names[parameter]
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if name not in self._parameters
        }
        rounded = [name for name, parameter in self._parameters.items() if parameter.dtype != torch.float32]
        exact = {name: parameter.data for name, parameter in self._parameters.items()}  # if float32, its own master
        exact |= {name: masters[name] for name in rounded}
        self.masters = {name: exact[name] for name, parameter in self._parameters.items() if parameter.requires_grad}
        self._frozen = {name: exact[name].cpu() for name in rounded if name not in self.masters}  # for export alone
        rounded = [name for name in rounded if name in self.masters]
        self._rounded = [self._parameters[name].data for name in rounded]
        self._exact = [self.masters[name] for name in rounded]
        self.averages = {name: master.clone() for name, master in self.masters.items()} if recipe.ema else {}
        self._kept_buffers = {name: buffer.clone() for name, buffer in self._buffers()}
        # fused: one pass over a weight instead of a dozen, a quarter of the time on a CPU.
        self.optimiser = torch.optim.AdamW(
            self._groups(), lr=0.0, betas=recipe.betas, eps=1e-8, weight_decay=recipe.weight_decay, fused=True
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of weights, averages, gradients and the optimiser's two moments, once the first step is done."""
        num_bytes = sum(parameter.nbytes for parameter in self._parameters.values())
        for name, master in self.masters.items():
            parameter = self._parameters[name]
            is_rounded = parameter.dtype != master.dtype  # then the weight and its gradient are there in both
            num_bytes += master.nbytes * (3 + is_rounded + bool(self.averages)) + is_rounded * parameter.nbytes
        return num_bytes

    def _groups(self) -> list[dict[str, Any]]:
        """Return what learns, by its part's rate; only matrices decay."""
        groups: dict[float, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        rates = {f"{prefix}.": getattr(self.recipe.part_rates, part) for part, prefix in _PREFIXES.items()}
        for name, parameter in self._parameters.items():
            if name in self.masters:
                rate = next((rate for prefix, rate in rates.items() if name.startswith(prefix)), 1.0)
                decayed, others = groups.setdefault(rate, ([], []))
                (decayed if parameter.dim() > 1 else others).append(self.masters[name])
        self._group_rates = [rate for rate in groups for _ in range(2)]
        return [
            {"params": parameters, **extra}
            for pair in groups.values()
            for parameters, extra in zip(pair, ({}, {"weight_decay": 0.0}), strict=True)
        ]

    def learning_rate(self, share: float) -> float:
        """Return the learning rate of the next step after `share` of the run: a linear warm-up, then a cosine."""
        recipe = self.recipe
        min_rate = min(recipe.min_learning_rate, recipe.learning_rate)
        # Share of the steps after the warm-up.
        after = min(1.0, max(0.0, share - self._warmup_share) / (1 - self._warmup_share))
        rate = min_rate + (recipe.learning_rate - min_rate) * 0.5 * (1 + math.cos(math.pi * after))
        return rate * min(1.0, (self.num_steps + 1) / max(1, self.warmup_steps))

    def set_total_steps(self, run_steps: int) -> None:
        """Set the number of steps of the whole run; the warm-up takes at most a tenth of them."""
        self.warmup_steps = min(self.recipe.warmup_steps, run_steps // _MAX_WARM_UP)
        self._warmup_share = self.warmup_steps / max(1, run_steps)

    @torch.no_grad()
    def accumulate_gradients(self) -> None:
        """Add the gradients of a backward pass to a float32 sum: a bf16 sum would lose small addends."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                gradient, master = parameter.grad.float(), self.masters[name]
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    @torch.no_grad()
    def step(self, share: float, weight: float = 1.0) -> float:
        """Apply and clear the summed gradients.

        Gradients that are not finite change nothing, nor does a weight of 0; buffers then return to their values after
        the last valid step.

        Args:
            share: share of the run that is over, for the learning rate.
            weight: the gradients are divided by it.

        Returns:
            The gradient norm before clipping.
        """
        self.accumulate_gradients()
        gradients = [master.grad for master in self.masters.values() if master.grad is not None]
        if not weight:
            self._forget_gradients()
            self.num_steps += 1
            return 0.0
        if weight != 1:
            _each("div_", gradients, weight)
        norm = float(nn.utils.get_total_norm(gradients))
        for group, rate in zip(self.optimiser.param_groups, self._group_rates, strict=True):
            group["lr"] = self.learning_rate(share) * rate
        if math.isfinite(norm):
            if self.recipe.clip_norm is not None and norm > self.recipe.clip_norm:
                _each("mul_", gradients, self.recipe.clip_norm / norm)
            self.optimiser.step()
        self._keep_buffers(is_sound=math.isfinite(norm))
        self.num_steps += 1
        self._forget_gradients()
        self._round()
        self._average()
        return norm

    def _round(self) -> None:
        """Round the exact weights into the model's copies."""
        if self._rounded:
            _each("copy_", self._rounded, self._exact)

    def _forget_gradients(self) -> None:
        for master in self.masters.values():
            master.grad = None

    def _keep_buffers(self, is_sound: bool) -> None:
        """Keep the buffers of a valid step; restore them after another, because BatchNorm would keep a NaN for ever."""
        for name, buffer in self._buffers():
            kept = self._kept_buffers[name]
            source, target = (buffer, kept) if is_sound else (kept, buffer)
            target.copy_(source)

    def _average(self) -> None:
        if self.averages:
            # The average forgets the first steps soon.
            decay = min(self.recipe.ema, (1 + self.num_steps) / (10 + self.num_steps))
            _each("lerp_", list(self.averages.values()), list(self.masters.values()), 1 - decay)

    def export(self) -> dict[str, torch.Tensor]:
        """Return the weights for a checkpoint: the float32 moving average, with adapters merged, and the model's buffers."""
        buffers = {name: buffer.detach().clone() for name, buffer in self._model.state_dict().items()}
        exact = {**self._frozen, **(self.averages or self.masters)}
        exported = merge_adapters(self._model, {**buffers, **{name: tensor.clone() for name, tensor in exact.items()}})
        return {**exported, **{name: exported[first] for name, first in self._shared.items()}}

    def state(self) -> dict[str, object]:
        """Return everything that the next steps depend on. Weights that do not learn are those that the run started from."""
        return {
            "num_steps": self.num_steps,
            "masters": self.masters,
            "averages": self.averages,
            "buffers": dict(self._buffers()),
            "optimiser": self.optimiser.state_dict(),
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Load the result of state() into a model of the same shape."""
        self.num_steps = state["num_steps"]
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
        self._round()
        for name, average in self.averages.items():
            average.copy_(state["averages"][name])
        for name, buffer in self._buffers():
            buffer.copy_(state["buffers"][name])
        self._keep_buffers(is_sound=True)
        self.optimiser.load_state_dict(state["optimiser"])

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        persistent = self._model.state_dict().keys() - self._parameters.keys()
        return ((name, buffer) for name, buffer in self._model.named_buffers() if name in persistent)


def freeze(model: nn.Module, names: Collection[str]) -> None:
    """Let the parameters of these parts have no gradient, and the statistics of their BatchNorms no update.

    A frozen part is in eval mode, also after model.train(), and has no dropout. recipe.check_used refuses other parts.
    """
    for name in names:
        prefix = _PREFIXES.get(name)
        for path, module in model.named_modules():
            if isinstance(module, nn.BatchNorm1d) if prefix is None else path == prefix:
                module.requires_grad_(False)
                keep_in_eval(module)


def keep_in_eval(module: nn.Module) -> None:
    """Let `train()` have no effect on a module and on those in it."""
    for inner in module.modules():
        inner.train = _stay_in_eval.__get__(inner)  # type: ignore[method-assign]
        inner.training = False


def _stay_in_eval(self: nn.Module, mode: bool = True) -> nn.Module:
    return self


def _is_slow_in_bf16(module: nn.Module) -> bool:
    """True for depthwise convolutions on a CPU: their backward pass is up to 15 times as slow as in float32 (docs/log.md)."""
    return isinstance(module, (nn.Conv1d, nn.Conv2d)) and module.groups > 1 and module.weight.device.type == "cpu"


def _each(operation: str, tensors: list[torch.Tensor], *others: Any) -> None:
    """Call an operation in place of each tensor, in one kernel for many if this torch has it. `others` may be lists as long."""
    together = getattr(torch, f"_foreach_{operation}", None)
    if together is not None:
        together(tensors, *others)
        return
    for number, tensor in enumerate(tensors):
        getattr(tensor, operation)(*(other[number] if isinstance(other, list) else other for other in others))


_PARTS: dict[Head, tuple[str, ...]] = {"transducer": ("predictor", "joint"), "ctc": ("ctc",)}


def choose_trained(model: Model, recipe: Recipe, new_heads: Collection[Head] = ()) -> None:
    """Add the recipe's adapters and freeze its frozen parts, in place.

    Args:
        new_heads: heads with weights that no training has touched yet.

    Raises:
        UsageError: a frozen part is new, or nothing that the loss depends on is left to train.
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
    idle = None
    if model.transducer is not None and model.ctc is not None:
        idle = {0.0: model.ctc, 1.0: model.transducer}.get(ctc_weight)
    parts = [part for part in model.children() if part is not idle]
    return sum(weight.numel() for part in parts for weight in part.parameters() if weight.requires_grad)
