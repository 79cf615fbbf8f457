"""Scaled dot-product attention with an additive bias: the package's only call of torch's attention operators.

On a GPU this module calls torch's memory-efficient kernel directly, because `F.scaled_dot_product_attention` selects the
kernel itself. From torch 2.11 on (cuDNN 9.15.1 or newer, compute capability 9 and 10) it prefers cuDNN, which builds a plan
for each new shape: tens of milliseconds for nearly every batch, and for every token of an attention decoder. cuDNN can be
excluded only by flags of the whole process (`torch.nn.attention.sdpa_kernel` sets and restores them). Two threads that do
this concurrently can restore wrong values, and a permanent flag would change the process's other models.

torch copies a bias unless every row starts at a multiple of 16 elements. It ignores the bias's storage offset, which is
arbitrary for views such as a window of scores; the kernel then raises an error. `align_bias` checks both.

Shapes: B batch, H heads, Q queries, N keys, K head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.backends.cuda import SDPAParams, can_use_efficient_attention

_EFFICIENT, _MATH = "_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math"  # not public
BIAS_ALIGNMENT = 16  # elements; torch's choice for its memory-efficient kernel, which needs 8 in 16 bits and 4 in 32


def attend(
    query_BHQK: torch.Tensor, key_BHNK: torch.Tensor, value_BHNK: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Compute softmax(q k' / sqrt(K) + bias) v.

    Args:
        query_BHQK: queries, on any device.
        key_BHNK: keys.
        value_BHNK: values.
        bias: added to the scores, in their dtype; broadcasts to [B, H, Q, N].

    Returns:
        [B, H, Q, K], differentiable.

    A GPU runs the memory-efficient kernel if torch supports it for these tensors. Otherwise it runs torch's math kernel:
    for a head width that is not a multiple of 8 (float32: 4), bf16 before compute capability 8, zero frames, or if the
    process has disabled the memory-efficient kernel.
    """
    if query_BHQK.is_cuda:
        return _attend_on_gpu(query_BHQK, key_BHNK, value_BHNK, bias)
    if query_BHQK.device.type == "cpu":
        if query_BHQK.shape[2] == 1:
            return _attend_with_one_query(query_BHQK, key_BHNK, value_BHNK, bias)
        # With a bias of its own for each query, torch's fused operator was slower than its parts.
        if query_BHQK.dtype == torch.bfloat16 and bias.shape[-2:-1] != (1,):
            scores_BHQN = torch.matmul(query_BHQK * query_BHQK.shape[-1] ** -0.5, key_BHNK.transpose(2, 3)).add_(bias)
            return torch.matmul(scores_BHQN.softmax(-1), value_BHNK)
    return F.scaled_dot_product_attention(query_BHQK, key_BHNK, value_BHNK, attn_mask=bias)


def align_bias(bias: torch.Tensor) -> torch.Tensor:
    """Return the bias, or a copy, with the alignment that the memory-efficient kernel needs.

    Allocate a bias that many calls share with `aligned_size` columns and use the first N.
    """
    starts = (bias.storage_offset(), *bias.stride()[:-1])
    if bias.stride(-1) == 1 and all(start % BIAS_ALIGNMENT == 0 for start in starts):
        return bias
    count = bias.shape[-1]
    if count == aligned_size(count):
        return bias.clone(memory_format=torch.contiguous_format)
    return F.pad(bias, (0, aligned_size(count) - count))[..., :count]


def aligned_size(num_keys: int) -> int:
    """Return the number of columns to allocate for an aligned bias of `num_keys` keys."""
    return num_keys + -num_keys % BIAS_ALIGNMENT


def _attend_on_gpu(
    query_BHQK: torch.Tensor, key_BHNK: torch.Tensor, value_BHNK: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    bias_BHQN = align_bias(bias).expand(*query_BHQK.shape[:3], key_BHNK.shape[2])
    if not (hasattr(torch.ops.aten, _EFFICIENT) and hasattr(torch.ops.aten, _MATH)):
        return F.scaled_dot_product_attention(query_BHQK, key_BHNK, value_BHNK, attn_mask=bias_BHQN)
    if can_use_efficient_attention(SDPAParams(query_BHQK, key_BHNK, value_BHNK, bias_BHQN, 0.0, False, False)):
        needs_gradient = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in (query_BHQK, key_BHNK, value_BHNK, bias)
        )
        mixed_BHQK: torch.Tensor = getattr(torch.ops.aten, _EFFICIENT)(
            query_BHQK, key_BHNK, value_BHNK, bias_BHQN, needs_gradient
        )[0]
    else:
        mixed_BHQK = getattr(torch.ops.aten, _MATH)(query_BHQK, key_BHNK, value_BHNK, bias_BHQN)[0]
    return mixed_BHQK


def _attend_with_one_query(
    query_BH1K: torch.Tensor, key_BHNK: torch.Tensor, value_BHNK: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Attend with one query; torch's kernel takes twice as long (docs/log.md, "attention decoders")."""
    scaled_BHK1 = query_BH1K.transpose(2, 3) * query_BH1K.shape[3] ** -0.5
    scores_BH1N = (key_BHNK @ scaled_BHK1).transpose(2, 3) + bias
    return torch.matmul(scores_BH1N.softmax(3), value_BHNK)
