"""The interface of every decoder: submit a batch to the device, and read its hypotheses on the host.

The two halves are separate so that the host reads one batch while the device decodes the next. The result of `submit` is
one flat int32 tensor, because small copies to the host cost the same whatever their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from fastscribe.types import Frames, Hypothesis, Int32Array


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
