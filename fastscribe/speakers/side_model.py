"""A model beside the recognizer's, on its device: the diarizer builds on it, and the voice printer.

It has the recognizer's stages (recognizer.py), so that the engine overlaps its batches with those that are transcribed.

Shapes: B batch, S samples, T frames, D numbers of a frame, E numbers of a voice's vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from torch import nn

from fastscribe.checkpoint.lazy_weights import check_shapes
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.model import Prepare, empty, load_, shapes
from fastscribe.speakers.config import SpeakerCheckpoint, SpeakerModelConfig, VoiceCheckpoint, VoiceModelConfig
from fastscribe.speakers.sortformer import RotaryLayers, Sortformer, StackedEncoder
from fastscribe.speakers.voice_model import VoiceModel
from fastscribe.types import AnyArray, Features, Frames, Hypothesis

C = TypeVar("C", SpeakerCheckpoint, VoiceCheckpoint)
M = TypeVar("M", bound=nn.Module)
Self = TypeVar("Self", bound="SideModel[Any, Any]")


_CONTAINERS = (Sortformer, VoiceModel, StackedEncoder, RotaryLayers)


def check_weights(
    config: SpeakerModelConfig | VoiceModelConfig, weights: Mapping[str, torch.Tensor], where: object
) -> None:
    """Raise WeightsMismatch if the weights of a speaker or voice model do not fit its config; reads no values."""
    check_shapes(shapes(_empty(config)), weights, where)


def _empty(config: SpeakerModelConfig | VoiceModelConfig) -> Sortformer | VoiceModel:
    return empty(Sortformer, config) if isinstance(config, SpeakerModelConfig) else empty(VoiceModel, config)


@dataclass(frozen=True)
class SideModel(Generic[C, M]):
    """Stages of a model on one device, in float32. build() makes it from a checkpoint."""

    runs_in_parts: ClassVar[bool] = True

    model: M
    log_mel: LogMel
    device: torch.device

    @classmethod
    def build(
        cls: type[Self], checkpoint: C, device: torch.device, prepare: Callable[[torch.device, str], Prepare]
    ) -> Self:
        """Build the model.

        Args:
            checkpoint: Its config and weights.
            device: Where it runs.
            prepare: Returns what converts its parts for a device and a dtype.

        Raises:
            WeightsMismatch: The weights do not fit the config.
        """
        model = _empty(checkpoint.config)
        load_(model, checkpoint.weights, checkpoint.path, prepare(device, "fp32"), containers=_CONTAINERS)
        return cls(cast(Any, model), LogMel(checkpoint.config.features).to(device), device)

    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the log-mel features."""
        features: Features = self.log_mel(samples_BS, lengths_B)
        return features

    def submit(self, frames: Frames) -> torch.Tensor:
        """Return what read() needs a host copy of [B, T, D]."""
        return frames.frames_BTD


_NOT_FINITE = "the voice model's output holds NaN or infinite numbers"


class VoicePrinter(SideModel[VoiceCheckpoint, VoiceModel]):
    """A voice model's stages. The result of an utterance (Hypothesis.found) is its vector [E]."""

    runs_in_parts = False

    @torch.inference_mode()
    def encode(self, features: Features) -> Frames:
        """Return the vectors, as one frame of each row [B, 1, E]."""
        with no_tf32(self.device):
            vectors_BE = self.model(features)
        return Frames(vectors_BE[:, None], features.lengths_B.clamp(max=1))

    def read(self, packed: AnyArray, frames: Frames) -> list[Hypothesis]:
        """Return a Hypothesis for each row, with its vector alone."""
        return [_hypothesis(row_TE[0]) for row_TE in packed]


def _hypothesis(voice_E: AnyArray) -> Hypothesis:
    is_usable = bool(np.isfinite(voice_E).all() and voice_E.any())
    return Hypothesis(found=voice_E.copy()) if is_usable else Hypothesis(problem=_NOT_FINITE)
