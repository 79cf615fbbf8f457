"""The CTC head (Graves et al. 2006): one linear layer from encoder frames to labels and blank."""

from __future__ import annotations

import torch
from torch import nn


class CtcHead(nn.Module):
    """A linear layer from [B, T, D] to logits [B, T, V], blank last."""

    def __init__(self, d_model: int, num_tokens: int) -> None:
        super().__init__()
        self.output = nn.Linear(d_model, num_tokens)

    def forward(self, frames_BTD: torch.Tensor) -> torch.Tensor:
        logits_BTV: torch.Tensor = self.output(frames_BTD)
        return logits_BTV
