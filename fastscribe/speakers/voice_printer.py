"""The voice printer: batches of waveforms in, a vector of each voice out, on the recognizer's device.

Shapes: B batch, E numbers of a vector.
"""

from __future__ import annotations

import numpy as np
import torch

from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.speakers.checkpoints import VoiceCheckpoint
from fastscribe.speakers.config import VoiceModelConfig
from fastscribe.speakers.side_model import SideModel
from fastscribe.speakers.voice_model import VoiceModel
from fastscribe.types import AnyArray, Features, Frames, Hypothesis

_NOT_FINITE = "the voice model's output holds NaN or infinite numbers"


class VoicePrinter(SideModel[VoiceCheckpoint, VoiceModel]):
    """A voice model's stages. The result of an utterance (Hypothesis.found) is its vector [E]."""

    runs_in_parts = False

    @property
    def config(self) -> VoiceModelConfig:
        return self.model.config

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
