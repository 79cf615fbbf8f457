"""The convolutions of the encoder in plain torch, on any device.

Shapes: B batch, T frames, M mels, F bins, C channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def windows(x_BTM: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Unfold [B, T, M] to the 3x3 windows of a stride-2 convolution: [B, T', M', 3 x 3], T' and M' half of T and M."""
    before = 2 if is_causal else 1
    return F.pad(x_BTM, (before, 1, before, 1)).unfold(1, 3, 2).unfold(2, 3, 2).flatten(3)


def depthwise_conv2d(
    x_BCTF: torch.Tensor, weight_C1JK: torch.Tensor, bias_C: torch.Tensor | None, stride: int, padding: tuple[int, int]
) -> torch.Tensor:
    """Compute a depthwise convolution of channels-last memory, such as a view of [B, T, F, C], in the weights' dtype.

    In this memory format torch would take cuDNN on a GPU, which builds a plan for each new shape of a batch: 85 ms of the
    host's time (docs/log.md, "the first runs on a GPU"). Torch's own kernel needs channels first, and no plan.
    """
    x_BCTF = x_BCTF.to(weight_C1JK.dtype)
    if x_BCTF.is_cuda:
        x_BCTF, weight_C1JK = x_BCTF.contiguous(), weight_C1JK.flatten(1).view(weight_C1JK.shape)
    return F.conv2d(x_BCTF, weight_C1JK, bias_C, stride, padding, groups=len(weight_C1JK))
