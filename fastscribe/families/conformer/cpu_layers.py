"""The conformer layers' inference form for a CPU: matrix products, and one loop over rows between two of them (row_kernels.py).

With AMX or AVX512-VNNI the products take less than half of the time of torch's layers; the rest is memory traffic of
operators that each read and write a whole tensor. Here a loop scales, adds biases, adds to the stream, normalises, activates
and quantises a row while it is in the first-level cache, and int8 products read the levels that the loop before them stored.

Rows are the real frames of all recordings, one after the other: padding is neither multiplied nor stored, except in
attention's scores, which recordings of similar lengths compute together. Each thread has a share of the rows and goes through
all layers alone. The threads meet only where rows depend on each other, three times a layer: two that divide every product
and every loop meet twenty times.

The results are those of `Layers` up to rounding, and recordings do not depend on each other. The residual stream is in the
model's dtype. A branch that the loops do not cover (local and chunked attention, a convolution with LayerNorm) runs as it is.

Shapes: B recordings, T frames, R rows (the sum of the lengths), D width, N a product's outputs, H heads, K head width, W taps,
P positions (distances, left first).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from threading import Barrier, Lock
from typing import Any

import numpy as np
import torch
from torch import nn

from fastscribe._system.float_bits import as_numpy, float32_copy
from fastscribe._system.thread_shares import equal_parts, set_own_threads, share, together
from fastscribe.config import AttentionConfigs
from fastscribe.families.blocks.forms import LevelsLinear, PackedLinear
from fastscribe.families.blocks.padding import Padding
from fastscribe.families.blocks.row_kernels import EPSILON, kernels
from fastscribe.families.conformer.attention import (
    CACHED_POSITIONS,
    Positions,
    RelPositionAttention,
    relative_positions,
)
from fastscribe.families.conformer.encoder import ConformerLayer, ConvolutionModule, Encoder, Layers
from fastscribe.types import AnyArray, Float32Array, Int64Array

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
MIN_ELEMENTS = 1 << 17  # of a thread's share of a loop: handing it over takes a tenth of a millisecond
_MAX_SCORES = 1 << 24  # held at once by all threads, by distance and by key: 64 MB in float32; more only for one head
_CACHED_SCORES = 1 << 22  # of a thread's heads at a time, which three steps write and read: more leave the caches
_MIN_SCORES = 1 << 20  # of attention, by distance and by key, for several threads: its products are small
_MAX_EXTRA_PAIRS = 1 << 14  # of padded queries and keys: their scores take as long as another group's calls
_MIN_QUERIES = 100  # of a block of attention's queries
_QUERY_BLOCKS = 2  # each has a product with the positions that its queries see; more are smaller, but slower, products
_ALIGNMENT = 32  # of the positions in a product: with an odd number it takes up to twice as long
_TABLE_BLOCK = 64  # positions that are projected in one product
_MIN_ROWS = 128  # of a thread's share: it reads all weights, which takes as long as the products of 100 rows
_WHOLE, _HALF = np.float32(1.0), np.float32(0.5)


def conformer_for_cpu_(encoder: Encoder) -> None:
    """Replace the layers of a wide encoder, in place; they must have the forms of to_cpu_form_()."""
    if encoder.config.has_loops and isinstance(encoder.layers, Layers):
        import_module("numba")  # it must fail now if it does, not in every batch
        encoder.layers = CpuLayers(encoder.layers)


@dataclass(frozen=True)
class Rows:
    """The inputs of a product: [R, N] in the model's dtype, or uint8 levels and a scale per row."""

    values_RN: torch.Tensor
    scale_R: Float32Array

    @property
    def arrays(self) -> tuple[AnyArray, Float32Array]:
        return as_numpy(self.values_RN), self.scale_R


@dataclass(frozen=True)
class Product:
    """What a matrix makes of rows: values * scale + bias, with values [R, N] in the model's dtype."""

    values_RN: torch.Tensor
    scale_R: Float32Array
    bias_N: Float32Array

    @classmethod
    def of(cls, values_RN: torch.Tensor) -> Product:
        """Return a finished product."""
        rows, outputs = values_RN.shape
        return cls(values_RN, np.ones(rows, np.float32), np.zeros(outputs, np.float32))

    @property
    def arrays(self) -> tuple[AnyArray, Float32Array, Float32Array]:
        return as_numpy(self.values_RN), self.scale_R, self.bias_N


class Matrix(nn.Module):
    """A linear layer in any form: int8, packed or plain. `stores` says how the loop before it stores its rows."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.stores = "levels" if isinstance(linear, LevelsLinear) else "plain"
        self.activates = isinstance(linear, PackedLinear) and linear.activation == "swish"
        if isinstance(linear, LevelsLinear):
            stored = torch.zeros_like(linear.scale_N) if linear.bias_N is None else linear.bias_N
            self._bias_N = float32_copy(stored)

    def forward(self, rows: Rows, dtype: torch.dtype) -> Product:
        linear = self.linear
        if not isinstance(linear, LevelsLinear):
            return Product.of(linear(rows.values_RN))
        return Product(linear.product(rows.values_RN, dtype), rows.scale_R, self._bias_N)


class Norm:
    """The arrays of a LayerNorm, and how it stores its results."""

    def __init__(self, norm: nn.LayerNorm, stores: str) -> None:
        assert np.float32(norm.eps) == EPSILON
        self.weight_D, self.bias_D, self.stores = float32_copy(norm.weight), float32_copy(norm.bias), stores

    @property
    def arrays(self) -> tuple[Float32Array, Float32Array]:
        return self.weight_D, self.bias_D


class Group:
    """Neighbouring recordings of similar lengths, which compute attention together, and memory for it.

    Args:
        recordings: Their numbers.
        lengths_B: The lengths of all recordings.
        heads: Number of heads.
        width: Of a head.
        dtype: The stream's.
    """

    def __init__(self, recordings: slice, lengths_B: Int64Array, heads: int, width: int, dtype: torch.dtype) -> None:
        before = int(lengths_B[: recordings.start].sum())
        self.lengths_B = lengths_B[recordings]
        self.batch, self.num_frames = len(self.lengths_B), int(self.lengths_B.max())
        self.first_B = np.cumsum(self.lengths_B) - self.lengths_B  # of the group's rows
        self.recording_R = np.repeat(np.arange(self.batch), self.lengths_B)
        self.num_rows = len(self.recording_R)
        self.start, self.stop = before, before + self.num_rows  # of the batch's rows
        # What stays in padding must be finite.
        allocate = torch.empty if self.num_rows == self.batch * self.num_frames else torch.zeros
        self.q_u_HBTK, self.k_HBTK, self.v_HBTK, self.mixed_HBTK, q_v_HBTK = allocate(
            5, heads, self.batch, self.num_frames, width, dtype=dtype
        ).unbind()
        self.q_v_HTBK = q_v_HBTK.view(heads, self.num_frames, self.batch, width)
        num_blocks = min(_QUERY_BLOCKS, max(1, self.num_frames // _MIN_QUERIES))
        self.block = -(-self.num_frames // num_blocks)  # queries
        num_seen = self.num_frames + self.block - 1  # positions that a block's queries see
        self.num_positions = -(-num_seen // _ALIGNMENT) * _ALIGNMENT
        self.scores_per_head = self.batch * self.num_frames * (self.num_frames + self.num_positions)

    def rows_between(self, start: int, stop: int) -> slice:
        """Return which of the group's rows are among the batch's from `start` to `stop`."""
        return slice(max(start - self.start, 0), max(min(stop, self.stop) - self.start, 0))


def similar_lengths(lengths_B: Int64Array) -> list[slice]:
    """Divide recordings into groups of neighbours in which padding costs less than another group would; without empty ones."""
    groups: list[slice] = []
    pairs, longest = 0, 0  # pairs of real queries and keys in the last group
    for b, length in enumerate(lengths_B.tolist()):
        if length == 0:
            continue
        pairs, longest = pairs + length**2, max(longest, length)
        joined = slice(groups[-1].start, b + 1) if groups else slice(b, b + 1)
        if groups and (joined.stop - joined.start) * longest**2 - pairs <= _MAX_EXTRA_PAIRS * (b - joined.start):
            groups[-1] = joined
            continue
        groups.append(slice(b, b + 1))
        pairs, longest = length**2, length
    return groups


class Memory:
    """Memory that all shares of a stream have."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows, self._lock = num_rows, Lock()
        self._kept: dict[str, Any] = {}
        self.table_HKP = torch.empty(0)  # of the layer that the shares are in

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what has this name; the first thread that asks makes it."""
        with self._lock:
            if name not in self._kept:
                self._kept[name] = make()
            return self._kept[name]

    def rows(self, name: str, columns: int, dtype: torch.dtype) -> Rows:
        """Return memory for all rows of the batch."""
        rows: Rows = self.get(
            name, lambda: Rows(torch.empty(self._num_rows, columns, dtype=dtype), np.empty(self._num_rows, np.float32))
        )
        return rows


class Stream:
    """The rows of a batch's residual stream, or a thread's share of them: the loops over them, and facts about the batch."""

    def __init__(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor, attention: AttentionConfigs | None) -> None:
        self.batch, self.num_frames, self.width = x_BTD.shape
        self.dtype, self._attention = x_BTD.dtype, attention
        self._lengths_B = lengths_B.clamp(max=self.num_frames)  # the loops trust them
        self.lengths_B: Int64Array = self._lengths_B.numpy().astype(np.int64)
        self.first_B: Int64Array = np.cumsum(self.lengths_B) - self.lengths_B
        self.recording_R: Int64Array = np.repeat(np.arange(self.batch), self.lengths_B)
        self.num_rows = len(self.recording_R)
        self.is_padded = self.num_rows < self.batch * self.num_frames
        frame_R = np.arange(self.num_rows) - np.repeat(self.first_B, self.lengths_B)
        self._place_R = torch.from_numpy(self.recording_R * self.num_frames + frame_R)
        self.x_RD = self.packed(x_BTD)
        self.start, self.stop = 0, self.num_rows
        self.number, self.num_shares = 0, 1
        self.memory = Memory(self.num_rows)
        self._barrier: Barrier | None = None

    def share(self, number: int, num_shares: int, barrier: Barrier) -> Stream:
        """Return the rows of one of the threads that compute the layers together; they have one memory."""
        part, bounds = copy(self), equal_parts(self.num_rows, num_shares)
        part.start, part.stop = bounds[number]
        part.x_RD, part.num_rows = self.x_RD[part.start : part.stop], part.stop - part.start
        part.number, part.num_shares, part._barrier = number, num_shares, barrier
        return part

    def meet(self) -> None:
        """Wait until the threads of all shares are here."""
        if self._barrier is not None:
            self._barrier.wait()

    def groups(self, heads: int) -> list[Group]:
        """Return the groups of recordings that compute attention together. All shares have the same."""

        def make() -> list[Group]:
            width = self.width // heads
            return [Group(some, self.lengths_B, heads, width, self.dtype) for some in similar_lengths(self.lengths_B)]

        groups: list[Group] = self.memory.get("groups", make)
        return groups

    def gathered(self, product: Product) -> Product:
        """Return the product of all rows of the batch, when all shares have theirs."""
        if self.num_shares == 1:
            return product
        whole = self.memory.rows("gathered", product.values_RN.shape[1], self.dtype)
        whole.values_RN[self.start : self.stop] = product.values_RN
        whole.scale_R[self.start : self.stop] = product.scale_R
        self.meet()
        return Product(whole.values_RN, whole.scale_R, product.bias_N)

    @cached_property
    def padding(self) -> Padding:
        return Padding.of(self._lengths_B, self.num_frames)

    @cached_property
    def positions(self) -> Positions:
        like = self.x_RD.new_empty(self.batch, self.num_frames, self.width)
        return Positions.of(like, self._attention)

    def packed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Return the rows [R, D] of the real frames."""
        x_RD = x_BTD.flatten(0, 1)
        return x_RD[self._place_R] if self.is_padded else x_RD.contiguous()

    def padded(self, x_RD: torch.Tensor) -> torch.Tensor:
        """Return [B, T, D] with zeros for padding."""
        if self.is_padded:
            x_RD = x_RD.new_zeros(self.batch * self.num_frames, self.width).index_copy_(0, self._place_R, x_RD)
        return x_RD.view(self.batch, self.num_frames, self.width)

    def norm(self, norm: Norm) -> Rows:
        """Compute LayerNorm(x)."""
        return self.stored("norm", norm.stores, self.width, (1, self.width), as_numpy(self.x_RD), *norm.arrays)

    def add_norm(self, product: Product, factor: np.float32, norm: Norm) -> Rows:
        """Add factor * product to x; compute LayerNorm(x)."""
        arguments = (as_numpy(self.x_RD), *product.arrays, factor, *norm.arrays)
        return self.stored("add_norm", norm.stores, self.width, (1, self.width), *arguments)

    def add_norm_twice(self, product: Product, factor: np.float32, norm: Norm, following: Norm) -> Rows:
        """Set x to LayerNorm(x + factor * product); compute the following LayerNorm of it."""
        arguments = (as_numpy(self.x_RD), *product.arrays, factor, *norm.arrays, *following.arrays)
        return self.stored("add_norm_twice", following.stores, self.width, (1, self.width), *arguments)

    def stored(self, loop: str, stores: str, outputs: int, scratch: tuple[int, int], *arguments: Any) -> Rows:
        """Run a loop of row_kernels.py over all rows, and return what it stores.

        Args:
            loop: Its name.
            stores: How it stores rows: "plain" or "levels".
            outputs: Columns of its results.
            scratch: Rows and columns of float32 memory that it needs.
            arguments: Its arguments before the results.
        """
        rows = self.outputs(stores, outputs)
        self.run(loop, stores, slice(0, self.num_rows), scratch, *arguments, *rows.arrays)
        return rows

    def outputs(self, stores: str, columns: int) -> Rows:
        """Return memory for what a loop stores for each row."""
        return Rows(
            torch.empty(self.num_rows, columns, dtype=_stored_dtype(stores, self.dtype)),
            np.empty(self.num_rows, np.float32),
        )

    def run(self, loop: str, stores: str, rows: slice, scratch: tuple[int, int], *arguments: Any) -> None:
        """Run a loop over some rows; arguments are all but its last three."""
        compiled: Callable[..., None] = kernels(_DTYPES[self.dtype], stores)[loop]

        def work(start: int, stop: int) -> None:
            compiled(*arguments, np.empty(scratch, np.float32), rows.start + start, rows.start + stop)

        num_rows = max(0, rows.stop - rows.start)
        worthwhile = max(1, num_rows * scratch[1] // MIN_ELEMENTS)
        share(equal_parts(num_rows, min(torch.get_num_threads(), worthwhile)), work)


class CpuLayers(nn.Module):
    """[B, T, D] to [B, T, D], zero beyond a recording's length. May overwrite the input."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.attention = layers.attention
        plain = [layer for layer in layers.children() if isinstance(layer, ConformerLayer)]
        forms = [CpuLayer(layer, layers.attention) for layer in plain]
        self._norms = [Norm(layer.norm_feed_forward1, form.stores) for layer, form in zip(plain, forms, strict=True)]
        self.layers = nn.ModuleList(forms)
        has_plain = any(isinstance(part, PlainBranch) for form in forms for part in (form.self_attn, form.conv))
        self._max_shares = 1 if has_plain else min(layer.self_attn.num_heads for layer in plain)

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        stream, num_threads = Stream(x_BTD, lengths_B, self.attention), torch.get_num_threads()
        num_shares = self._num_shares(stream, num_threads)
        if num_shares < 2:
            return stream.padded(self._run(stream))
        out_RD, has_inference_mode = torch.empty_like(stream.x_RD), torch.is_inference_mode_enabled()

        def work(number: int, barrier: Barrier) -> None:
            with torch.inference_mode(has_inference_mode), torch.no_grad():
                set_own_threads(num_threads // num_shares, num_threads)
                part = stream.share(number, num_shares, barrier)
                out_RD[part.start : part.stop] = self._run(part)

        try:
            has_run = together(num_shares, work)
        finally:
            torch.set_num_threads(num_threads)
        return stream.padded(out_RD if has_run else self._run(stream))

    def _num_shares(self, stream: Stream, num_threads: int) -> int:
        """Return how many threads go through the layers. Each holds a head's scores, which are large for long recordings."""
        num_shares = min(num_threads, self._max_shares, stream.num_rows // _MIN_ROWS)
        if num_shares < 2:
            return 1
        most = max(group.scores_per_head for group in stream.groups(self._max_shares))  # as many as heads
        return max(1, min(num_shares, _MAX_SCORES // most))

    def _run(self, stream: Stream) -> torch.Tensor:
        rows = stream.norm(self._norms[0])
        for layer, following in zip(self.layers, [*self._norms[1:], None], strict=True):
            rows = layer(stream, rows, following)
        return rows.values_RN


class CpuLayer(nn.Module):
    """Adds its four branches to the stream. Returns norm_out of it, or the following layer's first norm of that."""

    def __init__(self, layer: ConformerLayer, attention: AttentionConfigs | None) -> None:
        super().__init__()
        first, second = layer.feed_forward1, layer.feed_forward2
        self.feed_forward1 = CpuFeedForward(first.linear1, first.linear2)
        self.feed_forward2 = CpuFeedForward(second.linear1, second.linear2)
        self.self_attn = CpuAttention(layer.self_attn) if attention is None else PlainBranch(layer.self_attn)
        is_folded = isinstance(layer.conv.norm, nn.Identity)
        self.conv = CpuConvolution(layer.conv) if is_folded else PlainBranch(layer.conv)
        self.stores = self.feed_forward1.stores
        self._norm_self_attn = Norm(layer.norm_self_attn, self.self_attn.stores)
        self._norm_conv = Norm(layer.norm_conv, self.conv.stores)
        self._norm_feed_forward2 = Norm(layer.norm_feed_forward2, self.feed_forward2.stores)
        self._norm_out = Norm(layer.norm_out, "plain")

    def forward(self, stream: Stream, rows: Rows, following: Norm | None) -> Rows:
        rows = stream.add_norm(self.feed_forward1(stream, rows), _HALF, self._norm_self_attn)
        rows = stream.add_norm(self.self_attn(stream, rows), _WHOLE, self._norm_conv)
        rows = stream.add_norm(self.conv(stream, rows), _WHOLE, self._norm_feed_forward2)
        product = self.feed_forward2(stream, rows)
        if following is None:
            return stream.add_norm(product, _HALF, self._norm_out)
        return stream.add_norm_twice(product, _HALF, self._norm_out, following)


class PlainBranch(nn.Module):
    """A branch as the plain layers compute it."""

    stores = "plain"

    def __init__(self, branch: RelPositionAttention | ConvolutionModule) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, stream: Stream, rows: Rows) -> Product:
        x_BTD = stream.padded(rows.values_RN)
        is_attention = isinstance(self.branch, RelPositionAttention)
        y_BTD = self.branch(x_BTD, stream.padding, *([stream.positions] if is_attention else []))
        return Product.of(stream.packed(y_BTD))


class CpuFeedForward(nn.Module):
    def __init__(self, linear1: nn.Module, linear2: nn.Module) -> None:
        super().__init__()
        self.linear1, self.linear2 = Matrix(linear1), Matrix(linear2)
        self.stores = self.linear1.stores

    def forward(self, stream: Stream, rows: Rows) -> Product:
        hidden = self.linear1(rows, stream.dtype)
        if self.linear1.activates:
            rows = Rows(hidden.values_RN, hidden.scale_R)
        else:
            outputs = hidden.values_RN.shape[1]
            rows = stream.stored("activate", self.linear2.stores, outputs, (1, outputs), *hidden.arrays)
        product: Product = self.linear2(rows, stream.dtype)
        return product


class CpuConvolution(nn.Module):
    """The convolution module with BatchNorm folded in."""

    def __init__(self, source: ConvolutionModule) -> None:
        super().__init__()
        self.pointwise1, self.pointwise2 = Matrix(source.pointwise1), Matrix(source.pointwise2)
        self.stores = self.pointwise1.stores
        weight_WD, bias_D = source.depthwise.weight.squeeze(1).t(), source.depthwise.bias
        self._weight_WD = float32_copy(weight_WD)
        taps = len(weight_WD)
        assert bias_D is not None  # of folding
        self._bias_D = float32_copy(bias_D)
        self._before = taps - 1 if source.is_causal else taps // 2

    def forward(self, stream: Stream, rows: Rows) -> Product:
        gates = stream.gathered(self.pointwise1(rows, stream.dtype))
        taps, width = self._weight_WD.shape
        stores, own = self.pointwise2.stores, slice(stream.start, stream.stop)
        batch = (stream.recording_R, stream.first_B, stream.lengths_B)
        whole = stream.memory.rows("convolved", width, _stored_dtype(stores, stream.dtype))
        arguments = (*gates.arrays, *batch, self._before, self._weight_WD, self._bias_D, *whole.arrays)
        stream.run("glu_depthwise", stores, own, (taps + 1, width), *arguments)
        product: Product = self.pointwise2(Rows(whole.values_RN[own], whole.scale_R[own]), stream.dtype)
        return product


class CpuAttention(nn.Module):
    """Full attention with relative positions."""

    def __init__(self, source: RelPositionAttention) -> None:
        super().__init__()
        assert source.linear_qkv is not None
        self.source = source
        self.linear_qkv, self.linear_out = Matrix(source.linear_qkv), Matrix(source.linear_out)
        self.stores = self.linear_qkv.stores
        self._u_D, self._v_D = (float32_copy(bias.flatten()) for bias in (source.pos_bias_u, source.pos_bias_v))
        self._factor = np.float32(1.0 / math.sqrt(source.head_width))
        self._kept_table_HKP: torch.Tensor | None = None

    def forward(self, stream: Stream, rows: Rows) -> Product:
        heads = self.source.num_heads
        qkv, groups = self.linear_qkv(rows, stream.dtype), stream.groups(heads)
        for group in groups:
            places = (group.start - stream.start, group.recording_R, group.first_B)
            arguments = (*qkv.arrays, *places, self._u_D, self._v_D, self._factor)
            outs = (group.q_u_HBTK, group.q_v_HTBK, group.k_HBTK, group.v_HBTK)
            own = group.rows_between(stream.start, stream.stop)
            stream.run("split_heads", "plain", own, (1, stream.width), *arguments, *map(as_numpy, outs))
        if stream.number == 0:
            stream.memory.table_HKP = self._table(stream)
        stream.meet()
        start, stop = equal_parts(heads, stream.num_shares)[stream.number]
        for group in groups:
            block = max(1, min(_CACHED_SCORES, _MAX_SCORES // stream.num_shares) // group.scores_per_head)
            with few_threads(group.scores_per_head * (stop - start)):
                for first in range(start, stop, block):
                    self._mix(stream, group, slice(first, min(first + block, stop)))
        stream.meet()
        joined = stream.outputs(self.linear_out.stores, stream.width)
        for group in groups:
            places = (group.start - stream.start, group.recording_R, group.first_B)
            own = group.rows_between(stream.start, stream.stop)
            arguments = (as_numpy(group.mixed_HBTK), *places, *joined.arrays)
            stream.run("join_heads", self.linear_out.stores, own, (1, stream.width), *arguments)
        product: Product = self.linear_out(joined, stream.dtype)
        return product

    def _mix(self, stream: Stream, group: Group, some: slice) -> None:
        """Compute some heads' weighted sums of values."""
        scores_HBTT = group.q_u_HBTK[some] @ group.k_HBTK[some].transpose(2, 3)
        positions_HTBP = self._position_scores(stream.memory.table_HKP[some], group, some)
        places = (group.recording_R, group.first_B, group.lengths_B)
        both = (as_numpy(scores_HBTT), as_numpy(positions_HTBP), group.block, *places)
        rows = slice(0, len(scores_HBTT) * group.num_rows)
        stream.run("softmax", "plain", rows, (1, group.num_frames), *both)
        torch.matmul(scores_HBTT, group.v_HBTK[some], out=group.mixed_HBTK[some])

    def _position_scores(self, table_HKP: torch.Tensor, group: Group, some: slice) -> torch.Tensor:
        """Compute some heads' scores of distances, a block of queries at a time.

        Column 0 is the distance from the last query of the block to the first key. The next one is less by one.
        """
        middle, batch = table_HKP.shape[2] // 2, group.batch
        queries_HTBK = group.q_v_HTBK[some]
        scores_HTBP = queries_HTBK.new_empty(*queries_HTBK.shape[:3], group.num_positions)
        queries_HQK, scores_HQP = queries_HTBK.flatten(1, 2), scores_HTBP.flatten(1, 2)
        for begin in range(0, group.num_frames, group.block):
            end = min(begin + group.block, group.num_frames)
            first = middle - end + 1
            own = slice(begin * batch, end * batch)
            seen_HKP = table_HKP[:, :, first : first + group.num_positions]
            torch.bmm(queries_HQK[:, own], seen_HKP, out=scores_HQP[:, own])
        return scores_HTBP

    def _table(self, stream: Stream) -> torch.Tensor:
        """Return projected positions [H, K, P] for at least the stream's frames; distance 0 is in the middle, column P // 2.

        They do not depend on the input, so the longest table is kept, up to a size. A product's last bits may depend on its
        number of rows, so each has the same: results do not depend on which table was kept. In this order a product of
        attention takes half of the time that it takes where a position's numbers stand together.
        """
        num_blocks = -(-(stream.num_frames - 1 + _ALIGNMENT) // _TABLE_BLOCK)  # to either side
        reach, table_HKP = num_blocks * _TABLE_BLOCK, self._kept_table_HKP
        if table_HKP is None or table_HKP.shape[2] < 2 * reach or table_HKP.dtype != stream.dtype:
            facts = stream.width, stream.dtype, stream.x_RD.device
            table_RD = stream.memory.get("positions", lambda: relative_positions(reach, reach - 1, *facts))
            blocks_HRK = [self.source.project_positions(block_RD) for block_RD in table_RD.split(_TABLE_BLOCK)]
            table_HKP = torch.cat(blocks_HRK, 1).transpose(1, 2).contiguous()
            self._kept_table_HKP = table_HKP if 2 * stream.num_frames - 1 <= CACHED_POSITIONS else None
        return table_HKP


@contextmanager
def few_threads(num_scores: int) -> Iterator[None]:
    """Let operators on few scores run in this thread: waking others takes longer."""
    num_threads = torch.get_num_threads()
    if num_threads == 1 or num_scores >= _MIN_SCORES:
        yield
        return
    set_own_threads(1, num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _stored_dtype(stores: str, dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if stores == "levels" else dtype
