"""The voice printer: batches of waveforms in, a vector of each voice out, on the recognizer's device.

It has the recognizer's stages (recognizer.py), so that the engine overlaps its batches with those that are transcribed.

Shapes: B batch, S samples, E numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fastscribe.checkpoint.value import VoiceCheckpoint
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.model.features import LogMel
from fastscribe.model.model import Prepare, build_voice_model
from fastscribe.model.voice_model import VoiceModel
from fastscribe.speaker_config import VoiceModelConfig
from fastscribe.types import AnyArray, Features, Frames, Hypothesis

_NOT_FINITE = "the voice model's output holds NaN or infinite numbers"


@dataclass(frozen=True)
class VoicePrinter:
    """A voice model's stages on one device, in float32 whatever the recognizer's dtype. build() makes it from a checkpoint."""

    model: VoiceModel
    log_mel: LogMel
    device: torch.device

    @classmethod
    def build(
        cls,
        checkpoint: VoiceCheckpoint,
        device: torch.device,
        prepare: Callable[[torch.device, str], Prepare],
    ) -> VoicePrinter:
        """Build the model.

        Args:
            checkpoint: Its config and weights.
            device: Where it runs.
            prepare: Returns what converts its parts for a device and a dtype.

        Raises:
            WeightsMismatch: The weights do not fit the config.
        """
        model = build_voice_model(checkpoint.config, checkpoint.weights, checkpoint.path, prepare(device, "fp32"))
        return cls(model, LogMel(checkpoint.config.features).to(device), device)

    @property
    def config(self) -> VoiceModelConfig:
        return self.model.config

    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the log-mel features."""
        features: Features = self.log_mel(samples_BS, lengths_B)
        return features

    @torch.inference_mode()
    def encode(self, features: Features) -> Frames:
        """Return the vectors, as one frame of each row [B, 1, E]."""
        with no_tf32(self.device):
            vectors_BE = self.model(features)
        return Frames(vectors_BE[:, None], features.lengths_B.clamp(max=1))

    def submit(self, frames: Frames) -> torch.Tensor:
        """Return what read() needs a host copy of."""
        return frames.frames_BTD

    def read(self, packed: AnyArray, frames: Frames) -> list[Hypothesis]:
        """Return a Hypothesis for each row, with its vector alone."""
        return [_hypothesis(row_TE[0]) for row_TE in packed]


def _hypothesis(voice_E: AnyArray) -> Hypothesis:
    is_usable = bool(np.isfinite(voice_E).all() and voice_E.any())
    return Hypothesis(voice_E=voice_E.copy()) if is_usable else Hypothesis(problem=_NOT_FINITE)
