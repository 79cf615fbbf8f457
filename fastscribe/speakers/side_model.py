"""A model beside the recognizer's, on its device: the diarizer and the voice printer build on it.

It has the recognizer's stages (recognizer.py), so that the engine overlaps its batches with those that are transcribed.

Shapes: B batch, S samples, T frames, D numbers of a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import nn

from fastscribe.families.blocks.features import LogMel
from fastscribe.families.model import Prepare
from fastscribe.speakers.checkpoints import SpeakerCheckpoint, VoiceCheckpoint
from fastscribe.speakers.networks import build_network
from fastscribe.types import Features, Frames

C = TypeVar("C", SpeakerCheckpoint, VoiceCheckpoint)
M = TypeVar("M", bound=nn.Module)
Self = TypeVar("Self", bound="SideModel[Any, Any]")


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
        model = build_network(checkpoint.config, checkpoint.weights, checkpoint.path, prepare(device, "fp32"))
        return cls(cast(Any, model), LogMel(checkpoint.config.features).to(device), device)

    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the log-mel features."""
        features: Features = self.log_mel(samples_BS, lengths_B)
        return features

    def submit(self, frames: Frames) -> torch.Tensor:
        """Return what read() needs a host copy of [B, T, D]."""
        return frames.frames_BTD
