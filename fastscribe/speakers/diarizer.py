"""The diarizer: batches of waveforms in, the probabilities of their speakers out, on the recognizer's device.

Shapes: B batch, S samples, T frames, N speakers, or keys of attention; H heads, Q queries, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from fastscribe._system.float_bits import as_numpy
from fastscribe._system.processors import has_native_bf16
from fastscribe._system.thread_shares import equal_parts, share
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.families.blocks.row_kernels import kernels
from fastscribe.families.canary.attention_decoder import BridgeLayer
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.cpu_layers import MIN_ELEMENTS, conformer_for_cpu_
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.model import Prepare, torch_dtype
from fastscribe.speakers.config import SpeakerCheckpoint
from fastscribe.speakers.side_model import SideModel
from fastscribe.speakers.sortformer import Sortformer
from fastscribe.types import AnyArray, Features, Frames, Hypothesis

_LAYERS = ("encoder.subsampling", "encoder.layers.", "layers.")
_NOT_FINITE = "the speaker model's output holds NaN or infinite numbers"


def attend_with_loop(
    query_BHQK: torch.Tensor, key_BHNK: torch.Tensor, value_BHNK: torch.Tensor, mask_B11N: torch.Tensor
) -> torch.Tensor:
    """Compute softmax(q k' / sqrt(K) + mask) v in bf16, one mask for all queries: `dot_product_attention.attend` for inference.

    torch's fused operator calls MKL for its small products. On an AMD processor it takes 2.8 times as long as two products by
    oneDNN and one loop between them; where a processor has no bf16, oneDNN's take 20 times as long. One recording at a time.
    """
    batch, heads, queries, width = query_BHQK.shape
    loop, factor = kernels("bfloat16", "plain")["masked_softmax"], np.float32(width**-0.5)
    scores_HQN = query_BHQK.new_empty(heads, queries, key_BHNK.shape[2])
    mixed_BQHK = query_BHQK.new_empty(batch, queries, heads, width)
    scores, keys = as_numpy(scores_HQN), scores_HQN.shape[2]
    num_shares = max(1, min(torch.get_num_threads(), scores.size // MIN_ELEMENTS))

    def work(mask_N: Any, start: int, stop: int) -> None:
        loop(scores, mask_N, factor, np.empty((1, keys), np.float32), start, stop)

    for b in range(batch):
        torch.bmm(query_BHQK[b], key_BHNK[b].transpose(1, 2), out=scores_HQN)
        share(equal_parts(heads * queries, num_shares), partial(work, as_numpy(mask_B11N[b, 0, 0])))
        torch.bmm(scores_HQN, value_BHNK[b], out=mixed_BQHK[b].transpose(0, 1))
    return mixed_BQHK.transpose(1, 2)


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
                for layer in model.layers.children():
                    assert isinstance(layer, BridgeLayer)
                    layer.attention.attend = attend_with_loop
        return diarizer

    @torch.inference_mode()
    def features(self, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return the log-mel features of recordings, each divided by its own largest sample if the model wants it."""
        gain_B1: torch.Tensor | None = None
        if (guard := self.model.config.peak_guard) is not None:
            scale = 1 / 32768 if samples_BS.dtype == torch.int16 else 1.0
            rows = zip(samples_BS, lengths_B.tolist(), strict=True)
            peak_B = torch.stack([samples_S[: max(1, length)].amax() for samples_S, length in rows]) * scale
            gain_B1 = (1 / (peak_B + guard))[:, None]
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
