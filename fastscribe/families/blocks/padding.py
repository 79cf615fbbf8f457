"""Padding masks of a batch. Shapes: B batch, T frames."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Padding:
    """A mask of frames beyond their row's length, from frame `first` on; no row is padded before it."""

    mask_BT: torch.Tensor  # True: padding
    first: int

    @classmethod
    def of(cls, lengths_B: torch.Tensor, num_frames: int) -> Padding:
        # Reading the shortest length is free on a CPU; otherwise it would make the host wait for the device.
        first = min(num_frames, int(lengths_B.min())) if lengths_B.device.type == "cpu" else 0
        return cls(torch.arange(first, num_frames, device=lengths_B.device) >= lengths_B[:, None], first)

    def between(self, start: int, stop: int) -> Padding:
        """Return the padding of frames `start` to `stop`, relative to `start`."""
        first = min(max(self.first, start), stop)
        return Padding(self.mask_BT[:, max(0, first - self.first) : max(0, stop - self.first)], first - start)

    def fill_(self, x: torch.Tensor, value: float, time_axis: int) -> torch.Tensor:
        """Write `value` to the padded frames of x, whose batch axis is 0."""
        num_padded = self.mask_BT.shape[1]
        if num_padded:
            x.narrow(time_axis, self.first, num_padded).masked_fill_(_aligned(self.mask_BT, x, time_axis), value)
        return x

    def filled(self, x: torch.Tensor, value: float, time_axis: int) -> torch.Tensor:
        """Fill in place, or return a copy if x needs a gradient: autograd handles writes to a slice by passes over all of x."""
        if not x.requires_grad or not self.mask_BT.shape[1]:
            return self.fill_(x, value, time_axis)
        mask_BT = F.pad(self.mask_BT, (self.first, 0))
        return x.masked_fill(_aligned(mask_BT, x, time_axis), value)


def _aligned(mask_BT: torch.Tensor, x: torch.Tensor, time_axis: int) -> torch.Tensor:
    """Add axes of size one, so that the mask broadcasts to x."""
    shape = [1] * x.dim()
    shape[0], shape[time_axis] = mask_BT.shape
    return mask_BT.view(shape)


def zero_beyond(x_BTFC: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """Zero the padding that affects the next convolution's valid outputs, in place unless a gradient is needed.

    A window of three frames at a stride of two extends one frame beyond a row's length, so only that frame is written.
    Zeroing all padding would be a pass over the whole tensor on a GPU, where the host does not know the shortest length.
    """
    num_frames = x_BTFC.shape[1]
    if x_BTFC.requires_grad:
        return Padding.of(lengths_B, num_frames).filled(x_BTFC, 0.0, time_axis=1)
    rows_B = torch.arange(len(lengths_B), device=lengths_B.device)
    next_B = lengths_B.clamp(max=num_frames - 1)
    is_real_B11 = (lengths_B >= num_frames)[:, None, None]  # a row without padding keeps its last frame
    x_BTFC[rows_B, next_B] = torch.where(is_real_B11, x_BTFC[rows_B, next_B], 0.0)
    return x_BTFC
