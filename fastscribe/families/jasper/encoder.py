"""Convolutional encoders: Jasper (Li et al. 2019; dense residuals), QuartzNet (Kriman et al. 2019; separable convolutions),
and ContextNet (Han et al. 2020) and Citrinet (Majumdar et al. 2021), which add squeeze-and-excite.

A block is a sequence of convolution, BatchNorm and activation over time; its last activation follows the residual. `optimise_`
folds each BatchNorm into the previous convolution. The convolutions are in time_conv.py.

Padding is zeroed before every convolution wider than one frame, so neither padding nor neighbours change a row. NeMo does so
if `conv_mask` is true. If it is false, NeMo's result for a single recording is that of a row with one more frame of silence
(the masked frame of its STFT); here this holds in any batch.

Shapes: B batch, C channels, T frames (mel frames before a stride, fewer after), D width of the last block, K kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.forms import Container, Optimised, fold_norm_
from fastscribe.families.blocks.padding import Padding
from fastscribe.families.blocks.time_conv import TIME_CONVS, TimeConv
from fastscribe.families.jasper.config import JasperBlockConfig, JasperConfig
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


class SqueezeExcite(nn.Module):
    """Squeeze-and-excite (Hu et al. 2018) over the frames of a recording: [B, C, 1, T] to the same, in place.

    Each channel is multiplied by a gate between 0 and 1, which two small layers make from the means of all channels over the
    recording's frames. Padding is not counted, so a row's result does not depend on its neighbours. A row without frames has
    means of zero.
    """

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


class JasperEncoder(Container):
    """A sequence of blocks: Features to Frames."""

    def __init__(self, config: JasperConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList()
        channels, dense_channels = config.num_mels, []
        for block in config.blocks:
            if block.dense:
                dense_channels.append(channels)
            self.blocks.append(
                JasperBlock(block, channels, dense_channels if block.dense else [channels], config.activation)
            )
            channels = block.filters

    def forward(self, features: Features) -> Frames:
        x_BMT, lengths_B = features.mel_BMT.to(self.dtype), features.lengths_B
        mel_lengths_B = None
        if not self.config.masked:
            mel_lengths_B = lengths_B
            x_BMT, lengths_B = F.pad(x_BMT, (0, 1)), lengths_B + (lengths_B > 0)
        x_BC1T = x_BMT.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        inputs, rows = [x_BC1T], _RowLengths.of(lengths_B, x_BC1T.shape[3], mel_lengths_B)
        for block in self.blocks:
            x_BC1T, rows = block(inputs, rows)
            inputs = [*inputs, x_BC1T] if block.dense else [x_BC1T]
        # Without a stride the additional frame is in the output too; drop it.
        lengths_B = rows.lengths_B.minimum(features.lengths_B)
        return Frames(x_BC1T.squeeze(2).transpose(1, 2).contiguous(), lengths_B)

    @property
    def dtype(self) -> torch.dtype:
        first = next(module for module in self.modules() if isinstance(module, TIME_CONVS))
        return first.dtype

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of output frames."""
        return -(-(mel_frames + (not self.config.masked)) // self.config.subsampling_factor)


@dataclass(frozen=True)
class _RowLengths:
    """Lengths and padding, shared by all convolutions between two strides."""

    lengths_B: torch.Tensor
    padding: Padding
    mel_lengths_B: torch.Tensor | None  # of the recordings, if `lengths_B` began with one frame more; else None

    @classmethod
    def of(cls, lengths_B: torch.Tensor, num_frames: int, mel_lengths_B: torch.Tensor | None) -> _RowLengths:
        return cls(lengths_B, Padding.of(lengths_B, num_frames), mel_lengths_B)

    def strided(self, stride: int, num_frames: int) -> _RowLengths:
        """Return the lengths after a convolution with `num_frames` output frames."""
        if stride == 1:
            return self
        return self.of((self.lengths_B + (stride - 1)) // stride, num_frames, self.mel_lengths_B)

    def recorded(self, num_frames: int) -> _RowLengths:
        """Return the lengths for squeeze-and-excite, which NeMo limits to the recording's mel frames."""
        if self.mel_lengths_B is None:
            return self
        return self.of(self.lengths_B.minimum(self.mel_lengths_B), num_frames, None)


class JasperBlock(nn.Module):
    """A block with residuals from all its inputs (`residual_channels`); the convolutions take the last input."""

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
        self.squeeze_excite: SqueezeExcite | None = None
        if config.se_hidden is not None:
            self.squeeze_excite = SqueezeExcite(config.filters, config.se_hidden, self.activation)

    def forward(self, inputs: Sequence[torch.Tensor], rows: _RowLengths) -> tuple[torch.Tensor, _RowLengths]:
        x_BC1T = inputs[-1]
        for number, conv in enumerate(self.convs):
            x_BC1T, rows = conv(x_BC1T if number == 0 else self.activation(x_BC1T), rows)
        if self.squeeze_excite is not None:
            recorded = rows.recorded(x_BC1T.shape[3])
            x_BC1T = self.squeeze_excite(x_BC1T, recorded.lengths_B, recorded.padding)
        for conv, input_BC1T in zip(self.residuals, inputs, strict=bool(self.residuals)):
            assert isinstance(conv, ConvNorm)
            residual_BC1T = conv.convolve(input_BC1T)
            x_BC1T = torch.maximum(x_BC1T, residual_BC1T) if self.residual == "max" else x_BC1T.add_(residual_BC1T)
        return self.activation(x_BC1T), rows


def _pointwise(config: JasperBlockConfig) -> JasperBlockConfig:
    """Return the config of a residual's convolution."""
    return JasperBlockConfig(config.filters, 1, 1, config.stride, False, 1, False, 1, None, "none", False)


class ConvNorm(Optimised):
    """[depthwise,] convolution, BatchNorm [, shuffle]. May overwrite the input's padding."""

    def __init__(self, config: JasperBlockConfig, in_channels: int, stride: int) -> None:
        super().__init__()
        over_time = (config.kernel, stride, config.dilation)
        self.depthwise: nn.Module | None = None
        if config.separable:
            filters = config.heads or in_channels
            self.depthwise = TimeConv(filters, filters, *over_time, groups=filters, times=in_channels // filters)
            over_time = (1, 1, 1)
        self.conv: nn.Module = TimeConv(in_channels, config.filters, *over_time, groups=config.groups)
        self.norm: nn.Module = nn.BatchNorm1d(config.filters, eps=_NORM_EPS)
        self.groups, self.stride, self.is_pointwise = config.groups, stride, config.kernel == 1

    def forward(self, x_BC1T: torch.Tensor, rows: _RowLengths) -> tuple[torch.Tensor, _RowLengths]:
        if not self.is_pointwise:
            rows.padding.fill_(x_BC1T, 0.0, time_axis=3)
        x_BC1T = self.convolve(x_BC1T)
        return x_BC1T, rows.strided(self.stride, x_BC1T.shape[3])

    def convolve(self, x_BC1T: torch.Tensor) -> torch.Tensor:
        x_BC1T = self.conv(x_BC1T if self.depthwise is None else self.depthwise(x_BC1T))
        if isinstance(self.norm, nn.BatchNorm1d):
            x_BC1T = self.norm(x_BC1T.squeeze(2)).unsqueeze(2)
        if self.groups > 1:  # interleaves the channels of all groups
            x_BC1T = x_BC1T.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        return x_BC1T

    def optimise_(self) -> None:
        if isinstance(self.norm, nn.BatchNorm1d):
            assert isinstance(self.conv, TimeConv)
            fold_norm_(self.conv, self.norm)
            self.norm = nn.Identity()
