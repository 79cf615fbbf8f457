"""The interface of every decoder: submit a batch to the device, and read its hypotheses on the host.

The two halves are separate so that the host reads one batch while the device decodes the next. The result of `submit` is
one flat int32 tensor, because small copies to the host cost the same whatever their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, get_args

from fastscribe.config import LABELS_PER_FRAME_GUARD, GraphMode, Options
from fastscribe.errors import UsageError
from fastscribe.types import Frames, Hypothesis, Int32Array

if TYPE_CHECKING:
    import torch

    from fastscribe.checkpoint.value import Checkpoint
    from fastscribe.families.model import Model


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
