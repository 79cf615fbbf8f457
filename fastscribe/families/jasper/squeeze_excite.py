"""Squeeze-and-excite (Hu et al. 2018) over the frames of a recording, as ContextNet and Citrinet have it.

Each channel is multiplied by a gate between 0 and 1, which two small layers make from the means of all channels over the
recording's frames. Padding is not counted, so a row's result does not depend on its neighbours. A row without frames has means
of zero.

Shapes: B batch, C channels, T frames.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fastscribe.families.blocks.padding import Padding


class SqueezeExcite(nn.Module):
    """[B, C, 1, T] to the same, in place."""

    def __init__(self, channels: int, hidden: int, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, hidden, bias=False)
        self.excite = nn.Linear(hidden, channels, bias=False)
        self.activation = activation

    def forward(self, x_BC1T: torch.Tensor, lengths_B: torch.Tensor, padding: Padding) -> torch.Tensor:
        """Overwrite x. `padding` is that of `lengths_B`, and becomes zero."""
        padding.fill_(x_BC1T, 0.0, time_axis=3)
        return x_BC1T.mul_(self.gate(x_BC1T, lengths_B))

    def gate(self, x_BC1T: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        """Return the gates [B, C, 1, 1] of x, whose padding is zero."""
        sum_BC = x_BC1T.sum(dim=(2, 3), dtype=torch.float32)
        mean_BC = (sum_BC / lengths_B.clamp(min=1)[:, None]).to(x_BC1T.dtype)
        gate_BC: torch.Tensor = self.excite(self.activation(self.squeeze(mean_BC))).sigmoid()
        return gate_BC[:, :, None, None]
