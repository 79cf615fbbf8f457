"""Detection of rows with NaN or infinite values; such a row gets an error instead of a text.

Causes are damaged weights and samples far out of range. Without the check, such a row yields unknown tokens or no text.
The encoder's output is checked because the residual stream carries a NaN from the features or any layer to the end. The
features are checked because a ReLU may clip an infinity. The decoder is checked through the probabilities of its tokens,
which the host has anyway. Nothing here makes the host wait for the device.

Shapes: B batch, T frames, D width, M mels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fastscribe.decode.decoder import Decoder
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import Features, Frames, Hypothesis, Int32Array

NOT_FINITE = Hypothesis(
    problem="the model made numbers that are not finite: its weights are damaged, or the samples are out of range"
)


@torch.inference_mode()
def checked_frames(frames: Frames, features: Features) -> Frames:
    """Set the length of every row that is not finite to 0, so that no decoder spends time on it.

    Args:
        frames: encoder output.
        features: the encoder's input, whose padding is 0.

    Returns:
        The frames with `is_finite_B` set.
    """
    sums_BT = frames.frames_BTD.sum(2, dtype=torch.float32)  # not finite if any summand is not
    is_real_BT = torch.arange(sums_BT.shape[1], device=sums_BT.device) < frames.lengths_B[:, None]
    sums_B = sums_BT.where(is_real_BT, 0.0).sum(1) + features.mel_BMT.sum((1, 2))
    is_finite_B = sums_B.isfinite()
    return replace(frames, lengths_B=frames.lengths_B * is_finite_B, is_finite_B=is_finite_B)


@torch.inference_mode()
def submit(decoder: Decoder, frames: Frames) -> torch.Tensor:
    """Call decoder.submit and prepend `frames.is_finite_B`, if it is set, to the packed result."""
    packed = decoder.submit(frames)
    return packed if frames.is_finite_B is None else torch.cat([frames.is_finite_B.int(), packed])


def read(decoder: Decoder, packed: Int32Array, frames: Frames) -> Sequence[Hypothesis]:
    """Call decoder.read with a host copy of the result of `submit`; rows that are not finite become NOT_FINITE.

    HypothesisColumns stay columns.
    """
    num_flags = 0 if frames.is_finite_B is None else len(frames.is_finite_B)
    hypotheses = decoder.read(packed[num_flags:], frames)
    flags_B = packed[:num_flags] if num_flags else np.ones(len(hypotheses), np.int32)
    if isinstance(hypotheses, HypothesisColumns):
        return hypotheses.with_problem((flags_B == 0) | ~hypotheses.are_finite, NOT_FINITE.problem)
    return [
        hypothesis if is_finite and is_finite_sum(hypothesis.logprobs) else NOT_FINITE
        for hypothesis, is_finite in zip(hypotheses, flags_B.tolist(), strict=True)
    ]


def is_finite_sum(logprobs: Sequence[float]) -> bool:
    return math.isfinite(sum(logprobs))
