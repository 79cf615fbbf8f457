"""The diarizer: batches of waveforms in, the probabilities of their speakers out, on the recognizer's device.

Shapes: B batch, S samples, T frames, N speakers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fastscribe._system.processors import has_native_bf16
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.cpu_layers import conformer_for_cpu_
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.cpu_form import torch_dtype
from fastscribe.families.model import Prepare
from fastscribe.speakers.checkpoints import SpeakerCheckpoint
from fastscribe.speakers.config import SpeakerModelConfig
from fastscribe.speakers.cpu_attention import transformer_for_cpu_
from fastscribe.speakers.side_model import SideModel
from fastscribe.speakers.sortformer import Sortformer
from fastscribe.types import AnyArray, Features, Frames, Hypothesis

_LAYERS = ("encoder.subsampling", "encoder.layers.", "layers.")
_NOT_FINITE = "the speaker model's output holds NaN or infinite numbers"


class Diarizer(SideModel[SpeakerCheckpoint, Sortformer]):
    """A speaker model's stages.

    The result of an utterance (Hypothesis.found) is the probability that each speaker speaks, of every frame [T, N].

    On a CPU, the subsampling and the layers of a FastConformer and of the Transformer behind it are in the recognizer's dtype.
    All else is in float32 in every dtype: features, the frames that a speaker cache keeps, and what makes probabilities and
    scores.
    """

    @classmethod
    def build(
        cls,
        checkpoint: SpeakerCheckpoint,
        device: torch.device,
        prepare: Callable[[torch.device, str], Prepare],
        dtype: str = "fp32",
    ) -> Diarizer:
        """Build the model as SideModel.build() does; `dtype` is the recognizer's."""
        is_narrow = device.type == "cpu" and isinstance(checkpoint.config.encoder, EncoderConfig)
        layers_dtype = dtype if is_narrow else "fp32"

        def prepare_parts(device: torch.device, rest_dtype: str) -> Prepare:
            prepare_layer, prepare_rest = prepare(device, layers_dtype), prepare(device, rest_dtype)

            def prepare_part(path: str, part: nn.Module) -> None:
                (prepare_layer if path.startswith(_LAYERS) else prepare_rest)(path, part)

            return prepare_part

        diarizer = super().build(checkpoint, device, prepare_parts)
        model = diarizer.model
        model.layers_dtype = torch_dtype(layers_dtype)
        if device.type == "cpu" and isinstance(model.encoder, Encoder):
            conformer_for_cpu_(model.encoder)
            if model.encoder.config.has_loops and model.layers_dtype == torch.bfloat16 and has_native_bf16():
                transformer_for_cpu_(model.layers)
        return diarizer

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

    def read(self, packed: AnyArray, frames: Frames) -> list[Hypothesis]:
        """Return a Hypothesis for each row, with its probabilities alone."""
        rows = zip(packed, frames.lengths_B.tolist(), strict=True)
        return [_hypothesis(row_TN[:length]) for row_TN, length in rows]


def _hypothesis(speakers_TN: AnyArray) -> Hypothesis:
    is_finite = bool((speakers_TN >= 0).all())  # NaN compares as false
    return Hypothesis(found=speakers_TN.copy()) if is_finite else Hypothesis(problem=_NOT_FINITE)
