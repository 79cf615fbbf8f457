"""What every decoder can do: take a batch on the device, and read on the host what the device found.

The two halves are separate so that the host can read one batch while the device decodes the next. Between them travels
one flat int32 tensor, because a single copy to the host costs what a copy of any size costs.
"""

from __future__ import annotations

from typing import Protocol

import torch

from fastscribe.types import Frames, Hypothesis, Int32Array


class Decoder(Protocol):
    def submit(self, frames: Frames) -> torch.Tensor:
        """Puts the batch to work on the current stream -> all that `read` needs, 1-D int32 on the frames' device.

        The tensor is the caller's: later submits do not touch it.
        """
        ...

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        """A host copy of what `submit` returned, and the frames it was given -> one Hypothesis a row."""
        ...

    def close(self) -> None:
        """Waits for the device to finish with this decoder's memory and frees it; nothing may be submitted after."""
        ...
