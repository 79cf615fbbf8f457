"""The conformer layers' inference form for a GPU, where everything except matrix products is memory-bound.

- The residual stream is a single tensor. Each branch adds to it within its last product (`addmm_`). A quantised product
  cannot do so; the next LayerNorm that reads the stream adds it. The sum is in float32 and rounds once, unless cuBLAS splits
  a product with few rows along K: torch's default (`allow_bf16_reduced_precision_reduction`) then adds the parts in bf16.
- The factor 0.5 of the feed-forwards is folded into their second matrix.
- Biases of the stream are constants of the layer. Each LayerNorm adds their sum (`shift`) to its input, until norm_out
  includes it in the stream.
- Attention keeps only a bias on q: a bias on k changes all scores of a query equally, one on v changes the output by a
  constant, and the difference of Transformer-XL's u and v is a constant per head and distance.
- The host never waits for the device, and the position tables of ordinary batches stay at their address, so that all of it
  can be captured in a CUDA graph.

Shapes: B batch, T frames, N = B*T, D width, E a product's input width, H heads, K head width, R rows of a position table,
W taps of a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import AttentionConfigs, LocalAttention
from fastscribe.families.blocks.forms import linear_from
from fastscribe.families.conformer.attention import RelPositionAttention, relative_positions
from fastscribe.families.conformer.encoder import ConformerLayer, ConvolutionModule, Encoder, FeedForward, Subsampling
from fastscribe.families.conformer.gpu_operations import choose_operations
from fastscribe.families.conformer.operations import (
    EPSILON,
    POSITION_ROWS_MULTIPLE,
    TORCH,
    Operations,
    max_table_distance,
)

_CACHED_FRAMES = 1024  # longest batch with cached projected positions: 4 MB per layer at width 1024 in bf16


def for_gpu_(encoder: Encoder, adds_products: bool) -> str | None:
    """Convert an optimised encoder, on its final device and in its final dtype, to its GPU form if there is one.

    Args:
        encoder: changed in place.
        adds_products: True if its products will be quantised, so that norms add them to the stream.

    Returns:
        A warning about unavailable optimisations, or None. Without Triton the results are equal and the encoder is slower.
    """
    attention = encoder.config.attention
    if isinstance(attention, LocalAttention) and attention.num_global:
        return "attention with a global frame: no fused layers; the encoder will be slower"
    weight = encoder.subsampling.out.weight
    operations, refused = choose_operations(encoder.config, weight.dtype, weight.device, adds_products)
    fuse_(encoder, operations)
    return refused


@torch.no_grad()
def fuse_(encoder: Encoder, operations: Operations) -> None:
    """Replace the encoder's layers, which are unusable afterwards."""
    attention = encoder.config.attention
    has_global = isinstance(attention, LocalAttention) and attention.num_global
    assert not has_global, "only the plain layers have global frames"
    layers = [layer for layer in encoder.layers.children() if isinstance(layer, ConformerLayer)]
    encoder.layers = FusedLayers(layers, attention, operations)
    _fuse_subsampling_(encoder.subsampling, operations)


class FusedLayers(nn.Module):
    """[B, T, D] to [B, T, D], undefined beyond a row's length. Overwrites the input."""

    def __init__(
        self, layers: Sequence[ConformerLayer], attention: AttentionConfigs | None, operations: Operations
    ) -> None:
        super().__init__()
        self.attention = attention
        self.norm_first = Norm(layers[0].norm_feed_forward1, None, operations)
        next_norms = [*(layer.norm_feed_forward1 for layer in layers[1:]), None]
        self.layers = nn.ModuleList(
            FusedLayer(layer, next_norm, attention, operations)
            for layer, next_norm in zip(layers, next_norms, strict=True)
        )
        positions_RD = position_rows(_CACHED_FRAMES, attention, like=layers[0].norm_out.weight)
        for layer in self.layers.children():
            assert isinstance(layer, FusedLayer)
            layer.self_attn.cache_positions_(positions_RD)

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        num_frames = x_BTD.shape[1]
        is_cached = max_table_distance(num_frames, self.attention) <= _CACHED_FRAMES
        positions_RD = None if is_cached else position_rows(num_frames, self.attention, like=x_BTD)
        with torch.cuda.device_of(x_BTD):  # Triton launches on the current device
            normed_BTD: torch.Tensor = self.norm_first(x_BTD)
            for layer in self.layers:
                normed_BTD = layer(x_BTD, normed_BTD, lengths_B, positions_RD)
        return normed_BTD


class FusedBranches(nn.Module):
    """A layer's four branches, the norm before each, and norm_out, or the next layer's first norm of that."""

    def __init__(
        self, layer: Any, self_attn: Any, conv: Any, next_norm: nn.LayerNorm | None, operations: Operations
    ) -> None:
        super().__init__()
        self.feed_forward1 = FusedFeedForward(layer.feed_forward1)
        shift_D = self.feed_forward1.shift_D
        self.norm_self_attn = Norm(layer.norm_self_attn, shift_D, operations)
        self.self_attn = self_attn
        shift_D = sum_or_none(shift_D, self_attn.shift_D)
        self.norm_conv = Norm(layer.norm_conv, shift_D, operations)
        self.conv = conv
        shift_D = sum_or_none(shift_D, conv.shift_D)
        self.norm_feed_forward2 = Norm(layer.norm_feed_forward2, shift_D, operations)
        self.feed_forward2 = FusedFeedForward(layer.feed_forward2)
        shift_D = sum_or_none(shift_D, self.feed_forward2.shift_D)
        norm_out = Norm(layer.norm_out, shift_D, operations)
        self.norm_out = norm_out if next_norm is None else NormTwice(norm_out, next_norm)


class FusedLayer(FusedBranches):
    """Adds its four branches to the stream in place. Returns norm_out of it, or the next layer's first norm of that."""

    def __init__(
        self,
        layer: ConformerLayer,
        next_norm: nn.LayerNorm | None,
        attention: AttentionConfigs | None,
        operations: Operations,
    ) -> None:
        self_attn = FusedAttention(layer.self_attn, attention, operations)
        super().__init__(layer, self_attn, FusedConvolution(layer.conv, operations), next_norm, operations)

    def forward(
        self,
        x_BTD: torch.Tensor,
        normed_BTD: torch.Tensor,
        lengths_B: torch.Tensor,
        positions_RD: torch.Tensor | None,
    ) -> torch.Tensor:
        added_BTD = self.feed_forward1(x_BTD, normed_BTD)
        added_BTD = self.self_attn(x_BTD, self.norm_self_attn(x_BTD, added_BTD), lengths_B, positions_RD)
        added_BTD = self.conv(x_BTD, self.norm_conv(x_BTD, added_BTD), lengths_B)
        added_BTD = self.feed_forward2(x_BTD, self.norm_feed_forward2(x_BTD, added_BTD))
        out_BTD: torch.Tensor = self.norm_out(x_BTD, added_BTD)
        return out_BTD


class Norm(nn.Module):
    """LayerNorm of the stream plus `shift`, the biases that the stream does not include.

    Before that, it adds the previous branch's product to the stream if the branch could not (see `add_product_`).
    """

    shift_D: torch.Tensor | None

    def __init__(self, norm: nn.LayerNorm, shift_D: torch.Tensor | None, operations: Operations) -> None:
        super().__init__()
        assert norm.eps == EPSILON
        self.operations, self.weight, self.bias = operations, norm.weight, norm.bias
        self.register_buffer("shift_D", shift_D, persistent=False)

    def forward(self, x_BTD: torch.Tensor, added_BTD: torch.Tensor | None = None) -> torch.Tensor:
        return self.operations.layer_norm(x_BTD, self.shift_D, self.weight, self.bias, added_BTD)


class NormTwice(nn.Module):
    """Writes norm_out to the stream and returns the next layer's first norm of it."""

    def __init__(self, norm_out: Norm, next_norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm_out, self.next_norm = norm_out, next_norm

    def forward(self, x_BTD: torch.Tensor, added_BTD: torch.Tensor | None = None) -> torch.Tensor:
        first, second = self.norm_out, self.next_norm
        return first.operations.layer_norm_twice_(
            x_BTD, first.shift_D, first.weight, first.bias, second.weight, second.bias, added_BTD
        )


class FusedFeedForward(nn.Module):
    shift_D: torch.Tensor | None

    def __init__(self, source: FeedForward) -> None:
        super().__init__()
        self.linear1, linear2 = source.linear1, source.linear2
        del source.linear2  # a third of a layer; frees it before the next layer is converted
        self.linear2 = linear_from(0.5 * linear2.weight)
        self.shift_D = None if linear2.bias is None else 0.5 * linear2.bias.float()

    def forward(self, x_BTD: torch.Tensor, normed_BTD: torch.Tensor) -> torch.Tensor | None:
        return add_product_(x_BTD, F.silu(self.linear1(normed_BTD), inplace=True), self.linear2)


class FusedAttention(nn.Module):
    """Converts the stored biases to a bias on q, a constant per head and distance, and a shift of the output."""

    positions_HRK: torch.Tensor
    position_bias_HR: torch.Tensor
    v_minus_u_HK: torch.Tensor
    shift_D: torch.Tensor | None

    def __init__(
        self, source: RelPositionAttention, attention: AttentionConfigs | None, operations: Operations
    ) -> None:
        super().__init__()
        assert source.linear_qkv is not None
        self.operations, self.attention, self.linear_pos = operations, attention, source.linear_pos
        weight, stored = source.linear_qkv.weight, source.linear_qkv.bias
        q_D, _, v_D = weight.new_zeros(3, weight.shape[1]) if stored is None else stored.unflatten(0, (3, -1))
        u_D = source.pos_bias_u.flatten() + q_D
        self.linear_qkv = linear_from(weight, F.pad(u_D, (0, 2 * u_D.shape[0])))
        v_minus_u_D = source.pos_bias_v.float().flatten() + q_D.float() - u_D.float()
        self.register_buffer("v_minus_u_HK", v_minus_u_D.view_as(source.pos_bias_v), persistent=False)
        out = source.linear_out
        self.linear_out = linear_from(out.weight)
        self.shift_D = None if stored is None else out.weight.float() @ v_D.float()
        if out.bias is not None:
            self.shift_D = sum_or_none(self.shift_D, out.bias.float())

    def cache_positions_(self, positions_RD: torch.Tensor) -> None:
        positions_HRK, position_bias_HR = self._project(positions_RD)
        self.register_buffer("positions_HRK", positions_HRK, persistent=False)
        self.register_buffer("position_bias_HR", position_bias_HR, persistent=False)

    def forward(
        self,
        x_BTD: torch.Tensor,
        normed_BTD: torch.Tensor,
        lengths_B: torch.Tensor,
        positions_RD: torch.Tensor | None,
    ) -> torch.Tensor | None:
        cached = self.positions_HRK, self.position_bias_HR
        positions_HRK, position_bias_HR = cached if positions_RD is None else self._project(positions_RD)
        qkv_BTD = self.linear_qkv(normed_BTD)
        heads_BTD = self.operations.rel_attention(qkv_BTD, positions_HRK, position_bias_HR, lengths_B, self.attention)
        return add_product_(x_BTD, heads_BTD, self.linear_out)

    def _project(self, positions_RD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return projected positions [H, R, K], and the difference of (q+v)·p and q·p [H, R], in float32."""
        positions_HRK = (
            self.linear_pos(positions_RD).unflatten(-1, self.v_minus_u_HK.shape).transpose(0, 1).contiguous()
        )
        return positions_HRK, (positions_HRK.float() @ self.v_minus_u_HK.unsqueeze(2)).squeeze(2)


class FusedConvolution(nn.Module):
    """The convolution module with BatchNorm already folded. A LayerNorm between convolution and SiLU cannot be folded."""

    norm: Norm | None
    shift_D: torch.Tensor | None

    def __init__(self, source: ConvolutionModule, operations: Operations) -> None:
        super().__init__()
        assert isinstance(source.norm, (nn.Identity, nn.LayerNorm))
        self.operations, self.is_causal = operations, source.is_causal
        self.pointwise1, self.pointwise2 = source.pointwise1, linear_from(source.pointwise2.weight)
        self.norm = Norm(source.norm, None, operations) if isinstance(source.norm, nn.LayerNorm) else None
        self.weight_WD = nn.Parameter(source.depthwise.weight.squeeze(1).t().contiguous(), requires_grad=False)
        self.bias_D = source.depthwise.bias
        self.shift_D = None if source.pointwise2.bias is None else source.pointwise2.bias.float()

    def forward(self, x_BTD: torch.Tensor, normed_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor | None:
        gates_BTD = self.pointwise1(normed_BTD)
        silu = self.norm is None
        hidden_BTD = self.operations.glu_depthwise(
            gates_BTD, self.weight_WD, self.bias_D, lengths_B, silu, self.is_causal
        )
        if self.norm is not None:
            hidden_BTD = F.silu(self.norm(hidden_BTD), inplace=True)
        return add_product_(x_BTD, hidden_BTD, self.pointwise2)


class FusedFirstConvolutions(nn.Module):
    """[B, T, M] to [B, T', F, C], T' a quarter of T: the first convolution, ReLU, zeroed padding, the depthwise convolution.

    The first one makes 32 times as much of the features; Triton's kernel never writes it.
    """

    def __init__(self, first: nn.Linear, depthwise: nn.Conv2d, is_causal: bool, operations: Operations) -> None:
        super().__init__()
        self._operations, self._is_causal = operations, is_causal
        self.weight_9C, self.bias_C = _taps_first(first.weight), first.bias
        self.depthwise_9C = _taps_first(depthwise.weight)

    def forward(self, x_BTM: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        weights = self.weight_9C, self.bias_C, self.depthwise_9C
        with torch.cuda.device_of(x_BTM):
            return self._operations.first_convolutions(x_BTM, *weights, lengths_B, self._is_causal)


class FusedDepthwise(nn.Module):
    """ReLU of the stage before, and this stage's depthwise convolution: [B, T, F, C], T and F halved."""

    def __init__(self, depthwise: nn.Conv2d, is_causal: bool, operations: Operations) -> None:
        super().__init__()
        self._operations, self._is_causal = operations, is_causal
        self.weight_9C = _taps_first(depthwise.weight)

    def forward(self, x_BTFC: torch.Tensor) -> torch.Tensor:
        with torch.cuda.device_of(x_BTFC):
            return self._operations.relu_depthwise(x_BTFC, self.weight_9C, self._is_causal)


def _fuse_subsampling_(subsampling: Subsampling, operations: Operations) -> None:
    """Replace depthwise convolutions and what precedes them. Other convolutions stay torch's.

    The kernels need no plan for a new shape of a batch, as cuDNN does (operations.depthwise_conv2d).
    """
    stages, is_causal = [list(stage.children()) for stage in subsampling.stages.children()], subsampling.is_causal
    if len(stages) < 2 or not (isinstance(stages[1][0], nn.Conv2d) and stages[1][0].groups > 1):
        return
    (first, _), (depthwise, *rest) = stages[:2]
    assert isinstance(first, nn.Linear) and isinstance(depthwise, nn.Conv2d)
    subsampling.fused = FusedFirstConvolutions(first, depthwise, is_causal, operations)
    if operations is not TORCH:
        subsampling.elements_per_frame //= 4  # the largest tensor is the second convolution's output
    stages[:2] = [], rest
    for before, stage in pairwise(stages[1:]):
        assert isinstance(before[-1], nn.ReLU) and isinstance(stage[0], nn.Conv2d)
        before.pop()
        stage[0] = FusedDepthwise(stage[0], is_causal, operations)
    subsampling.stages = nn.ModuleList(nn.Sequential(*layers) for layers in stages)


def _taps_first(weight: torch.Tensor) -> nn.Parameter:
    """Return the weights of a 3x3 convolution with one input channel per output, [9, C]."""
    return nn.Parameter(weight.flatten(1).t().contiguous(), requires_grad=False)


def add_product_(x_BTD: torch.Tensor, hidden_BTE: torch.Tensor, linear: nn.Module) -> torch.Tensor | None:
    """Compute x += linear(hidden) in a single product if the layer is a plain matrix.

    Returns:
        None, or the product [B, T, D] of any other layer (such as fp8), which the caller must add to x.
    """
    if type(linear) is not nn.Linear or linear.bias is not None:
        product_BTD: torch.Tensor = linear(hidden_BTE)
        return product_BTD
    x_ND = x_BTD.view(-1, x_BTD.shape[-1])  # a view, because addmm_ must write to x
    x_ND.addmm_(hidden_BTE.flatten(0, 1), linear.weight.t())
    return None


def position_rows(num_frames: int, attention: AttentionConfigs | None, like: torch.Tensor) -> torch.Tensor:
    """Return sinusoids [R, D] for distances R/2 - 1 .. -R/2, as attention over `num_frames` needs."""
    multiple = POSITION_ROWS_MULTIPLE // 2
    rounded = (max_table_distance(num_frames, attention) + multiple - 1) // multiple * multiple
    return relative_positions(rounded - 1, rounded, like.shape[-1], like.dtype, like.device, attention)


def sum_or_none(a_D: torch.Tensor | None, b_D: torch.Tensor | None) -> torch.Tensor | None:
    """Return the sum of two biases, where None is zero."""
    if a_D is None or b_D is None:
        return a_D if b_D is None else b_D
    return a_D + b_D
