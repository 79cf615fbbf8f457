"""Voice models (TitaNet, SpeakerNet, ECAPA-TDNN): the features of a stretch of speech to one vector, similar for one person.

An encoder makes frames, a pooling makes one vector of all of them, and layers make it smaller. NeMo's layer that tells the
people of the training apart is left out.

The encoder of ECAPA-TDNN (Dawalatabad et al. 2021) is NeMo's: convolutions over time with squeeze-and-excite, without Res2Net.
NeMo masks no padding there: the convolutions see a recording's features, then zeros up to a multiple of 16 frames, and only
squeeze-and-excite and the pooling behind the encoder leave these frames out. A row of a batch gets as many, so neither its
neighbours nor the batch's width change it.

Shapes: B batch, M mels, C channels, T frames, D width of the encoder, P numbers from the pooling, A attention channels,
E numbers of the vector.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.padding import Padding
from fastscribe.families.jasper.config import JasperConfig
from fastscribe.families.jasper.encoder import JasperEncoder
from fastscribe.speakers.config import EcapaConfig, VoiceModelConfig
from fastscribe.types import Features, Frames

_MIN_VARIANCE = 1e-10


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


class VoiceModel(nn.Module):
    """Features to vectors [B, E]."""

    def __init__(self, config: VoiceModelConfig) -> None:
        super().__init__()
        self.config = config
        encoder = config.encoder
        self.encoder = JasperEncoder(encoder) if isinstance(encoder, JasperConfig) else EcapaEncoder(encoder)
        self.attention = AttentionWeights(encoder.d_model, config.attention_channels) if self._has_attention else None
        sizes = (encoder.d_model * (1 if config.pooling == "tap" else 2), *config.sizes)
        self.layers = nn.ModuleList(self._layer(*pair) for pair in pairwise(sizes))

    @property
    def _has_attention(self) -> bool:
        return self.config.pooling == "attention"

    def _layer(self, inputs: int, outputs: int) -> nn.Sequential:
        """Return a linear layer behind BatchNorm; without attention, before one that has no weights of its own."""
        linear = nn.Linear(inputs, outputs)
        if self._has_attention:
            return nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(inputs), linear=linear))
        return nn.Sequential(OrderedDict(linear=linear, norm=nn.BatchNorm1d(outputs, affine=False)))

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
