"""The diarizer: batches of waveforms in, the probabilities of their speakers out, on the recognizer's device.

It has the recognizer's stages (recognizer.py), so that the engine overlaps its batches with those that are transcribed.

Shapes: B batch, S samples, T frames, N speakers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fastscribe.checkpoint.value import SpeakerCheckpoint
from fastscribe.config import EncoderConfig
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.model.cpu_form import torch_dtype
from fastscribe.model.cpu_layers import conformer_for_cpu_
from fastscribe.model.encoder import Encoder
from fastscribe.model.features import LogMel
from fastscribe.model.model import Prepare, build_speaker_model
from fastscribe.model.sortformer import Sortformer
from fastscribe.speaker_config import SpeakerModelConfig
from fastscribe.types import AnyArray, Features, Frames, Hypothesis

_LAYERS = ("encoder.layers.", "layers.")
_NOT_FINITE = "the speaker model's output holds NaN or infinite numbers"


@dataclass(frozen=True)
class Diarizer:
    """A speaker model's stages on one device. build() makes it from a checkpoint.

    On a CPU, the layers of a FastConformer and of the Transformer behind it are in the recognizer's dtype. All else is in
    float32 in every dtype: subsampling, whose frames a speaker cache keeps, and what makes probabilities and scores.
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
        dtype: str = "fp32",
    ) -> Diarizer:
        """Build the model.

        Args:
            checkpoint: Its config and weights.
            device: Where it runs.
            prepare: Returns what converts its parts for a device and a dtype.
            dtype: The recognizer's.

        Raises:
            WeightsMismatch: The weights do not fit the config.
        """
        config, prepare_rest = checkpoint.config, prepare(device, "fp32")
        is_narrow = device.type == "cpu" and isinstance(config.encoder, EncoderConfig)
        prepare_layers = prepare(device, dtype) if is_narrow else prepare_rest

        def prepare_part(path: str, part: nn.Module) -> None:
            (prepare_layers if path.startswith(_LAYERS) else prepare_rest)(path, part)

        model = build_speaker_model(config, checkpoint.weights, checkpoint.path, prepare_part)
        if is_narrow:
            model.layers_dtype = torch_dtype(dtype)
            # In float32 the loops gain nothing over torch's layers: most of the time is in products.
            if dtype != "fp32" and isinstance(model.encoder, Encoder):
                conformer_for_cpu_(model.encoder)
        return cls(model, LogMel(config.features).to(device), device)

    @property
    def config(self) -> SpeakerModelConfig:
        return self.model.config

    @torch.inference_mode()
    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the log-mel features of recordings, each divided by its own largest sample if the model wants it."""
        gain_B1: torch.Tensor | None = None
        if self.config.peak_guard is not None:
            scale = 1 / 32768 if samples_BS.dtype == torch.int16 else 1.0
            rows = zip(samples_BS, lengths_B.tolist(), strict=True)
            peak_B = torch.stack([samples_S[: max(1, length)].amax() for samples_S, length in rows]) * scale
            gain_B1 = (1 / (peak_B + self.config.peak_guard))[:, None]
        features: Features = self.log_mel(samples_BS, lengths_B, gain_B1)
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
