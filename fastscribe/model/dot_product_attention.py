"""Attention of queries to keys under an additive bias: the package's only call of torch's attention operators.

On a GPU this module calls torch's memory-efficient kernel by its own name, because `F.scaled_dot_product_attention` chooses
the kernel itself. From torch 2.11 on (cuDNN 9.15.1 or newer, compute capability 9 and 10) it prefers cuDNN, which builds a
plan for each shape that it has not seen: tens of milliseconds for nearly every batch, and for every token of an attention
decoder. cuDNN can be excluded only by a flag of the whole process (`torch.nn.attention.sdpa_kernel` sets such flags and puts
them back). Two threads that do so at a time can leave the wrong value behind, and a flag that is set once and left changes
what the process's other models run.

torch makes the bias fit its kernel before the call (a copy, unless every row starts at a multiple of 16 elements). It does
not look at the bias's offset in memory, where a view such as a window of scores may begin anywhere; the kernel raises an
error then. `align_bias` does both.

Shapes: B batch, H heads, Q queries, N keys, K head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.backends.cuda import SDPAParams, can_use_efficient_attention

BIAS_ALIGNMENT = (
    16  # elements; torch's own choice for its memory-efficient kernel, which needs 8 in 16 bits and 4 in 32
)


def attend(
    query_BHQK: torch.Tensor, key_BHNK: torch.Tensor, value_BHNK: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Compute softmax(q k' / sqrt(K) + bias) v.

    Args:
        query_BHQK: queries, on any device.
        key_BHNK: keys.
        value_BHNK: values.
        bias: what is added to the scores, in their dtype; [B, H, Q, N] or a shape that broadcasts to it.

    Returns:
        [B, H, Q, K], differentiable.

    On a GPU the memory-efficient kernel runs where torch says that it takes these tensors, and torch's plain form
    elsewhere: a head width that is no multiple of 8 (in float32: of 4), bf16 before compute capability 8, no frames at
    all, or a process that has switched the memory-efficient kernel off.
    """
    if query_BHQK.is_cuda:
        return _attend_on_gpu(query_BHQK, key_BHNK, value_BHNK, bias)
    if query_BHQK.device.type == "cpu":
        if query_BHQK.shape[2] == 1:
            return _attend_with_one_query(query_BHQK, key_BHNK, value_BHNK, bias)
        if query_BHQK.dtype == torch.bfloat16:  # torch's one operator takes 2 to 3 times as long as its parts
            scores_BHQN = torch.matmul(query_BHQK * query_BHQK.shape[-1] ** -0.5, key_BHNK.transpose(2, 3)).add_(bias)
            return torch.matmul(scores_BHQN.softmax(-1), value_BHNK)
    return F.scaled_dot_product_attention(query_BHQK, key_BHNK, value_BHNK, attn_mask=bias)


def align_bias(bias: torch.Tensor) -> torch.Tensor:
    """Return a bias whose rows start where the memory-efficient kernel can read them: itself, or a copy.

    A bias that many calls share should be made aligned: `aligned_size` columns, of which the first N are used.
    """
    starts = (bias.storage_offset(), *bias.stride()[:-1])
    if bias.stride(-1) == 1 and all(start % BIAS_ALIGNMENT == 0 for start in starts):
        return bias
    count = bias.shape[-1]
    if count == aligned_size(count):
        return bias.clone(memory_format=torch.contiguous_format)
    return F.pad(bias, (0, aligned_size(count) - count))[..., :count]


def aligned_size(num_keys: int) -> int:
    """Number of columns that an aligned bias for `num_keys` keys takes in memory."""
    return num_keys + -num_keys % BIAS_ALIGNMENT


def _attend_on_gpu(
    query_BHQK: torch.Tensor, key_BHNK: torch.Tensor, value_BHNK: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    bias_BHQN = align_bias(bias).expand(*query_BHQK.shape[:3], key_BHNK.shape[2])
    if can_use_efficient_attention(SDPAParams(query_BHQK, key_BHNK, value_BHNK, bias_BHQN, 0.0, False, False)):
        needs_gradient = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in (query_BHQK, key_BHNK, value_BHNK, bias)
        )
        mixed_BHQK: torch.Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
            query_BHQK, key_BHNK, value_BHNK, bias_BHQN, needs_gradient
        )[0]
    else:
        mixed_BHQK = torch.ops.aten._scaled_dot_product_attention_math(query_BHQK, key_BHNK, value_BHNK, bias_BHQN)[0]
    return mixed_BHQK


def _attend_with_one_query(
    query_BH1K: torch.Tensor, key_BHNK: torch.Tensor, value_BHNK: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """torch's kernel, made for many queries at once, takes twice as long for one (docs/log.md, "attention decoders")."""
    scaled_BHK1 = query_BH1K.transpose(2, 3) * query_BH1K.shape[3] ** -0.5
    scores_BH1N = (key_BHNK @ scaled_BHK1).transpose(2, 3) + bias
    return torch.matmul(scores_BH1N.softmax(3), value_BHNK)
