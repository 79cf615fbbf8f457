"""Build the network of a speaker model or a voice model, with its weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fastscribe.checkpoint.lazy_weights import check_shapes
from fastscribe.families.model import Prepare, empty, load_, shapes
from fastscribe.speakers.config import SpeakerModelConfig, VoiceModelConfig
from fastscribe.speakers.sortformer import Sortformer
from fastscribe.speakers.stacked_encoder import RotaryLayers, StackedEncoder
from fastscribe.speakers.voice_model import VoiceModel

_CONTAINERS = (Sortformer, VoiceModel, StackedEncoder, RotaryLayers)


def build_network(
    config: SpeakerModelConfig | VoiceModelConfig,
    weights: Mapping[str, torch.Tensor],
    where: object,
    prepare_: Prepare | None = None,
) -> Sortformer | VoiceModel:
    """Build a speaker or voice model, as model.build_model() a transcription model."""
    network = _empty(config)
    load_(network, weights, where, prepare_, containers=_CONTAINERS)
    return network


def check_weights(
    config: SpeakerModelConfig | VoiceModelConfig, weights: Mapping[str, torch.Tensor], where: object
) -> None:
    """Raise WeightsMismatch if the weights of a speaker or voice model do not fit its config; reads no values."""
    check_shapes(shapes(_empty(config)), weights, where)


def _empty(config: SpeakerModelConfig | VoiceModelConfig) -> Sortformer | VoiceModel:
    return empty(Sortformer, config) if isinstance(config, SpeakerModelConfig) else empty(VoiceModel, config)
