"""The interface of every decoder, and its checked use: submit a batch to the device, and read its hypotheses on the host.

The two halves are separate so that the host reads one batch while the device decodes the next. The result of `submit` is
one flat int32 tensor, because small copies to the host cost the same whatever their size.

A row with NaN or infinite values gets an error instead of a text. Causes are damaged weights and samples far out of range.
Without the check, such a row yields unknown tokens or no text. The encoder's output is checked because the residual stream
carries a NaN from the features or any layer to the end. The features are checked because a ReLU may clip an infinity. The
decoder is checked through the probabilities of its tokens, which the host has anyway. Nothing here makes the host wait for the
device.

Shapes: B batch, T frames, D width, M mels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar, get_args

import numpy as np
import torch

from fastscribe.config import LABELS_PER_FRAME_GUARD, GraphMode, Options
from fastscribe.errors import UsageError
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import Features, Frames, Hypothesis, Int32Array

if TYPE_CHECKING:
    from fastscribe.checkpoint.value import Checkpoint
    from fastscribe.families.model import Model

NOT_FINITE = Hypothesis(
    problem="the model made numbers that are not finite: its weights are damaged, or the samples are out of range"
)


class Decoder(Protocol):
    def submit(self, frames: Frames) -> torch.Tensor:
        """Enqueue a batch on the current stream.

        Returns:
            The packed result, 1-D int32 on the frames' device. Later submits do not overwrite it.
        """
        ...

    def read(self, packed: Int32Array, frames: Frames) -> Sequence[Hypothesis]:
        """Unpack a batch on the host.

        Args:
            packed: host copy of the result of `submit`.
            frames: the argument of that `submit`.

        Returns:
            One Hypothesis per row: a list, or HypothesisColumns, which make a row when it is read.
        """
        ...

    def close(self) -> None:
        """Wait for the device, then free the decoder's memory, if `submit` keeps any. Submit nothing afterwards."""
        return


class FusedModel(Protocol):
    """A language model in beam search, which keeps a state for each hypothesis."""

    @property
    def start(self) -> int:
        """State before a text's first label."""
        ...

    def scores(self, state_N: torch.Tensor) -> torch.Tensor:
        """Return what each label adds to the score [N, V]."""
        ...

    def after(self, state_N: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
        """Return the state after a label [N], int64."""
        ...

    def to(self, device: torch.device) -> FusedModel:
        """Return the tables on a device."""
        ...


@dataclass(frozen=True)
class Parts:
    """What a decoder is built of.

    Attributes:
        model: The model, on its device in its dtype.
        checkpoint: Its checkpoint; the weights may be gone.
        device: Its device.
        options: The run's, with the beam that was chosen.
        say: Called with each line for the user.
        fused: The language model that a beam search fuses; None: there is none.
    """

    model: Model
    checkpoint: Checkpoint
    device: torch.device
    options: Options
    say: Callable[[str], None]
    fused: FusedModel | None = None


@dataclass(frozen=True)
class DecoderMemory:
    """Memory that the decoder needs for a batch, in bytes per encoder frame and per row; zero if it is negligible."""

    frame_bytes: float = 0.0
    row_bytes: float = 0.0  # independent of the row's length


def check_graph_mode(mode: GraphMode, device: torch.device) -> None:
    """Raise UsageError if a device has no such mode of CUDA graphs, or nothing has it."""
    if mode not in get_args(GraphMode):
        raise UsageError(f"--cuda-graphs {mode}: not one of {', '.join(get_args(GraphMode))}")
    if device.type != "cuda" and mode in ("full", "chunked"):
        raise UsageError(f"--cuda-graphs {mode}: needs a CUDA device, not {device.type}")


# With max_symbols up to 10, NeMo's default, no row can exceed `max_labels`.
_LABELS_PER_FRAME = 10
_MORE_LABELS = 4 * LABELS_PER_FRAME_GUARD

Size = TypeVar("Size", int, "torch.Tensor")


def max_labels(num_frames: Size) -> Size:
    """Return the largest number of labels in a row of `num_frames` encoder frames."""
    return _LABELS_PER_FRAME * num_frames + _MORE_LABELS


def max_steps(num_frames: Size) -> Size:
    """Return the largest number of steps for a row of `num_frames`: each takes a label, or a blank that ends a frame."""
    return max_labels(num_frames) + num_frames


# The result of a row that exceeds `max_labels`.
ENDLESS = Hypothesis(
    problem="the model does not stop: it wrote more tokens than speech can have; its weights may be damaged"
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
def submit_checked(decoder: Decoder, frames: Frames) -> torch.Tensor:
    """Call decoder.submit and prepend `frames.is_finite_B`, if it is set, to the packed result."""
    packed = decoder.submit(frames)
    return packed if frames.is_finite_B is None else torch.cat([frames.is_finite_B.int(), packed])


def read_checked(decoder: Decoder, packed: Int32Array, frames: Frames) -> Sequence[Hypothesis]:
    """Call decoder.read with a host copy of the result of submit_checked(); rows that are not finite become NOT_FINITE.

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
