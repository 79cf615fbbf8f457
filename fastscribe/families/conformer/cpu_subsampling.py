"""The first two convolutions of a wide encoder's subsampling, for inference on a CPU: one loop over output frames.

The first one makes 30 times as much of the features, and torch's operators write and read that four times. Here it stays in
the first-level cache, in float32 in every dtype.

Shapes: B batch, T frames, M mels, F bins left, C channels.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fastscribe._system.float_bits import as_numpy, float32_copy
from fastscribe._system.thread_shares import equal_parts, share
from fastscribe.families.blocks.row_kernels import SUBSAMPLING_ROWS, kernels
from fastscribe.families.conformer.config import subsampled

_MIN_ROWS = 4  # of a thread's share: output frames of about 0.1 ms each


class FirstConvolutions(nn.Module):
    """[B, T, M] to [B, T', F, C], T' a quarter of T: convolution, ReLU, zeroed padding, depthwise convolution.

    Args:
        first: The first convolution as a product, [9, C].
        depthwise: The second one.
        is_causal: As Subsampling.
        dtype: Of the results.
    """

    def __init__(self, first: nn.Linear, depthwise: nn.Conv2d, is_causal: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self._is_causal, self._dtype = is_causal, dtype
        self._weights_9C = float32_copy(first.weight.t()), float32_copy(depthwise.weight.flatten(1).t())
        self._bias_C = float32_copy(first.bias)

    def forward(self, x_BTM: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        batch, num_frames, num_mels = x_BTM.shape
        frames, bins = (subsampled(size, 2, self._is_causal) for size in (num_frames, num_mels))
        once_B = subsampled(lengths_B, 1, self._is_causal).clamp(max=subsampled(num_frames, 1, self._is_causal))
        first_9C, second_9C = self._weights_9C
        out_BTFC = torch.empty(batch, frames, bins, first_9C.shape[1], dtype=self._dtype)
        name = str(self._dtype).removeprefix("torch.")
        loop, before = kernels(name, "plain")["subsample"], 2 if self._is_causal else 1
        mel_BTM, columns = x_BTM.float().contiguous().numpy(), max(first_9C.shape[1], num_mels + 8)
        arguments = (mel_BTM, once_B.numpy().astype(np.int64), before, first_9C, self._bias_C, second_9C)

        def work(start: int, stop: int) -> None:
            scratch = np.zeros((SUBSAMPLING_ROWS, columns), np.float32)
            loop(*arguments, as_numpy(out_BTFC), scratch, start, stop)

        num_rows = batch * frames
        share(equal_parts(num_rows, max(1, min(torch.get_num_threads(), num_rows // _MIN_ROWS))), work)
        return out_BTFC
