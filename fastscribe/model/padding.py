"""Which frames of a batch are real. Shapes: B batch, T frames."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Padding:
    """Which frames lie beyond their row's length. No row is padded before frame `first`, so nothing there needs masking."""

    mask_BT: torch.Tensor
    first: int

    @classmethod
    def of(cls, lengths_B: torch.Tensor, num_frames: int) -> Padding:
        # The shortest length is free to ask for on a CPU; elsewhere it would make the host wait for the device.
        first = min(num_frames, int(lengths_B.min())) if lengths_B.device.type == "cpu" else 0
        return cls(torch.arange(first, num_frames, device=lengths_B.device) >= lengths_B[:, None], first)

    def between(self, start: int, stop: int) -> Padding:
        """The same for frames `start` to `stop` alone, counted from `start`."""
        first = min(max(self.first, start), stop)
        return Padding(self.mask_BT[:, max(0, first - self.first) : max(0, stop - self.first)], first - start)

    def fill_(self, x: torch.Tensor, value: float, time_axis: int) -> torch.Tensor:
        """Writes `value` into x's padded frames; x has the batch in front and the frames on `time_axis`."""
        num_padded = self.mask_BT.shape[1]
        if num_padded:
            shape = [1] * x.dim()
            shape[0], shape[time_axis] = self.mask_BT.shape
            x.narrow(time_axis, self.first, num_padded).masked_fill_(self.mask_BT.view(shape), value)
        return x

    def filled(self, x: torch.Tensor, value: float, time_axis: int) -> torch.Tensor:
        """fill_, or a copy where a gradient will be wanted of what x was made by."""
        return self.fill_(x.clone() if x.requires_grad else x, value, time_axis)
