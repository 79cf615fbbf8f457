"""Self-attention with relative positions (Transformer-XL; Dai et al. 2019) to all frames or to a local window.

Local attention equals full attention with scores masked outside the window, but needs time and memory linear in the number
of frames: each block of queries gets only the keys in its windows. Blocks do not depend on the other rows of a batch.

Shapes: B batch, T frames, D width, H heads, K head width, N queries of a block, R relative positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fastscribe.config import EncoderConfig, LocalAttention
from fastscribe.model.dot_product_attention import attend
from fastscribe.model.padding import Padding

MASKED_SCORE = -10000.0
_CACHED_ROWS = 2047  # of cached projected position tables: full attention over 1024 frames
_BLOCK = 128  # queries per block of local attention


@dataclass(frozen=True)
class Positions:
    """Sinusoids [R, D] of the distances from a frame to the `left` frames before it, itself and `right` frames after it."""

    table_RD: torch.Tensor
    left: int
    right: int

    @classmethod
    def of(cls, x_BTD: torch.Tensor, local: LocalAttention | None) -> Positions:
        """Make the positions that attention over x needs."""
        left, right = visible_frames(x_BTD.shape[1], local)
        return cls(relative_positions(left, right, x_BTD.shape[2], x_BTD.dtype, x_BTD.device, local), left, right)


def visible_frames(num_frames: int, local: LocalAttention | None) -> tuple[int, int]:
    """Return the maximum number of visible frames before and after a frame, in a recording of `num_frames`."""
    farthest = num_frames - 1
    return (farthest, farthest) if local is None else (min(local.left, farthest), min(local.right, farthest))


class RelPositionAttention(nn.Module):
    """Multi-head self-attention with relative positions: scores ((q+u)·k + (q+v)·p[i-j]) / sqrt(K)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, bias = config.d_model, config.use_bias
        self.num_heads, self.head_width = config.num_heads, width // config.num_heads
        self.has_global = config.attention is not None and config.attention.num_global > 0
        self.linear_q = nn.Linear(width, width, bias=bias)
        self.linear_k = nn.Linear(width, width, bias=bias)
        self.linear_v = nn.Linear(width, width, bias=bias)
        self.linear_out = nn.Linear(width, width, bias=bias)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(self.num_heads, self.head_width))
        self.pos_bias_v = nn.Parameter(torch.zeros(self.num_heads, self.head_width))
        self.linear_qkv: nn.Linear | None = None
        self._cached: tuple[int, torch.Tensor] | None = None  # distances to the left, projected positions [H, R, K]

    def fuse_(self) -> None:
        parts = [self.linear_q, self.linear_k, self.linear_v]
        width, has_bias = self.linear_q.out_features, self.linear_q.bias is not None
        fused = nn.Linear(self.linear_q.in_features, 3 * width, bias=has_bias, device="meta")
        fused.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
        if fused.bias is not None:
            fused.bias = nn.Parameter(torch.cat([part.bias for part in parts]), requires_grad=False)
        self.linear_qkv = fused
        del self.linear_q, self.linear_k, self.linear_v

    def forward(self, x_BTD: torch.Tensor, padding: Padding, positions: Positions) -> torch.Tensor:
        q_BHTK, k_BHTK, v_BHTK = (self._heads(part) for part in self._project(x_BTD))
        scale = 1.0 / math.sqrt(self.head_width)
        positions_HRK = self._positions(positions)

        def position_scores(queries: slice) -> torch.Tensor:
            return self._position_scores((q_BHTK[:, :, queries] + self.pos_bias_v[:, None]) * scale, positions_HRK)

        u_HK = self.pos_bias_u
        q_u_BHTK = q_BHTK + u_HK[:, None]
        sees_all = positions.left == positions.right == x_BTD.shape[1] - 1
        if sees_all and not self.has_global:
            bias_BHTT = padding.filled(relative_shift(position_scores(slice(None))), MASKED_SCORE, time_axis=3)
            out_BHTK = attend(q_u_BHTK, k_BHTK, v_BHTK, bias_BHTT)
        else:
            # To and from a global frame the score is q·k, so u·k is subtracted from (q+u)·k.
            global_bias_BH1T = -scale * (u_HK[:, None] @ k_BHTK.transpose(2, 3)) if self.has_global else None
            window = positions.left, positions.right
            out_BHTK = attend_locally(q_u_BHTK, k_BHTK, v_BHTK, position_scores, padding, window, global_bias_BH1T)
        out_BTD: torch.Tensor = self.linear_out(out_BHTK.transpose(1, 2).flatten(2))
        return out_BTD

    def _position_scores(self, q_BHTK: torch.Tensor, positions_HRK: torch.Tensor) -> torch.Tensor:
        """Compute one product per head for all rows, which share the positions."""
        batch, heads, num_frames, width = q_BHTK.shape
        q_HBTK = q_BHTK.transpose(0, 1).reshape(heads, batch * num_frames, width)
        scores_HBTR = torch.bmm(q_HBTK, positions_HRK.transpose(1, 2))
        return torch.unflatten(scores_HBTR, 1, (batch, num_frames)).transpose(0, 1)

    def _project(self, x_BTD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.linear_qkv is not None:
            return torch.chunk(self.linear_qkv(x_BTD), 3, dim=-1)
        return self.linear_q(x_BTD), self.linear_k(x_BTD), self.linear_v(x_BTD)

    def _heads(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(x_BTD, -1, (self.num_heads, self.head_width)).transpose(1, 2)

    def _positions(self, positions: Positions) -> torch.Tensor:
        """Return projected positions [H, R, K]. They do not depend on the input; inference slices the longest table so far."""
        rows = positions.table_RD.shape[0]
        if self.linear_qkv is None or rows > _CACHED_ROWS:
            return self._project_positions(positions.table_RD)
        left, cached_HRK = self._cached or (-1, positions.table_RD.new_empty(0, 0, 0))
        too_short = left < positions.left or cached_HRK.shape[1] - left <= positions.right
        if too_short or cached_HRK.dtype != positions.table_RD.dtype:
            left, cached_HRK = self._cached = positions.left, self._project_positions(positions.table_RD)
        return cached_HRK[:, left - positions.left : left - positions.left + rows]

    def _project_positions(self, positions_RD: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(self.linear_pos(positions_RD), -1, (self.num_heads, self.head_width)).transpose(0, 1)


def attend_locally(
    q_BHTK: torch.Tensor,
    k_BHTK: torch.Tensor,
    v_BHTK: torch.Tensor,
    position_scores: Callable[[slice], torch.Tensor],
    padding: Padding,
    window: tuple[int, int],
    global_bias_BH1T: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `attend` with query i restricted to keys i-left .. i+right.

    Args:
        q_BHTK: queries.
        k_BHTK: keys.
        v_BHTK: values.
        position_scores: returns scaled position scores [B, H, N, R] of some queries by distance, left first.
        padding: padding of the frames.
        window: left and right, in frames.
        global_bias_BH1T: if given, frame 0 is global: every query also sees key 0 and query 0 sees all keys, with this bias
            as position score.

    Returns:
        [B, H, T, K].
    """
    num_frames, (left, right) = q_BHTK.shape[2], window
    blocks = []
    for start in range(0, num_frames, _BLOCK):
        queries = slice(start, min(start + _BLOCK, num_frames))
        keys = slice(max(0, start - left), min(num_frames, queries.stop + right))
        bias_BHNT = relative_shift_windowed(position_scores(queries))[..., keys.start - (start - left) :][
            ..., : keys.stop - keys.start
        ]
        padding.between(keys.start, keys.stop).fill_(bias_BHNT, MASKED_SCORE, time_axis=3)
        block_k_BHTK, block_v_BHTK = k_BHTK[:, :, keys], v_BHTK[:, :, keys]
        if global_bias_BH1T is not None:
            first_BHN1 = global_bias_BH1T[..., :1].expand(*bias_BHNT.shape[:3], 1)
            bias_BHNT = torch.cat([first_BHN1, bias_BHNT], dim=3)
            block_k_BHTK = torch.cat([k_BHTK[:, :, :1], block_k_BHTK], dim=2)
            block_v_BHTK = torch.cat([v_BHTK[:, :, :1], block_v_BHTK], dim=2)
        blocks.append(attend(q_BHTK[:, :, queries], block_k_BHTK, block_v_BHTK, bias_BHNT))
    if global_bias_BH1T is not None:
        bias_BH1T = padding.fill_(global_bias_BH1T.clone(), MASKED_SCORE, time_axis=3)
        blocks[0][:, :, :1] = attend(q_BHTK[:, :, :1], k_BHTK, v_BHTK, bias_BH1T)
    return torch.cat(blocks, dim=2)


def relative_shift_windowed(scores_BHNR: torch.Tensor) -> torch.Tensor:
    """Convert scores [B, H, N, R] by distance to [B, H, N, N+R-1] by key. Query i sees i .. i+R-1; the rest is masked."""
    batch, heads, num_queries, num_rows = scores_BHNR.shape
    num_keys = num_queries + num_rows - 1
    padded = scores_BHNR.new_full((batch, heads, num_queries, num_keys + 1), MASKED_SCORE)
    padded[..., :num_rows] = scores_BHNR
    stride_b, stride_h, _, _ = padded.stride()
    return padded.as_strided((batch, heads, num_queries, num_keys), (stride_b, stride_h, num_keys, 1))


def relative_positions(
    left: int,
    right: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    local: LocalAttention | None = None,
) -> torch.Tensor:
    """Compute sinusoids [R, D] for distances left .. -right in float32, rounded to `dtype`.

    For a window with unequal sides they follow NeMo, with which such models are trained: distances on the narrower side are
    increased by the difference of the sides, and sinusoids outside the window are zero.
    """
    distance_R = torch.arange(left, -right - 1, -1, dtype=torch.float32, device=device)
    known_R = torch.ones_like(distance_R, dtype=torch.bool)
    if local is not None and local.left != local.right:
        further = local.left - local.right
        narrower_R = distance_R <= 0 if further > 0 else distance_R > 0
        distance_R = torch.where(narrower_R, distance_R + further, distance_R)
        known_R = ~narrower_R | (distance_R <= 0 if further > 0 else distance_R > 0)
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float32, device=device) * -(math.log(10000.0) / width))
    angle = distance_R[:, None] * frequency
    return (torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1) * known_R[:, None]).to(dtype)


def relative_shift(scores_BHTR: torch.Tensor) -> torch.Tensor:
    """View scores [B, H, T, R] by distance as [B, H, T, T] by key: out[i, j] = in[i, T-1-i+j]. No two entries overlap."""
    batch, heads, num_frames, _ = scores_BHTR.shape
    stride_b, stride_h, stride_t, stride_r = scores_BHTR.stride()
    assert stride_r == 1
    strides = (stride_b, stride_h, stride_t - 1, 1)
    return scores_BHTR.as_strided((batch, heads, num_frames, num_frames), strides, num_frames - 1)
