"""The encoder of Nemotron 3 Diarization: stacked mel frames through Transformer layers with rotary positions (Su et al. 2021),
and the layer that makes mel frames of its output again.

Shapes: B batch, M mels, T frames, D width, H heads, K head width, R rotated channels of a head, G outputs of a frame.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.dot_product_attention import aligned_size
from fastscribe.families.canary.attention_decoder import BridgeLayer
from fastscribe.speakers.config import StackingConfig

_MASKED = -1e9


class StackedEncoder(nn.Module):
    """The two parts of an encoder, which run one after the other, with what a speaker cache adds between them."""

    def __init__(self, config: StackingConfig) -> None:
        super().__init__()
        self.subsampling = Stacking(config)
        self.layers = RotaryLayers(config)


class Stacking(nn.Module):
    """Some mel frames become one by a linear layer without bias: [B, T, M] to [B, T', D]. Zeros fill the last one."""

    def __init__(self, config: StackingConfig) -> None:
        super().__init__()
        self.factor = config.subsampling_factor
        self.out = nn.Linear(config.subsampling_factor * config.num_mels, config.d_model, bias=False)

    def forward(self, x_BTM: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded_BTM = F.pad(x_BTM, (0, 0, 0, -x_BTM.shape[1] % self.factor))
        frames_BTD: torch.Tensor = self.out(padded_BTM.unflatten(1, (-1, self.factor)).flatten(2))
        return frames_BTD, -(-lengths_B // self.factor)


class RotaryLayers(nn.Module):
    """The layers: [B, T, D] to [B, T, D]. All frames attend to those within their row's length."""

    def __init__(self, config: StackingConfig) -> None:
        super().__init__()
        self.config = config
        self.first_norm = nn.LayerNorm(config.d_model)
        self.layers = nn.ModuleList(RotaryLayer(config) for _ in range(config.layers.num_layers))
        self.final_norm = nn.LayerNorm(config.d_model)

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        num_frames = x_BTD.shape[1]
        frames_T = torch.arange(aligned_size(num_frames), device=x_BTD.device)
        mask_B11T = ((frames_T >= lengths_B[:, None]).to(x_BTD.dtype) * _MASKED)[:, None, None, :num_frames]
        x_BTD = self.first_norm(x_BTD)
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_B11T)
        out_BTD: torch.Tensor = self.final_norm(x_BTD)
        return out_BTD


class RotaryLayer(BridgeLayer):
    """A Transformer layer whose queries and keys are rotated by their frames' numbers."""

    def __init__(self, config: StackingConfig) -> None:
        super().__init__(config.layers)
        self._base, self._width = config.rotary_base, config.rotary_width

    def _self_attention(self, x_BTD: torch.Tensor, mask_B11T: torch.Tensor) -> torch.Tensor:
        query_BHTK, (key_BHTK, value_BHTK) = self.attention.queries_keys_and_values(x_BTD)
        angles_TR = angles(x_BTD.shape[1], self._width, self._base, x_BTD.device)
        cos_TR, sin_TR = angles_TR.cos().to(x_BTD.dtype), angles_TR.sin().to(x_BTD.dtype)
        rotated = [self._rotated(part_BHTK, cos_TR, sin_TR) for part_BHTK in (query_BHTK, key_BHTK)]
        out_BTD: torch.Tensor = self.attention(rotated[0], (rotated[1], value_BHTK), mask_B11T)
        return out_BTD

    def _rotated(self, x_BHTK: torch.Tensor, cos_TR: torch.Tensor, sin_TR: torch.Tensor) -> torch.Tensor:
        turned_BHTR = x_BHTK[..., : self._width]
        first, second = turned_BHTR.chunk(2, dim=-1)
        turned_BHTR = turned_BHTR * cos_TR + torch.cat([-second, first], -1) * sin_TR
        return torch.cat([turned_BHTR, x_BHTK[..., self._width :]], -1)


def angles(num_frames: int, width: int, base: float, device: torch.device) -> torch.Tensor:
    """Return the angles [T, R] by which channels are rotated; channel i and channel i + R/2 are one pair."""
    frequency_R = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    frames_T = torch.arange(num_frames, dtype=torch.float32, device=device)
    return (frames_T[:, None] * frequency_R).repeat(1, 2)


class Upsampling(nn.Module):
    """A convolution over three frames whose outputs are G frames of the same width: [B, T, D] to [B, TG, D]."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv1d(width, width * factor, 3, padding=1)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Upsample; frames beyond a row's end must be zero."""
        frames_BTE = torch.transpose(self.conv(x_BTD.transpose(1, 2)), 1, 2)
        return torch.unflatten(frames_BTE, 2, (self.factor, -1)).flatten(1, 2)


class LearntSilence(nn.Module):
    """The frame that fills a speaker cache where nobody speaks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frame_D = nn.Parameter(torch.zeros(width))
