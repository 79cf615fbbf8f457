"""The inference form of Granite's layers for a GPU, by the means of fused_layers.py: one stream, few passes over memory.

Each block of frames is a row of the attention kernel, whose position table is the same for all heads. A halving layer
convolves at every frame and keeps every second one; the host never waits for the device.

Shapes: B batch, T frames, D width, E q, k and v, H heads, R rows of the position table, K head width, W channels of the
convolution.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.forms import linear_from
from fastscribe.families.conformer.fused_layers import FusedBranches, Norm, add_product_
from fastscribe.families.conformer.gpu_operations import choose_operations
from fastscribe.families.conformer.operations import POSITION_ROWS_MULTIPLE, Operations
from fastscribe.families.granite.encoder import (
    BlockAttention,
    GraniteEncoder,
    GraniteLayer,
    GraniteLayers,
    StridedConvolution,
    in_blocks,
    mean_of_pairs,
)


def for_gpu_(encoder: GraniteEncoder, adds_products: bool) -> str | None:
    """Convert an encoder, as conformer's for_gpu_(). Return a warning about unavailable optimisations, or None."""
    weight = encoder.input.weight
    operations, refused = choose_operations(encoder.config, weight.dtype, weight.device, adds_products)
    fuse_(encoder, operations)
    return refused


@torch.no_grad()
def fuse_(encoder: GraniteEncoder, operations: Operations) -> None:
    """Replace the encoder's layers, which are unusable afterwards."""
    assert isinstance(encoder.body, GraniteLayers)
    encoder.body = FusedGraniteLayers(encoder.body, operations)


class FusedGraniteLayers(nn.Module):
    """[B, T, D] and lengths to the same with fewer frames, undefined beyond a row's length. Overwrites the input."""

    def __init__(self, source: GraniteLayers, operations: Operations) -> None:
        super().__init__()
        layers = [layer for layer in source.layers.children() if isinstance(layer, GraniteLayer)]
        self.middle, self.conditioning = source.middle, source.conditioning
        # By the number of layers before; elsewhere the previous layer's last norm includes it.
        self.norms_before = nn.ModuleDict(
            {str(i): Norm(layers[i].norm_feed_forward1, None, operations) for i in {0, self.middle}}
        )
        self.layers = nn.ModuleList()
        for number, layer in enumerate(layers, 1):
            is_last = number in (self.middle, len(layers))
            next_norm = None if is_last else layers[number].norm_feed_forward1
            self.layers.append(FusedGraniteLayer(layer, next_norm, operations))

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed_BTD = x_BTD
        with torch.cuda.device_of(x_BTD):  # Triton launches on the current device
            for number, layer in enumerate(self.layers):
                if 0 < number == self.middle:
                    x_BTD = self.conditioning(normed_BTD)
                if str(number) in self.norms_before:
                    normed_BTD = self.norms_before[str(number)](x_BTD)
                x_BTD, normed_BTD, lengths_B = layer(x_BTD, normed_BTD, lengths_B)
        return normed_BTD, lengths_B


class FusedGraniteLayer(FusedBranches):
    """Adds its four branches to the stream. Returns the stream, norm_out or the next layer's first norm of it, and lengths."""

    def __init__(self, layer: GraniteLayer, next_norm: nn.LayerNorm | None, operations: Operations) -> None:
        self_attn = FusedBlockAttention(layer.self_attn, operations)
        super().__init__(layer, self_attn, FusedStridedConvolution(layer.conv, operations), next_norm, operations)
        self.stride = layer.stride

    def forward(
        self, x_BTD: torch.Tensor, normed_BTD: torch.Tensor, lengths_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        added_BTD = self.feed_forward1(x_BTD, normed_BTD)
        added_BTD = self.self_attn(x_BTD, self.norm_self_attn(x_BTD, added_BTD), lengths_B)
        normed_BTD = self.norm_conv(x_BTD, added_BTD)
        convolved_BTW = self.conv(normed_BTD, lengths_B)
        if self.stride == 2:
            x_BTD, lengths_B = mean_of_pairs(x_BTD), lengths_B // 2
            convolved_BTW = convolved_BTW[:, : 2 * x_BTD.shape[1] : 2].contiguous()
        added_BTD = add_product_(x_BTD, convolved_BTW, self.conv.pointwise2)
        added_BTD = self.feed_forward2(x_BTD, self.norm_feed_forward2(x_BTD, added_BTD))
        return x_BTD, self.norm_out(x_BTD, added_BTD), lengths_B


class FusedBlockAttention(nn.Module):
    positions_HRK: torch.Tensor
    position_bias_HR: torch.Tensor

    def __init__(self, source: BlockAttention, operations: Operations) -> None:
        super().__init__()
        assert source.linear_qkv is not None and source.linear_out.bias is not None
        self.operations, self.block, self.linear_qkv = operations, source.block, source.linear_qkv
        self.linear_out = linear_from(source.linear_out.weight)
        self.shift_D: torch.Tensor | None = source.linear_out.bias.float()
        # Rows beyond the stored distances are never read as scores, but the kernel multiplies them.
        multiple = POSITION_ROWS_MULTIPLE // 2
        half = -(-self.block // multiple) * multiple
        known = min(half, source.max_distance)
        table_RK = source.table(min(half - 1, known), known)
        table_RK = F.pad(table_RK, (0, 0, half - 1 - min(half - 1, known), half - known))
        positions_HRK = table_RK.expand(source.num_heads, -1, -1).contiguous()
        self.register_buffer("positions_HRK", positions_HRK, persistent=False)
        zeros_HR = torch.zeros(positions_HRK.shape[:2], device=table_RK.device)
        self.register_buffer("position_bias_HR", zeros_HR, persistent=False)

    def forward(self, x_BTD: torch.Tensor, normed_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor | None:
        batch, num_frames, width = x_BTD.shape
        qkv_NLE, lengths_N = in_blocks(self.linear_qkv(normed_BTD), lengths_B, min(self.block, num_frames))
        heads_NLD = self.operations.rel_attention(qkv_NLE, self.positions_HRK, self.position_bias_HR, lengths_N, None)
        heads_BTD = heads_NLD.view(batch, -1, width)[:, :num_frames].contiguous()
        return add_product_(x_BTD, heads_BTD, self.linear_out)


class FusedStridedConvolution(nn.Module):
    """The convolution at every frame; the layer applies `pointwise2` to the frames that it keeps."""

    shift_D: torch.Tensor | None

    def __init__(self, source: StridedConvolution, operations: Operations) -> None:
        super().__init__()
        assert isinstance(source.norm, nn.Identity)
        self.operations = operations
        self.pointwise1, self.pointwise2 = source.pointwise1, linear_from(source.pointwise2.weight)
        self.weight_WD = nn.Parameter(source.depthwise.weight.squeeze(1).t().contiguous(), requires_grad=False)
        self.bias_D = source.depthwise.bias
        self.shift_D = source.pointwise2.bias.float()

    def forward(self, normed_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        gates_BTW = self.pointwise1(normed_BTD)
        return self.operations.glu_depthwise(gates_BTW, self.weight_WD, self.bias_D, lengths_B, True)
