"""Self-attention with relative positions (Transformer-XL; Dai et al. 2019) to all frames, a local window, or chunks.

Local and chunked attention equal full attention with scores masked outside the window, but need time and memory linear in
the number of frames: each block of queries gets only the keys in its windows. Blocks do not depend on the other rows of a
batch. The window of a frame is that of its chunk's first frame; in local attention every frame is a chunk.

Shapes: B batch, T frames, D width, H heads, K head width, N queries of a block, R relative positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fastscribe.config import AttentionConfigs, ChunkedAttention, LocalAttention
from fastscribe.families.blocks.dot_product_attention import attend
from fastscribe.families.blocks.forms import joined
from fastscribe.families.blocks.padding import Padding
from fastscribe.families.conformer.config import EncoderConfig

MASKED_SCORE = -10000.0
CACHED_POSITIONS = 2047  # of cached projected position tables: full attention over 1024 frames
_BLOCK = 128  # queries per block of local attention


@dataclass(frozen=True)
class Window:
    """What a frame sees: `left` frames before its chunk's first one, and up to `right` after that one."""

    left: int
    right: int
    chunk: int
    max_left: int  # largest distance to a visible frame before: that from a chunk's last frame

    @classmethod
    def of(cls, attention: AttentionConfigs | None, num_frames: int) -> Window:
        """Return the window in a recording of `num_frames`, in which no distance is longer than the recording."""
        farthest = num_frames - 1
        chunk = attention.chunk if isinstance(attention, ChunkedAttention) else 1
        if attention is None or chunk > num_frames:
            return cls(farthest, farthest, 1, farthest)
        left, right = (farthest if side < 0 else min(side, farthest) for side in (attention.left, attention.right))
        return cls(left, right, chunk, min(left + chunk - 1, farthest))

    def sees_all(self, num_frames: int) -> bool:
        """Return True if every frame sees all."""
        return self.left == self.right == num_frames - 1

    def hides(self, queries: slice, keys: slice, device: torch.device) -> torch.Tensor:
        """Return a mask [N, T] of the keys that queries do not see."""
        query_N1 = torch.arange(queries.start, queries.stop, device=device)[:, None]
        after_NT = torch.arange(keys.start, keys.stop, device=device) - (query_N1 - query_N1 % self.chunk)
        return (after_NT < -self.left) | (after_NT > self.right)

    def starts_at(self, frame: int) -> int:
        """Return the first frame that a frame sees, which is negative before the recording's start."""
        return frame - frame % self.chunk - self.left

    def ends_at(self, frame: int) -> int:
        """Return the frame after the last one that a frame sees, which may be after the recording's end."""
        return frame - frame % self.chunk + self.right + 1


@dataclass(frozen=True)
class Positions:
    """Sinusoids [R, D] of the distances from a frame to those in the window, and the window."""

    table_RD: torch.Tensor
    window: Window

    @classmethod
    def of(cls, x_BTD: torch.Tensor, attention: AttentionConfigs | None) -> Positions:
        """Make the positions that attention over x needs."""
        window = Window.of(attention, x_BTD.shape[1])
        like = x_BTD.shape[2], x_BTD.dtype, x_BTD.device
        return cls(relative_positions(window.max_left, window.right, *like, attention), window)


class RelPositionAttention(nn.Module):
    """Multi-head self-attention with relative positions: scores ((q+u)·k + (q+v)·p[i-j]) / sqrt(K)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, bias = config.d_model, config.use_bias
        self.num_heads, self.head_width = config.num_heads, width // config.num_heads
        self.has_global = isinstance(config.attention, LocalAttention) and config.attention.num_global > 0
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
        self.linear_qkv = joined(self.linear_q, self.linear_k, self.linear_v)
        del self.linear_q, self.linear_k, self.linear_v

    def forward(self, x_BTD: torch.Tensor, padding: Padding, positions: Positions) -> torch.Tensor:
        q_BHTK, k_BHTK, v_BHTK = (self._heads(part) for part in self._project(x_BTD))
        scale = 1.0 / math.sqrt(self.head_width)
        positions_HRK = self.project(positions)

        def position_scores(queries: slice) -> torch.Tensor:
            return self._position_scores((q_BHTK[:, :, queries] + self.pos_bias_v[:, None]) * scale, positions_HRK)

        u_HK = self.pos_bias_u
        # u may be wider under autocast; no fused kernel mixes dtypes.
        q_u_BHTK = (q_BHTK + u_HK[:, None]).to(k_BHTK.dtype)
        if positions.window.sees_all(x_BTD.shape[1]) and not self.has_global:
            bias_BHTT = padding.filled(relative_shift(position_scores(slice(None))), MASKED_SCORE, time_axis=3)
            out_BHTK = attend(q_u_BHTK, k_BHTK, v_BHTK, bias_BHTT)
        else:
            # To and from a global frame the score is q·k, so u·k is subtracted from (q+u)·k.
            global_bias_BH1T = -scale * (u_HK[:, None] @ k_BHTK.transpose(2, 3)) if self.has_global else None
            out_BHTK = attend_locally(
                q_u_BHTK, k_BHTK, v_BHTK, position_scores, padding, positions.window, global_bias_BH1T
            )
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

    def project(self, positions: Positions) -> torch.Tensor:
        """Return projected positions [H, R, K]. They do not depend on the input; inference slices the longest table so far."""
        rows = positions.table_RD.shape[0]
        if self.linear_qkv is None or rows > CACHED_POSITIONS:
            return self.project_positions(positions.table_RD)
        left, cached_HRK = self._cached or (-1, positions.table_RD.new_empty(0, 0, 0))
        needed = positions.window.max_left
        too_short = left < needed or cached_HRK.shape[1] - left <= positions.window.right
        if too_short or cached_HRK.dtype != positions.table_RD.dtype:
            left, cached_HRK = self._cached = needed, self.project_positions(positions.table_RD)
        return cached_HRK[:, left - needed : left - needed + rows]

    def project_positions(self, positions_RD: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(self.linear_pos(positions_RD), -1, (self.num_heads, self.head_width)).transpose(0, 1)


def attend_locally(
    q_BHTK: torch.Tensor,
    k_BHTK: torch.Tensor,
    v_BHTK: torch.Tensor,
    position_scores: Callable[[slice], torch.Tensor],
    padding: Padding,
    window: Window,
    global_bias_BH1T: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `attend` with each query restricted to the keys in its window.

    Args:
        q_BHTK: queries.
        k_BHTK: keys.
        v_BHTK: values.
        position_scores: returns scaled position scores [B, H, N, R] of some queries by distance, left first.
        padding: padding of the frames.
        window: what each query sees.
        global_bias_BH1T: if given, frame 0 is global: every query also sees key 0 and query 0 sees all keys, with this bias
            as position score.

    Returns:
        [B, H, T, K].
    """
    num_frames = q_BHTK.shape[2]
    blocks = []
    for start in range(0, num_frames, _BLOCK):
        queries = slice(start, min(start + _BLOCK, num_frames))
        keys = slice(max(0, window.starts_at(start)), min(num_frames, window.ends_at(queries.stop - 1)))
        first_column = keys.start - (start - window.max_left)
        bias_BHNT = relative_shift_windowed(position_scores(queries))[..., first_column:][..., : keys.stop - keys.start]
        if window.chunk > 1:
            bias_BHNT.masked_fill_(window.hides(queries, keys, bias_BHNT.device), MASKED_SCORE)
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
    attention: AttentionConfigs | None = None,
) -> torch.Tensor:
    """Compute sinusoids [R, D] for distances left .. -right in float32, rounded to `dtype`.

    For a local window with unequal sides they follow NeMo, with which such models are trained: distances on the narrower side
    are increased by the difference of the sides, and sinusoids outside the window are zero.
    """
    distance_R = torch.arange(left, -right - 1, -1, dtype=torch.float32, device=device)
    known_R = torch.ones_like(distance_R, dtype=torch.bool)
    if isinstance(attention, LocalAttention) and attention.left != attention.right:
        further = attention.left - attention.right
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
