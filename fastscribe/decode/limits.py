"""The most labels and steps of a row: one with more has no transcript, because its checkpoint is damaged or malicious."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from fastscribe.config import LABELS_PER_FRAME_GUARD
from fastscribe.types import Hypothesis

if TYPE_CHECKING:
    import torch

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
