"""Convolutional encoders: Jasper (Li et al. 2019), dense residuals, and QuartzNet (Kriman et al. 2019), separable ones.

Blocks of convolution, BatchNorm and activation over time; a block's last activation comes after its residual. Layout is
[B, C, T], as convolutions want it, and Frames are made of the last block's. `optimise_` folds each BatchNorm into the
convolution before it.

Every convolution that sees more than one frame sees zeros beyond a row's length, so neither padding nor neighbours change a
row. NeMo does so where `conv_mask` is true. Where it is false, NeMo's result for a recording by itself is that of a row
with one frame of silence more, namely the masked frame that its STFT makes beyond the end; here that is so in any batch.

Shapes: B batch, C channels, T frames (mel frames before a stride, fewer after), D width of the last block, K kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import JasperBlockConfig, JasperConfig
from fastscribe.model.folding import fold_norm_
from fastscribe.model.padding import Padding
from fastscribe.types import Features, Frames

_NORM_EPS = 1e-3
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu_,
    "hardtanh": F.hardtanh_,
    "selu": F.selu_,
    "silu": F.silu,
    "gelu": F.gelu,
    "identity": lambda x: x,
}


class JasperEncoder(nn.Module):
    """Features -> Frames."""

    def __init__(self, config: JasperConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList()
        channels, before_dense = config.num_mels, []
        for block in config.blocks:
            if block.dense:
                before_dense.append(channels)
            self.blocks.append(
                JasperBlock(block, channels, before_dense if block.dense else [channels], config.activation)
            )
            channels = block.filters

    def forward(self, features: Features) -> Frames:
        x_BCT, lengths_B = features.mel_BMT.to(self.dtype), features.lengths_B
        if not self.config.masked:
            x_BCT, lengths_B = F.pad(x_BCT, (0, 1)), lengths_B + (lengths_B > 0)
        inputs, rows = [x_BCT], _Rows.of(lengths_B, x_BCT.shape[2])
        for block in self.blocks:
            x_BCT, rows = block(inputs, rows)
            inputs = [*inputs, x_BCT] if block.dense else [x_BCT]
        # Without any stride the frame beyond the end comes out as well, but says nothing.
        return Frames(x_BCT.transpose(1, 2).contiguous(), rows.lengths_B.minimum(features.lengths_B))

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def num_frames(self, mel_frames: int) -> int:
        """Of the output."""
        return -(-(mel_frames + (not self.config.masked)) // self.config.subsampling_factor)

    @torch.no_grad()
    def optimise_(self) -> None:
        """Fuses what inference can fuse. Call in float32, in eval mode, before casting."""
        for conv in self.modules():
            if isinstance(conv, ConvNorm):
                conv.fuse_()


@dataclass(frozen=True)
class _Rows:
    """Lengths and what lies beyond them, the same for all convolutions between two strides."""

    lengths_B: torch.Tensor
    padding: Padding

    @classmethod
    def of(cls, lengths_B: torch.Tensor, num_frames: int) -> _Rows:
        return cls(lengths_B, Padding.of(lengths_B, num_frames))

    def strided(self, stride: int, num_frames: int) -> _Rows:
        """After a convolution that made so many frames."""
        return self if stride == 1 else self.of((self.lengths_B + (stride - 1)) // stride, num_frames)


class JasperBlock(nn.Module):
    """`residual_channels` are those of the block's inputs, of which the convolutions take the last."""

    def __init__(
        self, config: JasperBlockConfig, in_channels: int, residual_channels: Sequence[int], activation: str
    ) -> None:
        super().__init__()
        self.residual, self.dense = config.residual, config.dense and config.residual != "none"
        self.activation: Callable[[torch.Tensor], torch.Tensor] = _ACTIVATIONS[activation]
        self.convs = nn.ModuleList()
        for number in range(config.repeat):
            stride = config.stride if number == config.repeat - 1 or not config.stride_last else 1
            self.convs.append(ConvNorm(config, in_channels, stride))
            in_channels = config.filters
        residual_stride = config.stride if config.residual == "stride_add" else 1
        self.residuals = nn.ModuleList(
            ConvNorm(_pointwise(config), channels, residual_stride)
            for channels in residual_channels
            if config.residual != "none"
        )

    def forward(self, inputs: Sequence[torch.Tensor], rows: _Rows) -> tuple[torch.Tensor, _Rows]:
        x_BCT = inputs[-1]
        for number, conv in enumerate(self.convs):
            x_BCT, rows = conv(x_BCT if number == 0 else self.activation(x_BCT), rows)
        for conv, input_BCT in zip(self.residuals, inputs, strict=bool(self.residuals)):
            assert isinstance(conv, ConvNorm)
            residual_BCT = conv.convolve(input_BCT)
            x_BCT = torch.maximum(x_BCT, residual_BCT) if self.residual == "max" else x_BCT.add_(residual_BCT)
        return self.activation(x_BCT), rows


def _pointwise(config: JasperBlockConfig) -> JasperBlockConfig:
    """A residual's convolution."""
    return JasperBlockConfig(config.filters, 1, 1, config.stride, False, 1, False, 1, None, "none", False)


class ConvNorm(nn.Module):
    """[depthwise,] convolution, BatchNorm [, shuffle]. What comes in may have its padding overwritten."""

    def __init__(self, config: JasperBlockConfig, in_channels: int, stride: int) -> None:
        super().__init__()
        over_time = {
            "kernel_size": config.kernel,
            "stride": stride,
            "dilation": config.dilation,
            "padding": config.dilation * (config.kernel - 1) // 2,
            "bias": False,
        }
        self.depthwise: nn.Conv1d | None = None
        self.in_channels, self.stride, self.is_one_frame_wide = in_channels, stride, config.kernel == 1
        if config.separable:
            filters = config.heads or in_channels
            self.depthwise = nn.Conv1d(filters, filters, groups=filters, **over_time)  # type: ignore[arg-type]
            over_time = {"kernel_size": 1, "bias": False}
        self.conv = nn.Conv1d(in_channels, config.filters, groups=config.groups, **over_time)  # type: ignore[arg-type]
        self.norm: nn.Module = nn.BatchNorm1d(config.filters, eps=_NORM_EPS)

    def forward(self, x_BCT: torch.Tensor, rows: _Rows) -> tuple[torch.Tensor, _Rows]:
        if not self.is_one_frame_wide:
            rows.padding.fill_(x_BCT, 0.0, time_axis=2)
        x_BCT = self.convolve(x_BCT)
        return x_BCT, rows.strided(self.stride, x_BCT.shape[2])

    def convolve(self, x_BCT: torch.Tensor) -> torch.Tensor:
        if self.depthwise is not None:
            heads = self.depthwise.in_channels
            x_BCT = self.depthwise(x_BCT.reshape(-1, heads, x_BCT.shape[2])).view(len(x_BCT), self.in_channels, -1)
        x_BCT = self.norm(self.conv(x_BCT))
        if self.conv.groups > 1:  # channels of all groups take turns
            x_BCT = x_BCT.unflatten(1, (self.conv.groups, -1)).transpose(1, 2).flatten(1, 2)
        return x_BCT

    def fuse_(self) -> None:
        if isinstance(self.norm, nn.BatchNorm1d):
            fold_norm_(self.conv, self.norm)
            self.norm = nn.Identity()
