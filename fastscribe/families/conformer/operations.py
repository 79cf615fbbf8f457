"""The encoder's memory-bound operations behind one interface with two implementations.

`TORCH` is the reference in plain torch, for any device. The Triton kernels (triton_kernels.py) read and write each
tensor once; gpu_operations.py selects one of the two. Sums are in float32 for any dtype. Outputs beyond a row's length are
finite but undefined.

Shapes: B batch, T frames, D width, H heads, K head width (H*K = D), R rows of a position table, W taps of a convolution, M
mels, F bins left, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fastscribe.config import AttentionConfigs
from fastscribe.families.blocks.dot_product_attention import attend
from fastscribe.families.blocks.padding import Padding, zero_beyond
from fastscribe.families.conformer.attention import MASKED_SCORE, Window, attend_locally, relative_shift
from fastscribe.families.conformer.config import subsampled
from fastscribe.families.conformer.encoder import depthwise_conv2d, windows

EPSILON = 1e-5  # of every LayerNorm
POSITION_ROWS_MULTIPLE = 128  # twice the largest block of frames, so that the table covers every block's distances


@dataclass(frozen=True)
class Operations:
    """One implementation of every operation; the functions below define them."""

    rel_attention: Callable[..., torch.Tensor]
    glu_depthwise: Callable[..., torch.Tensor]
    layer_norm: Callable[..., torch.Tensor]
    layer_norm_twice_: Callable[..., torch.Tensor]
    first_convolutions: Callable[..., torch.Tensor]
    relu_depthwise: Callable[..., torch.Tensor]


def rel_attention(
    qkv_BTD: torch.Tensor,
    positions_HRK: torch.Tensor,
    bias_HR: torch.Tensor,
    lengths_B: torch.Tensor,
    attention: AttentionConfigs | None = None,
) -> torch.Tensor:
    """Compute self-attention with relative positions (Dai et al. 2019).

    scores[i, j] = (q_i·k_j + q_i·p_r + bias_r) / sqrt(K) for keys j below the row's length and inside the window, if any.
    r = R/2 - 1 - (i-j) is the table's row for distance i-j.

    Args:
        qkv_BTD: queries, keys and values, [B, T, 3D].
        positions_HRK: projected positions; R is a multiple of POSITION_ROWS_MULTIPLE, R/2 at least `max_table_distance`.
        bias_HR: float32 difference of the position product and q·p.
        lengths_B: valid frames of each row.
        attention: a local window without global frames, or chunks; None for full attention.

    Returns:
        [B, T, D].
    """
    batch, num_frames, _ = qkv_BTD.shape
    heads, num_rows, width = positions_HRK.shape
    q_BHTK, k_BHTK, v_BHTK = qkv_BTD.unflatten(2, (3, heads, width)).permute(2, 0, 3, 1, 4)
    scale = 1.0 / math.sqrt(width)
    window = Window.of(attention, num_frames)
    rows = slice(num_rows // 2 - 1 - window.max_left, num_rows // 2 + window.right)
    positions_HKR, scaled_bias_HR = positions_HRK[:, rows].transpose(1, 2), bias_HR[:, None, rows] * scale

    def position_scores(queries: slice) -> torch.Tensor:
        scores_BHTR: torch.Tensor = (q_BHTK[:, :, queries] @ positions_HKR) * scale
        return scores_BHTR.add_(scaled_bias_HR.to(scores_BHTR.dtype))

    padding = Padding.of(lengths_B, num_frames)
    if window.sees_all(num_frames):
        bias_BHTT = padding.fill_(relative_shift(position_scores(slice(None))), MASKED_SCORE, time_axis=3)
        out_BHTK = attend(q_BHTK, k_BHTK, v_BHTK, bias_BHTT)
    else:
        out_BHTK = attend_locally(q_BHTK, k_BHTK, v_BHTK, position_scores, padding, window)
    return out_BHTK.transpose(1, 2).reshape(batch, num_frames, heads * width)


def max_table_distance(num_frames: int, attention: AttentionConfigs | None) -> int:
    """Return the largest distance, in frames, that a position table needs for batches of `num_frames`."""
    window = Window.of(attention, num_frames)
    return min(num_frames, max(window.max_left, window.right) + POSITION_ROWS_MULTIPLE)


def glu_depthwise(
    x_BTD: torch.Tensor,
    weight_WD: torch.Tensor,
    bias_D: torch.Tensor | None,
    lengths_B: torch.Tensor,
    silu: bool,
    is_causal: bool = False,
) -> torch.Tensor:
    """Compute GLU, zero the padding, convolve depthwise over time, and apply SiLU if `silu`.

    Args:
        x_BTD: [B, T, 2D].
        weight_WD: an odd number of taps, with BatchNorm folded in.
        bias_D: bias of the convolution.
        lengths_B: valid frames of each row.
        silu: apply SiLU.
        is_causal: the last tap is at the output's frame, else the middle one.

    Returns:
        [B, T, D].
    """
    gated_BTD = Padding.of(lengths_B, x_BTD.shape[1]).fill_(F.glu(x_BTD, dim=-1), 0.0, time_axis=1)
    taps, width = weight_WD.shape
    weight_D1W = weight_WD.t().unsqueeze(1)
    before = taps - 1 if is_causal else taps // 2
    gated_BDT = F.pad(gated_BTD.transpose(1, 2), (before, taps - 1 - before))
    out_BDT = F.conv1d(gated_BDT, weight_D1W, bias_D, groups=width)
    out_BTD = out_BDT.transpose(1, 2).contiguous()
    return F.silu(out_BTD, inplace=True) if silu else out_BTD


def layer_norm(
    x_BTD: torch.Tensor,
    shift_D: torch.Tensor | None,
    weight_D: torch.Tensor,
    bias_D: torch.Tensor,
    added_BTD: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute LayerNorm(x + shift) with epsilon 1e-5 and the sum in float32; None is a shift of zero.

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
    """Set x to LayerNorm1(x + shift), in place, and return LayerNorm2 of it. `added_BTD` as in layer_norm."""
    x_BTD.copy_(layer_norm(x_BTD, shift_D, weight1_D, bias1_D, added_BTD))
    return layer_norm(x_BTD, None, weight2_D, bias2_D)


def first_convolutions(
    x_BTM: torch.Tensor,
    weight_9C: torch.Tensor,
    bias_C: torch.Tensor,
    depthwise_9C: torch.Tensor,
    lengths_B: torch.Tensor,
    is_causal: bool = False,
) -> torch.Tensor:
    """Compute the first two convolutions of subsampling, ReLU and zeroed padding between them.

    Both have 3x3 taps and a stride of 2. The second one is depthwise and without a bias.

    Args:
        x_BTM: features, [B, T, M].
        weight_9C: the first convolution's, which has one input channel; tap 3i+j is frame i and bin j of the window.
        bias_C: the first convolution's.
        depthwise_9C: the second convolution's weights.
        lengths_B: valid frames of each row.
        is_causal: windows end at their frame and bin: two are before it, none after; else one on each side.

    Returns:
        [B, T', F, C]; T' and F are T and M subsampled twice.
    """
    hidden_BTFC = F.relu(F.linear(windows(x_BTM, is_causal), weight_9C.t(), bias_C), inplace=True)
    return _depthwise(zero_beyond(hidden_BTFC, subsampled(lengths_B, 1, is_causal)), depthwise_9C, is_causal)


def relu_depthwise(x_BTFC: torch.Tensor, weight_9C: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """Compute ReLU and a depthwise 3x3 convolution with a stride of 2, as a later stage of subsampling has them.

    Args:
        x_BTFC: [B, T, F, C].
        weight_9C: tap 3i+j is frame i and bin j of the window.
        is_causal: as in first_convolutions.

    Returns:
        [B, T', F', C], both subsampled once.
    """
    return _depthwise(F.relu(x_BTFC), weight_9C, is_causal)


def _depthwise(x_BTFC: torch.Tensor, weight_9C: torch.Tensor, is_causal: bool) -> torch.Tensor:
    weight_C133 = weight_9C.t().reshape(-1, 1, 3, 3)
    frames, bins = (subsampled(size, 1, is_causal) for size in x_BTFC.shape[1:3])
    padding = 2 if is_causal else 1
    out_BCTF = depthwise_conv2d(x_BTFC.permute(0, 3, 1, 2), weight_C133, None, 2, (padding, padding))
    return out_BCTF.permute(0, 2, 3, 1)[:, :frames, :bins]


TORCH = Operations(rel_attention, glu_depthwise, layer_norm, layer_norm_twice_, first_convolutions, relu_depthwise)
