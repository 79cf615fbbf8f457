"""The interface of every decoder: submit a batch to the device, and read its hypotheses on the host.

The two halves are separate so that the host reads one batch while the device decodes the next. The result of `submit` is
one flat int32 tensor, because small copies to the host cost the same whatever their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, get_args

from fastscribe.config import GraphMode, Options
from fastscribe.errors import UsageError
from fastscribe.types import Frames, Hypothesis, Int32Array

if TYPE_CHECKING:
    import torch

    from fastscribe.checkpoint.value import Checkpoint
    from fastscribe.decode.scorer import FusedModel
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
        """Wait for the device, then free the decoder's memory. Submit nothing afterwards."""
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
