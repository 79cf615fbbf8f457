"""NeMo's encoder of ECAPA-TDNN (Dawalatabad et al. 2021): convolutions over time with squeeze-and-excite, without Res2Net.

NeMo masks no padding here: the convolutions see a recording's features, then zeros up to a multiple of 16 frames, and only
squeeze-and-excite and the pooling behind the encoder leave these frames out. A row of a batch gets as many, so neither its
neighbours nor the batch's width change it.

Shapes: B batch, M mels, C channels, T frames, D width of the output.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.padding import Padding
from fastscribe.speakers.config import EcapaConfig
from fastscribe.types import Features, Frames


class EcapaEncoder(nn.Module):
    """Features to Frames, one for each mel frame."""

    def __init__(self, config: EcapaConfig) -> None:
        super().__init__()
        self.config = config
        kernels, dilations = config.kernels, config.dilations
        self.first = ConvReluNorm(config.num_mels, config.width, kernels[0], dilations[0])
        self.blocks = nn.ModuleList(
            EcapaBlock(config, kernel, dilation)
            for kernel, dilation in zip(kernels[1:-1], dilations[1:-1], strict=True)
        )
        self.last = ConvReluNorm(config.d_model, config.d_model, kernels[-1], dilations[-1])

    def forward(self, features: Features) -> Frames:
        lengths_B = features.lengths_B
        num_frames = features.mel_BMT.shape[2]
        seen_B, longest = self.config.seen_frames(lengths_B), self.config.seen_frames(num_frames)
        x_BCT = F.pad(features.mel_BMT.to(self.first.conv.weight.dtype), (0, longest - num_frames))
        unseen, padding = Padding.of(seen_B, longest), Padding.of(lengths_B, longest)
        x_BCT = self.first(x_BCT, unseen)
        outputs = []
        for block in self.blocks:
            x_BCT = block(x_BCT, unseen, padding, lengths_B)
            outputs.append(x_BCT)
        x_BDT = self.last(torch.cat(outputs, 1), unseen)
        return Frames(x_BDT[:, :, :num_frames].transpose(1, 2).contiguous(), lengths_B)


class ConvReluNorm(nn.Module):
    """Convolution over time, ReLU, BatchNorm: [B, C, T] to [B, C', T]."""

    def __init__(self, in_channels: int, channels: int, kernel: int, dilation: int, groups: int = 1) -> None:
        super().__init__()
        padding = dilation * (kernel - 1) // 2
        self.conv = nn.Conv1d(in_channels, channels, kernel, padding=padding, dilation=dilation, groups=groups)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x_BCT: torch.Tensor, unseen: Padding) -> torch.Tensor:
        """Frames of `unseen`, which may be overwritten, count as zeros."""
        if self.conv.kernel_size[0] > 1:
            unseen.fill_(x_BCT, 0.0, time_axis=2)
        x_BCT = self.norm(F.relu_(self.conv(x_BCT)))
        return x_BCT


class EcapaBlock(nn.Module):
    """Three convolutions and squeeze-and-excite, with a residual."""

    def __init__(self, config: EcapaConfig, kernel: int, dilation: int) -> None:
        super().__init__()
        width = config.width
        self.before = ConvReluNorm(width, width, 1, 1)
        self.over_time = ConvReluNorm(width, width, kernel, dilation, config.groups)
        self.after = ConvReluNorm(width, width, 1, 1)
        self.squeeze = nn.Linear(width, config.se_hidden)
        self.squeeze_norm = nn.BatchNorm1d(config.se_hidden)
        self.excite = nn.Linear(config.se_hidden, width)

    def forward(self, x_BCT: torch.Tensor, unseen: Padding, padding: Padding, lengths_B: torch.Tensor) -> torch.Tensor:
        y_BCT = self.after(self.over_time(self.before(x_BCT, unseen), unseen), unseen)
        recorded_BCT = padding.fill_(y_BCT.clone(), 0.0, time_axis=2)
        mean_BC = recorded_BCT.sum(2) / lengths_B.clamp(min=1)[:, None]
        gate_BC = self.excite(self.squeeze_norm(F.relu_(self.squeeze(mean_BC)))).sigmoid()
        return torch.addcmul(x_BCT, y_BCT, gate_BC[:, :, None])
