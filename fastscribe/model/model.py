"""The trained parts of a model: the encoder and the heads its checkpoint has. Tensors only; it never sees a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fastscribe.config import ModelConfig
from fastscribe.errors import WeightsMismatch
from fastscribe.model.aed import AttentionDecoder
from fastscribe.model.ctc import CtcHead
from fastscribe.model.families import FAMILIES
from fastscribe.model.transducer import Transducer

# BatchNorm's step counter is bookkeeping that some writers leave out; it changes nothing.
_OPTIONAL_SUFFIX = ".num_batches_tracked"


class Model(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = FAMILIES[type(config.encoder)].build(config.encoder)
        self.transducer: Transducer | None = None
        if config.joint is not None:
            assert config.predictor is not None
            self.transducer = Transducer(
                config.predictor, config.joint, config.durations, config.encoder.d_model, config.blank_id
            )
        self.ctc = CtcHead(config.encoder.d_model, config.blank_id + 1) if config.has_ctc else None
        self.aed: AttentionDecoder | None = None
        if config.aed is not None:
            encoder = config.encoder
            self.aed = AttentionDecoder(config.aed, encoder.d_model, config.num_labels, encoder.subsampling_factor)

    def optimise_(self) -> None:
        """The inference form: the same function, of weights that have other names and fewer parts."""
        self.encoder.optimise_()
        if self.aed is not None:
            self.aed.optimise_()


class _Uninitialised(TorchFunctionMode):
    """Leaves out torch.nn.init's work. On meta tensors some of it makes torch import its compiler, which takes a second
    and writes a folder, before anybody knows whether the weights fit."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def build_model(config: ModelConfig, weights: Mapping[str, torch.Tensor], where: object) -> Model:
    """A float32 model on the CPU in eval mode. Raises WeightsMismatch listing every name that does not fit."""
    with torch.device("meta"), _Uninitialised():
        model = Model(config)
    weights = dict(weights)
    expected = model.state_dict()
    for name in expected:
        if name.endswith(_OPTIONAL_SUFFIX):
            weights.setdefault(name, torch.zeros((), dtype=torch.long))
    wrong = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    missing, unexpected = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    if missing or unexpected or wrong:
        raise WeightsMismatch(where, missing, unexpected, wrong)
    floats = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    model.load_state_dict(floats, assign=True)
    return model.eval().requires_grad_(False)
