"""Convolutions over time as 2-D convolutions of height one in channels-last memory, and packed in oneDNN's weight layout.

On a CPU torch's depthwise convolutions are 20 to 40 times as fast in that memory format as on [B, C, T]. torch reorders the
weights of full convolutions at each call, which takes longer than the products of a short batch; PackedTimeConv does it once.
Convolutions of one frame are matrix products, and PackedPointwise runs them as such: oneDNN's convolution took up to 2.6
times as long for 512 channels (docs/log.md, 2026-11-23). The operators are those that torch's compiler emits; because they
are private, they are checked once on a small product.

Shapes: B batch, C channels in and out, T frames.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.forms import PackedLinear, can_pack, linear_from

_TYPICAL_FRAMES = 400  # of a row; only a hint for the layout


class TimeConv(nn.Conv1d):
    """[B, C, 1, T] to [B, C', 1, T'] with "same" padding for odd kernels. The filters repeat `times` times over the groups."""

    def __init__(
        self, in_channels: int, filters: int, kernel: int, stride: int, dilation: int, groups: int, times: int = 1
    ) -> None:
        padding = dilation * (kernel - 1) // 2
        super().__init__(in_channels, filters, kernel, stride, padding, dilation, groups, bias=False)
        self.times = times

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def settings(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
        """Stride, padding, dilation and groups in two dimensions."""
        (stride,), (dilation,), (kernel,) = self.stride, self.dilation, self.kernel_size
        return (1, stride), (0, dilation * (kernel - 1) // 2), (1, dilation), self.groups * self.times

    def forward(self, x_BC1T: torch.Tensor) -> torch.Tensor:
        weight = self.weight.unsqueeze(2)
        weight = weight if self.times == 1 else weight.repeat(self.times, 1, 1, 1)
        if self.groups * self.times == 1 or x_BC1T.is_cuda or x_BC1T.dtype == torch.float32:
            return F.conv2d(x_BC1T, weight, self.bias, *self.settings)
        # oneDNN can take minutes to generate a bf16 depthwise kernel.
        bias = None if self.bias is None else self.bias.float()
        return F.conv2d(x_BC1T.float(), weight.float(), bias, *self.settings).to(x_BC1T.dtype)


class PackedTimeConv(nn.Module):
    """TimeConv with weights in oneDNN's layout."""

    def __init__(self, conv: TimeConv) -> None:
        super().__init__()
        self.dtype, self.bias = conv.dtype, None if conv.bias is None else conv.bias.detach()
        stride, padding, dilation, groups = conv.settings
        self._settings = (padding, stride, dilation, groups)
        example = (1, conv.in_channels, 1, _TYPICAL_FRAMES)
        weight = conv.weight.detach().unsqueeze(2).to_mkldnn()
        self.weight = torch._C._nn.mkldnn_reorder_conv2d_weight(weight, *self._settings, example)  # type: ignore[call-arg, arg-type]

    def forward(self, x_BC1T: torch.Tensor) -> torch.Tensor:
        convolve: Callable[..., torch.Tensor] = torch.ops.mkldnn._convolution_pointwise
        return convolve(x_BC1T, self.weight, self.bias, *self._settings, "none", [], "")


class PackedPointwise(nn.Module):
    """TimeConv of kernel 1 as a linear layer in oneDNN's layout."""

    def __init__(self, conv: TimeConv) -> None:
        super().__init__()
        self.dtype, (self.stride,) = conv.dtype, conv.stride
        self.linear = PackedLinear(linear_from(conv.weight.detach().squeeze(2), conv.bias))

    def forward(self, x_BC1T: torch.Tensor) -> torch.Tensor:
        x_BTC = x_BC1T.squeeze(2).transpose(1, 2)[:, :: self.stride].contiguous()
        out_BTC: torch.Tensor = self.linear(x_BTC)
        return out_BTC.transpose(1, 2).unsqueeze(2)


TIME_CONVS = (TimeConv, PackedTimeConv, PackedPointwise)


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    with torch.random.fork_rng(devices=[]):  # its initialisation must not advance the caller's random generator
        conv = TimeConv(32, 48, 5, stride=2, dilation=1, groups=1)
    conv.weight = nn.Parameter((37 * torch.linspace(-1, 1, conv.weight.numel())).sin().view_as(conv.weight) / 10)
    x_BC1T = torch.linspace(-1, 1, 2 * 32 * 9).view(2, 9, 32).to(dtype).transpose(1, 2).unsqueeze(2)
    try:
        with torch.inference_mode():
            packed = PackedTimeConv(conv.to(dtype))(x_BC1T)
            return torch.allclose(packed.float(), conv(x_BC1T).float(), atol=2e-2, rtol=2e-2)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def pack_time_convs_(module: nn.Module, dtype: torch.dtype) -> None:
    """Replace every ungrouped TimeConv below `module` if packing works; results are the same."""
    for owner in list(module.modules()):
        for name, conv in list(owner.named_children()):
            if isinstance(conv, TimeConv) and conv.groups == 1 and _can_pack(dtype) and can_pack(dtype):
                setattr(owner, name, (PackedPointwise if conv.kernel_size == (1,) else PackedTimeConv)(conv))
