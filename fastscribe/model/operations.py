"""The encoder's operations that are bound by memory rather than arithmetic, in two forms behind one set of names.

`TORCH` is the definition of right: plain torch, on any device. The Triton form (cuda/triton_kernels.py, imported only here and
only when asked for) reads and writes each tensor once. `choose_operations` picks one of them for a model and a device,
after comparing the two there on small random cases. Sums are in float32 whatever the tensors' dtype. Rows of the outputs
beyond a row's length are finite and mean nothing.

Shapes: B batch, T frames, D width, H heads, K head width (H*K = D), R rows of a position table, W taps of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from fastscribe.config import EncoderConfig, LocalAttention
from fastscribe.model.attention import MASKED_SCORE, attend_locally, reach, relative_shift
from fastscribe.model.dot_product_attention import attend
from fastscribe.model.padding import Padding

EPSILON = 1e-5  # of every LayerNorm here, as in the checkpoints
POSITION_ROWS_MULTIPLE = 128  # twice the largest block of frames, so that no block's distances lie beyond the table
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # of the largest value


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
    rows, in a multiple of POSITION_ROWS_MULTIPLE, and R/2 is at least `table_reach`; row R/2 - 1 - d stands for distance
    d. bias_HR is float32 and carries what the position product needs beyond q.
    """
    batch, num_frames, _ = qkv_BTD.shape
    heads, num_rows, width = positions_HRK.shape
    q_BHTK, k_BHTK, v_BHTK = qkv_BTD.unflatten(2, (3, heads, width)).permute(2, 0, 3, 1, 4)
    scale = 1.0 / math.sqrt(width)
    left, right = reach(num_frames, local)
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


def table_reach(num_frames: int, local: LocalAttention | None) -> int:
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


def choose_operations(config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> tuple[Operations, str | None]:
    """Triton's form where it is right on this device, else torch's and the reason. Compiles what such a model will run."""
    try:
        from fastscribe.cuda.triton_kernels import TRITON
    except ImportError as error:
        return TORCH, f"Triton cannot be imported ({error})"
    try:
        wrong = first_wrong(TRITON, config, dtype, device)
    except Exception as error:  # a compiler, a driver or a missing tool may fail in any way; none must stop the run
        summary = " ".join(str(error).split())[:200]
        return TORCH, f"Triton fails on this device ({type(error).__name__}: {summary})"
    return (TORCH, f"Triton computes {wrong} wrongly on this device") if wrong else (TRITON, None)


def first_wrong(form: Operations, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> str | None:
    """The name of the first operation whose result differs from torch's in float32 on the CPU by more than rounding."""
    lengths_B = torch.tensor([70, 33, 1, 0])
    real_BT = torch.arange(70) < lengths_B[:, None]
    for name, *arguments in _random_cases(config, dtype, lengths_B):
        exact = [argument.float().clone() if is_floating(argument) else argument for argument in arguments]
        ours = [
            argument.to(device, copy=True) if isinstance(argument, torch.Tensor) else argument for argument in arguments
        ]
        expected_BTD = getattr(TORCH, name)(*exact)
        with torch.cuda.device_of(ours[0]):
            result_BTD = getattr(form, name)(*ours)
        for got, right in ((result_BTD, expected_BTD), (ours[0], exact[0])):  # the first argument may be written to
            got = got.cpu().float()
            error = (got - right)[real_BT].abs().max()
            if not got.isfinite().all() or error > _TOLERANCE[dtype] * right.abs().max():
                return str(name)
    return None


def _random_cases(config: EncoderConfig, dtype: torch.dtype, lengths_B: torch.Tensor) -> Iterator[tuple[Any, ...]]:
    """Each operation's name and arguments for a small batch, in every variant that a model of this config runs."""
    random = torch.Generator().manual_seed(0)
    batch, num_frames = len(lengths_B), int(lengths_B.max())
    width, heads, rows = config.d_model, config.num_heads, 2 * POSITION_ROWS_MULTIPLE

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    table_HRK, bias_HR = normal(heads, rows, width // heads), normal(heads, rows).float()
    window = None if config.attention is None else LocalAttention(40, 3)  # whose blocks begin and end within the batch
    yield "rel_attention", normal(batch, num_frames, 3 * width), table_HRK, bias_HR, lengths_B, window
    batch_norm = config.conv_norm == "batch_norm"
    bias_D = normal(width) if batch_norm or config.use_bias else None
    gates_BTD, weight_WD = normal(batch, num_frames, 2 * width), normal(config.conv_kernel, width)
    yield "glu_depthwise", gates_BTD, weight_WD, bias_D, lengths_B, batch_norm
    x_BTD = normal(batch, num_frames, width)
    shift_D = normal(width).float() if config.use_bias else None
    yield "layer_norm", x_BTD, None, normal(width), normal(width)
    yield "layer_norm", x_BTD, shift_D, normal(width), normal(width)
    yield "layer_norm_twice_", x_BTD, shift_D, normal(width), normal(width), normal(width), normal(width)
    added_BTD = normal(batch, num_frames, width)  # fp8's products
    yield "layer_norm", x_BTD, shift_D, normal(width), normal(width), added_BTD
    yield "layer_norm_twice_", x_BTD, shift_D, *(normal(width) for _ in range(4)), added_BTD


def is_floating(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.is_floating_point()
