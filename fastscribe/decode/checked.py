"""Rows in which the model made NaN or infinite numbers: found on the device, and given back without a text.

Damaged weights and samples far out of range do this. Without a check such a row is a text of unknown tokens, or none. The
encoder's output is checked because a NaN in the features or in any layer is still there at the end of the residual stream;
the features are checked because an infinity may be cut off by a ReLU. The decoder's own numbers are checked by the
probabilities of its tokens, on the host, where they are anyway. Nothing here makes the host wait for the device.

Shapes: B batch, T frames, D width, M mels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from fastscribe.decode.decoder import Decoder
from fastscribe.types import Features, Frames, Hypothesis, Int32Array

NOT_FINITE = Hypothesis(
    problem="the model made numbers that are not finite: its weights are damaged, or the samples are out of range"
)


@torch.inference_mode()
def checked_frames(frames: Frames, features: Features) -> Frames:
    """The same frames, in which rows that are not finite have no length, so that no decoder spends time on them."""
    sums_BT = frames.frames_BTD.sum(2, dtype=torch.float32)  # not finite where any of the numbers is not
    is_real_BT = torch.arange(sums_BT.shape[1], device=sums_BT.device) < frames.lengths_B[:, None]
    sums_B = sums_BT.where(is_real_BT, 0.0).sum(1) + features.mel_BMT.sum((1, 2))
    is_finite_B = sums_B.isfinite()
    return replace(frames, lengths_B=frames.lengths_B * is_finite_B, is_finite_B=is_finite_B)


@torch.inference_mode()
def submit(decoder: Decoder, frames: Frames) -> torch.Tensor:
    """decoder.submit, and in front of what it returns whether each row is finite, where that was checked."""
    packed = decoder.submit(frames)
    return packed if frames.is_finite_B is None else torch.cat([frames.is_finite_B.int(), packed])


def read(decoder: Decoder, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
    """decoder.read of a host copy of what `submit` returned; NOT_FINITE for rows with numbers that are not finite."""
    num_flags = 0 if frames.is_finite_B is None else len(frames.is_finite_B)
    hypotheses = decoder.read(packed[num_flags:], frames)
    flags = packed[:num_flags].tolist() or [1] * len(hypotheses)
    return [
        hypothesis if is_finite and is_finite_sum(hypothesis.logprobs) else NOT_FINITE
        for hypothesis, is_finite in zip(hypotheses, flags, strict=True)
    ]


def is_finite_sum(logprobs: Sequence[float]) -> bool:
    return math.isfinite(sum(logprobs))
