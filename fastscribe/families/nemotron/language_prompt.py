"""The layers after the encoder of Nemotron 3.5 ASR that tell it which language to write.

Shapes: B batch, T frames, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.folding import linear_from
from fastscribe.families.blocks.forms import Optimised
from fastscribe.families.conformer.config import LanguagePromptConfig


class LanguagePrompt(Optimised):
    """Frames [B, T, D] with a one-hot of the language beside each to frames [B, T, D]: two layers with a ReLU between."""

    def __init__(self, config: LanguagePromptConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.is_optimised = False
        self.inner = nn.Linear(width + config.num_prompts, config.hidden)
        self.outer = nn.Linear(config.hidden, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        if not self.is_optimised:
            language = x_BTD.new_zeros(*x_BTD.shape[:2], self.config.num_prompts)
            language[..., self.config.index] = 1.0
            x_BTD = torch.cat([x_BTD, language], dim=2)
        out_BTD: torch.Tensor = self.outer(F.relu(self.inner(x_BTD), inplace=not self.training))
        return out_BTD

    @torch.no_grad()
    def optimise_(self) -> None:
        """Add the language's column to the bias of the first layer, in float32: the one-hot is the same at all frames."""
        linear, num_prompts, self.is_optimised = self.inner, self.config.num_prompts, True
        frames, languages = linear.weight.split([linear.in_features - num_prompts, num_prompts], dim=1)
        self.inner = linear_from(frames.contiguous(), linear.bias.float() + languages[:, self.config.index].float())
