"""The diarizer: batches of waveforms in, the probabilities of their speakers out, on the recognizer's device.

Shapes: B batch, S samples, T frames, N speakers.
"""

from __future__ import annotations

import torch

from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.model.sortformer import Sortformer
from fastscribe.pipeline.side_model import SideModel
from fastscribe.speaker_config import SpeakerModelConfig
from fastscribe.types import AnyArray, Features, Frames, Hypothesis

_NOT_FINITE = "the speaker model's output holds NaN or infinite numbers"


class Diarizer(SideModel[Sortformer]):
    """A speaker model's stages. In float32, because the frames that a speaker cache keeps depend on small differences."""

    @property
    def config(self) -> SpeakerModelConfig:
        return self.model.config

    @torch.inference_mode()
    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the log-mel features of recordings, each divided by its own largest sample if the model wants it."""
        if samples_BS.dtype == torch.int16:
            samples_BS = samples_BS.float() / 32768.0
        if self.config.peak_guard is not None:
            is_beyond_BS = torch.arange(samples_BS.shape[1], device=self.device) >= lengths_B[:, None]
            peak_B1 = samples_BS.masked_fill(is_beyond_BS, -torch.inf).amax(1, keepdim=True)
            samples_BS = samples_BS * (1 / (peak_B1 + self.config.peak_guard))
        return super().features(samples_BS, lengths_B)

    @torch.inference_mode()
    def encode(self, features: Features) -> Frames:
        """Return the probabilities, as frames [B, T, N]."""
        with no_tf32(self.device):
            probabilities_BTN, lengths_B = self.model(features)
        return Frames(probabilities_BTN, lengths_B)

    def read(self, packed: AnyArray, frames: Frames) -> list[Hypothesis]:
        """Return a Hypothesis for each row, with its probabilities alone."""
        rows = zip(packed, frames.lengths_B.tolist(), strict=True)
        return [_hypothesis(row_TN[:length]) for row_TN, length in rows]


def _hypothesis(speakers_TN: AnyArray) -> Hypothesis:
    is_finite = bool((speakers_TN >= 0).all())  # NaN compares as false
    return Hypothesis(speakers_TN=speakers_TN.copy()) if is_finite else Hypothesis(problem=_NOT_FINITE)
