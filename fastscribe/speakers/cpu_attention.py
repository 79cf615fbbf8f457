"""Attention with one mask for all queries, for a wide speaker model's Transformer on a CPU in bf16.

torch's fused operator calls MKL for its small products. On an AMD processor it takes 2.8 times as long as two products by
oneDNN and one loop between them; where a processor has no bf16, oneDNN's take 20 times as long. One recording at a time.

Shapes: B batch, H heads, Q queries, N keys, K head width, D width, T frames.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from fastscribe._system.float_bits import as_numpy
from fastscribe._system.thread_shares import equal_parts, share
from fastscribe.families.blocks.row_kernels import kernels
from fastscribe.families.canary.attention_decoder import BridgeLayer
from fastscribe.families.conformer.cpu_layers import MIN_ELEMENTS


def transformer_for_cpu_(layers: nn.ModuleList) -> None:
    """Let layers in bf16 attend with a loop, in place."""
    for layer in layers.children():
        assert isinstance(layer, BridgeLayer)
        layer.attention.attend = attend_with_loop


def attend_with_loop(
    query_BHQK: torch.Tensor, key_BHNK: torch.Tensor, value_BHNK: torch.Tensor, mask_B11N: torch.Tensor
) -> torch.Tensor:
    """Compute softmax(q k' / sqrt(K) + mask) v in bf16: `dot_product_attention.attend`, without gradients."""
    batch, heads, queries, width = query_BHQK.shape
    loop, factor = kernels("bfloat16", "plain")["masked_softmax"], np.float32(width**-0.5)
    scores_HQN = query_BHQK.new_empty(heads, queries, key_BHNK.shape[2])
    mixed_BQHK = query_BHQK.new_empty(batch, queries, heads, width)
    scores, keys = as_numpy(scores_HQN), scores_HQN.shape[2]
    num_shares = max(1, min(torch.get_num_threads(), scores.size // MIN_ELEMENTS))

    def work(mask_N: Any, start: int, stop: int) -> None:
        loop(scores, mask_N, factor, np.empty((1, keys), np.float32), start, stop)

    for b in range(batch):
        torch.bmm(query_BHQK[b], key_BHNK[b].transpose(1, 2), out=scores_HQN)
        share(equal_parts(heads * queries, num_shares), partial(work, as_numpy(mask_B11N[b, 0, 0])))
        torch.bmm(scores_HQN, value_BHNK[b], out=mixed_BQHK[b].transpose(0, 1))
    return mixed_BQHK.transpose(1, 2)
