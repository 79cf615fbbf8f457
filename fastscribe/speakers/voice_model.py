"""Voice models (TitaNet, SpeakerNet, ECAPA-TDNN): the features of a stretch of speech to one vector, similar for one person.

An encoder makes frames, a pooling makes one vector of all of them, and layers make it smaller. NeMo's layer that tells the
people of the training apart is left out.

Shapes: B batch, T frames, D width of the encoder, P numbers from the pooling, A attention channels, E numbers of the vector.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.jasper.config import JasperConfig
from fastscribe.families.jasper.encoder import JasperEncoder
from fastscribe.speakers.config import VoiceModelConfig
from fastscribe.speakers.ecapa import EcapaEncoder
from fastscribe.types import Features, Frames

_MIN_VARIANCE = 1e-10


class VoiceModel(nn.Module):
    """Features to vectors [B, E]."""

    def __init__(self, config: VoiceModelConfig) -> None:
        super().__init__()
        self.config = config
        encoder = config.encoder
        self.encoder = JasperEncoder(encoder) if isinstance(encoder, JasperConfig) else EcapaEncoder(encoder)
        self.attention = AttentionWeights(encoder.d_model, config.attention_channels) if self._has_attention else None
        sizes = (config.pooled_size, *config.sizes)
        layer = NormLinear if self._has_attention else LinearNorm
        self.layers = nn.ModuleList(layer(*pair) for pair in pairwise(sizes))

    @property
    def _has_attention(self) -> bool:
        return self.config.pooling == "attention"

    def forward(self, features: Features) -> torch.Tensor:
        frames: Frames = self.encoder(features)
        x_BP = self._pool(frames.frames_BTD.float(), frames.lengths_B)
        *earlier, last = self.layers
        for layer in earlier:
            x_BP = layer(x_BP) if self._has_attention else F.relu(layer(x_BP))
        vectors_BE: torch.Tensor = last(x_BP)
        return vectors_BE

    def _pool(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        is_frame_BT1 = (torch.arange(x_BTD.shape[1], device=x_BTD.device) < lengths_B[:, None])[:, :, None]
        x_BTD = x_BTD.masked_fill(~is_frame_BT1, 0.0)
        counts_B11 = lengths_B.clamp(min=1)[:, None, None]
        mean_BD, std_BD = _statistics(x_BTD, is_frame_BT1 / counts_B11)
        if self.config.pooling == "tap":
            return mean_BD
        if self.attention is not None:
            scores_BTD = self.attention(x_BTD, torch.cat([mean_BD, std_BD], 1))
            weights_BTD = scores_BTD.masked_fill(~is_frame_BT1, -torch.inf).softmax(1)
            return torch.cat(_statistics(x_BTD, weights_BTD), 1)
        # The unbiased variance.
        num_frames_B1 = lengths_B[:, None]
        variance_BD = std_BD.square() * num_frames_B1 / (num_frames_B1 - 1).clamp(min=1)
        return torch.cat([mean_BD, variance_BD.clamp(min=_MIN_VARIANCE).sqrt()], 1)


def _statistics(x_BTD: torch.Tensor, weights_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation [B, D] over the frames, whose weights add up to one."""
    mean_BD = (weights_BTD * x_BTD).sum(1)
    variance_BD = (weights_BTD * (x_BTD - mean_BD[:, None]).square()).sum(1)
    return mean_BD, variance_BD.clamp(min=_MIN_VARIANCE).sqrt()


class AttentionWeights(nn.Module):
    """Frames [B, T, D], and the statistics [B, 2 D] of all of a row's, to a score for each frame and channel [B, T, D]."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 3 * width))  # of a frame, then of the statistics
        self.bias = nn.Parameter(torch.empty(channels))
        self.norm = nn.BatchNorm1d(channels)
        self.scores = nn.Linear(channels, width)

    def forward(self, x_BTD: torch.Tensor, statistics_BD2: torch.Tensor) -> torch.Tensor:
        width = x_BTD.shape[2]
        context_BA = F.linear(statistics_BD2, self.weight[:, width:], self.bias)
        hidden_BTA = F.relu_(F.linear(x_BTD, self.weight[:, :width]) + context_BA[:, None])
        scores_BTD: torch.Tensor = self.scores(self.norm(hidden_BTA.transpose(1, 2)).tanh().transpose(1, 2))
        return scores_BTD


class NormLinear(nn.Module):
    """BatchNorm and a linear layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs)
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x_BP: torch.Tensor) -> torch.Tensor:
        out_BE: torch.Tensor = self.linear(self.norm(x_BP))
        return out_BE


class LinearNorm(nn.Module):
    """A linear layer and BatchNorm without weights of its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.BatchNorm1d(outputs, affine=False)

    def forward(self, x_BP: torch.Tensor) -> torch.Tensor:
        out_BE: torch.Tensor = self.norm(self.linear(x_BP))
        return out_BE
