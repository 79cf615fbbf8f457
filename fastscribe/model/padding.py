"""Which frames of a batch are real. Shapes: B batch, T frames."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


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
            x.narrow(time_axis, self.first, num_padded).masked_fill_(_aligned(self.mask_BT, x, time_axis), value)
        return x

    def filled(self, x: torch.Tensor, value: float, time_axis: int) -> torch.Tensor:
        """fill_, or, where a gradient will be wanted of what x was made by, a copy: of writes into a slice, autograd makes
        passes over all of it."""
        if not x.requires_grad or not self.mask_BT.shape[1]:
            return self.fill_(x, value, time_axis)
        mask_BT = F.pad(self.mask_BT, (self.first, 0))
        return x.masked_fill(_aligned(mask_BT, x, time_axis), value)


def _aligned(mask_BT: torch.Tensor, x: torch.Tensor, time_axis: int) -> torch.Tensor:
    """With axes of one where x has others than batch and time."""
    shape = [1] * x.dim()
    shape[0], shape[time_axis] = mask_BT.shape
    return mask_BT.view(shape)
