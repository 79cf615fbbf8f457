"""The diarizer: batches of waveforms in, the probabilities of their speakers out, on the recognizer's device.

It has the recognizer's stages (recognizer.py), so that the engine overlaps its batches with those that are transcribed.

Shapes: B batch, S samples, T frames, N speakers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastscribe.checkpoint.value import SpeakerCheckpoint
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.model.features import LogMel
from fastscribe.model.model import Prepare, build_speaker_model
from fastscribe.model.sortformer import Sortformer
from fastscribe.speaker_config import SpeakerModelConfig
from fastscribe.types import AnyArray, Features, Frames, Hypothesis

_NOT_FINITE = "the speaker model's output holds NaN or infinite numbers"


@dataclass(frozen=True)
class Diarizer:
    """A speaker model's stages on one device. build() makes it from a checkpoint.

    The model is in float32 whatever the recognizer's dtype: which frames a speaker cache keeps depends on small differences.
    """

    model: Sortformer
    log_mel: LogMel
    device: torch.device

    @classmethod
    def build(
        cls,
        checkpoint: SpeakerCheckpoint,
        device: torch.device,
        prepare: Callable[[torch.device, str], Prepare],
    ) -> Diarizer:
        """Build the model.

        Args:
            checkpoint: Its config and weights.
            device: Where it runs.
            prepare: Returns what converts its parts for a device and a dtype.

        Raises:
            WeightsMismatch: The weights do not fit the config.
        """
        model = build_speaker_model(checkpoint.config, checkpoint.weights, checkpoint.path, prepare(device, "fp32"))
        return cls(model, LogMel(checkpoint.config.features).to(device), device)

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
        features: Features = self.log_mel(samples_BS, lengths_B)
        return features

    @torch.inference_mode()
    def encode(self, features: Features) -> Frames:
        """Return the probabilities, as frames [B, T, N]."""
        with no_tf32(self.device):
            probabilities_BTN, lengths_B = self.model(features)
        return Frames(probabilities_BTN, lengths_B)

    def submit(self, frames: Frames) -> torch.Tensor:
        """Return what read() needs a host copy of."""
        return frames.frames_BTD

    def read(self, packed: AnyArray, frames: Frames) -> list[Hypothesis]:
        """Return a Hypothesis for each row, with its probabilities alone."""
        rows = zip(packed, frames.lengths_B.tolist(), strict=True)
        return [_hypothesis(row_TN[:length]) for row_TN, length in rows]


def _hypothesis(speakers_TN: AnyArray) -> Hypothesis:
    is_finite = bool((speakers_TN >= 0).all())  # NaN compares as false
    return Hypothesis(speakers_TN=speakers_TN.copy()) if is_finite else Hypothesis(problem=_NOT_FINITE)
