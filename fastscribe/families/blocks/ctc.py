"""The CTC head (Graves et al. 2006): one linear layer from encoder frames to labels and blank."""

from __future__ import annotations

import torch
from torch import nn

MAX_LOGITS = 1 << 27  # computed at once; those of a large batch and vocabulary would take more memory than the encoder


class CtcHead(nn.Module):
    """A linear layer from [B, T, D] to logits [B, T, V], blank last."""

    def __init__(self, d_model: int, num_tokens: int) -> None:
        super().__init__()
        self.output = nn.Linear(d_model, num_tokens)

    def forward(self, frames_BTD: torch.Tensor) -> torch.Tensor:
        logits_BTV: torch.Tensor = self.output(frames_BTD)
        return logits_BTV


def split_for_logits(frames_BTD: torch.Tensor, num_tokens: int) -> tuple[torch.Tensor, ...]:
    """Split the frames of all rows [B*T, D] into parts of at most MAX_LOGITS logits."""
    parts: tuple[torch.Tensor, ...] = frames_BTD.flatten(0, 1).split(max(1, MAX_LOGITS // num_tokens))
    return parts
