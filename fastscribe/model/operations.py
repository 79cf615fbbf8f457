"""The encoder's operations that are bound by memory rather than arithmetic, in two forms behind one set of names.

`TORCH` is the definition of right: plain torch, on any device. The Triton form (cuda/triton_kernels.py) reads and writes each
tensor once; cuda/operations.py chooses between them. Sums are in float32 whatever the tensors' dtype. Rows of the outputs
beyond a row's length are finite and mean nothing.

Shapes: B batch, T frames, D width, H heads, K head width (H*K = D), R rows of a position table, W taps of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fastscribe.config import LocalAttention
from fastscribe.model.attention import MASKED_SCORE, attend_locally, relative_shift, visible_frames
from fastscribe.model.dot_product_attention import attend
from fastscribe.model.padding import Padding

EPSILON = 1e-5  # of every LayerNorm here, as in the checkpoints
POSITION_ROWS_MULTIPLE = 128  # twice the largest block of frames, so that no block's distances lie beyond the table


@dataclass(frozen=True)
class Operations:
    """One form of every operation; the functions below say what each computes."""

    rel_attention: Callable[..., torch.Tensor]
    glu_depthwise: Callable[..., torch.Tensor]
    layer_norm: Callable[..., torch.Tensor]
    layer_norm_twice_: Callable[..., torch.Tensor]


def rel_attention(
    qkv_BTD: torch.Tensor,
    positions_HRK: torch.Tensor,
    bias_HR: torch.Tensor,
    lengths_B: torch.Tensor,
    local: LocalAttention | None = None,
) -> torch.Tensor:
    """Self-attention with relative positions (Dai et al. 2019): [B, T, 3D] -> [B, T, D].

    scores[i, j] = (q_i·k_j + q_i·p_r + bias_r) / sqrt(K) with r the table's row for the distance i-j, over keys j below
    the row's length and within the window where one is given (without global frames). The table has an even number R of
    rows, in a multiple of POSITION_ROWS_MULTIPLE, and R/2 is at least `max_table_distance`; row R/2 - 1 - d stands for distance
    d. bias_HR is float32 and carries what the position product needs beyond q.
    """
    batch, num_frames, _ = qkv_BTD.shape
    heads, num_rows, width = positions_HRK.shape
    q_BHTK, k_BHTK, v_BHTK = qkv_BTD.unflatten(2, (3, heads, width)).permute(2, 0, 3, 1, 4)
    scale = 1.0 / math.sqrt(width)
    left, right = visible_frames(num_frames, local)
    rows = slice(num_rows // 2 - 1 - left, num_rows // 2 + right)
    positions_HKR, scaled_bias_HR = positions_HRK[:, rows].transpose(1, 2), bias_HR[:, None, rows] * scale

    def position_scores(queries: slice) -> torch.Tensor:
        scores_BHTR: torch.Tensor = (q_BHTK[:, :, queries] @ positions_HKR) * scale
        return scores_BHTR.add_(scaled_bias_HR.to(scores_BHTR.dtype))

    padding = Padding.of(lengths_B, num_frames)
    if left == right == num_frames - 1:
        bias_BHTT = padding.fill_(relative_shift(position_scores(slice(None))), MASKED_SCORE, time_axis=3)
        out_BHTK = attend(q_BHTK, k_BHTK, v_BHTK, bias_BHTT)
    else:
        out_BHTK = attend_locally(q_BHTK, k_BHTK, v_BHTK, position_scores, padding, (left, right))
    return out_BHTK.transpose(1, 2).reshape(batch, num_frames, heads * width)


def max_table_distance(num_frames: int, local: LocalAttention | None) -> int:
    """The farthest distance, in frames, that a position table needs to hold for batches of so many frames."""
    return num_frames if local is None else min(num_frames, max(local.left, local.right) + POSITION_ROWS_MULTIPLE)


def glu_depthwise(
    x_BTD: torch.Tensor, weight_WD: torch.Tensor, bias_D: torch.Tensor | None, lengths_B: torch.Tensor, silu: bool
) -> torch.Tensor:
    """GLU, zero beyond each length, depthwise convolution over time with an odd number of taps, SiLU if asked.

    [B, T, 2D] -> [B, T, D]. A checkpoint's BatchNorm must be in the weights.
    """
    gated_BTD = Padding.of(lengths_B, x_BTD.shape[1]).fill_(F.glu(x_BTD, dim=-1), 0.0, time_axis=1)
    taps, width = weight_WD.shape
    weight_D1W = weight_WD.t().unsqueeze(1)
    out_BDT = F.conv1d(gated_BTD.transpose(1, 2), weight_D1W, bias_D, padding=taps // 2, groups=width)
    out_BTD = out_BDT.transpose(1, 2).contiguous()
    return F.silu(out_BTD, inplace=True) if silu else out_BTD


def layer_norm(
    x_BTD: torch.Tensor,
    shift_D: torch.Tensor | None,
    weight_D: torch.Tensor,
    bias_D: torch.Tensor,
    added_BTD: torch.Tensor | None = None,
) -> torch.Tensor:
    """LayerNorm(x + shift) with epsilon 1e-5, the sum kept in float32; no shift is a shift of zero.

    With `added_BTD`, x becomes x + added first, in place and rounded to x's dtype.
    """
    if added_BTD is not None:
        x_BTD += added_BTD
    if shift_D is None:
        return F.layer_norm(x_BTD, weight_D.shape, weight_D, bias_D, EPSILON)
    shifted_BTD = x_BTD.float() + shift_D.float()
    return F.layer_norm(shifted_BTD, weight_D.shape, weight_D.float(), bias_D.float(), EPSILON).to(x_BTD.dtype)


def layer_norm_twice_(
    x_BTD: torch.Tensor,
    shift_D: torch.Tensor | None,
    weight1_D: torch.Tensor,
    bias1_D: torch.Tensor,
    weight2_D: torch.Tensor,
    bias2_D: torch.Tensor,
    added_BTD: torch.Tensor | None = None,
) -> torch.Tensor:
    """x becomes LayerNorm1(x + shift), in place; returns LayerNorm2 of that. `added_BTD` as in layer_norm."""
    x_BTD.copy_(layer_norm(x_BTD, shift_D, weight1_D, bias1_D, added_BTD))
    return layer_norm(x_BTD, None, weight2_D, bias2_D)


TORCH = Operations(rel_attention, glu_depthwise, layer_norm, layer_norm_twice_)
