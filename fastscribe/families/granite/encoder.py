"""The encoder of Granite Speech 5.0 TurboCTC (Saon et al. 2026): Conformer layers with attention inside blocks of frames.

The encoder takes pairs of mel frames, each with its difference in time. Some layers halve the frames: their depthwise
convolution has a stride of two, and the stream beside it is the mean of each pair. Positions are learnt embeddings of
distances, which all heads share. After the middle layer each frame gets back its own CTC probabilities.

Reference: transformers' GraniteSpeech5Encoder. A batch gives what the reference gives for each recording alone.

Shapes: B batch, M mels, T frames, E stacked mels and differences, D width, W channels of the convolution, H heads, K head
width, R rows of the position table, N blocks of a batch, L frames of a block.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.dot_product_attention import attend
from fastscribe.families.blocks.forms import Container, Optimised, fold_norm_, joined
from fastscribe.families.blocks.heads import split_for_logits
from fastscribe.families.blocks.padding import Padding
from fastscribe.families.blocks.time_conv import TimeConv
from fastscribe.families.conformer.attention import MASKED_SCORE, relative_shift
from fastscribe.families.conformer.encoder import FeedForward
from fastscribe.families.granite.config import GRANITE_STACKED, GraniteConfig
from fastscribe.types import Features, Frames


class GraniteEncoder(Container):
    """Features to Frames."""

    def __init__(self, config: GraniteConfig) -> None:
        super().__init__()
        self.config = config
        self.input = nn.Linear(2 * GRANITE_STACKED * config.num_mels, config.d_model)
        self.body: nn.Module = GraniteLayers(config)

    def forward(self, features: Features) -> Frames:
        stacked_BTE, lengths_B = stack(features, self.config.subsampling_factor)
        x_BTD = self.input(stacked_BTE.to(self.input.weight.dtype))
        return Frames(*self.body(x_BTD, lengths_B))

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of output frames."""
        return self.config.num_frames(max(mel_frames, self.config.subsampling_factor))


def stack(features: Features, min_frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Append each mel frame's difference in time and join the frames in pairs.

    Args:
        features: mel frames. At a row's ends the difference takes the frame itself as its missing neighbour.
        min_frames: shorter batches are padded to this number of mel frames.

    Returns:
        Float32 [B, T/2, E], and the lengths in pairs.
    """
    mel_BTM, lengths_B = features.mel_BMT.transpose(1, 2), features.lengths_B
    num_frames = max(min_frames, mel_BTM.shape[1] + mel_BTM.shape[1] % GRANITE_STACKED)
    mel_BTM = F.pad(mel_BTM, (0, 0, 0, num_frames - mel_BTM.shape[1]))
    after_BTM = torch.cat([mel_BTM[:, 1:], mel_BTM[:, -1:]], dim=1)
    is_last_BT = torch.arange(num_frames, device=lengths_B.device) == lengths_B[:, None] - 1
    after_BTM = torch.where(is_last_BT[:, :, None], mel_BTM, after_BTM)
    before_BTM = torch.cat([mel_BTM[:, :1], mel_BTM[:, :-1]], dim=1)
    with_differences_BTE = torch.cat([mel_BTM, (after_BTM - before_BTM) / 2], dim=2)
    pairs_BTE = with_differences_BTE.unflatten(1, (-1, GRANITE_STACKED)).flatten(2)
    return pairs_BTE, (lengths_B + GRANITE_STACKED - 1) // GRANITE_STACKED


class GraniteLayers(Container):
    """The layers, and the conditioning after the middle one: [B, T, D] and lengths to the same with fewer frames."""

    def __init__(self, config: GraniteConfig) -> None:
        super().__init__()
        strides = [2 if number in config.strided_layers else 1 for number in range(config.num_layers)]
        self.layers = nn.ModuleList(GraniteLayer(config, stride) for stride in strides)
        self.conditioning = SelfConditioning(config)
        self.middle = config.num_layers // 2

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for number, layer in enumerate(self.layers, 1):
            x_BTD, lengths_B = layer(x_BTD, lengths_B)
            if number == self.middle:
                x_BTD = self.conditioning(x_BTD)
        return x_BTD, lengths_B


class SelfConditioning(nn.Module):
    """x + outer(softmax(inner(x))): each frame's CTC probabilities, in the width of the encoder."""

    def __init__(self, config: GraniteConfig) -> None:
        super().__init__()
        self.num_tokens = config.num_tokens
        self.inner = nn.Linear(config.d_model, config.num_tokens)
        self.outer = nn.Linear(config.num_tokens, config.d_model)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        parts = split_for_logits(x_BTD, self.num_tokens)
        conditions_ND = torch.cat([self.outer(self.inner(part_ND).softmax(-1)) for part_ND in parts])
        return x_BTD + conditions_ND.view_as(x_BTD)


class GraniteLayer(Optimised):
    """A Conformer layer that halves the frames if `stride` is 2."""

    def __init__(self, config: GraniteConfig, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.norm_feed_forward1 = nn.LayerNorm(config.d_model)
        self.feed_forward1 = FeedForward(config.d_model, config.ff_hidden, config.use_bias)
        self.norm_self_attn = nn.LayerNorm(config.d_model)
        self.self_attn = BlockAttention(config)
        self.norm_conv = nn.LayerNorm(config.d_model)
        self.conv = StridedConvolution(config, stride)
        self.norm_feed_forward2 = nn.LayerNorm(config.d_model)
        self.feed_forward2 = FeedForward(config.d_model, config.ff_hidden, config.use_bias)
        self.norm_out = nn.LayerNorm(config.d_model)

    def optimise_(self) -> None:
        self.self_attn.fuse_()
        self.conv.fold_norm_()

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_BTD = torch.add(x_BTD, self.feed_forward1(self.norm_feed_forward1(x_BTD)), alpha=0.5)
        x_BTD = x_BTD + self.self_attn(self.norm_self_attn(x_BTD), lengths_B)
        convolved_BTD = self.conv(self.norm_conv(x_BTD), lengths_B)
        if self.stride == 2:
            x_BTD, lengths_B = mean_of_pairs(x_BTD), lengths_B // 2
        x_BTD = x_BTD + convolved_BTD[:, : x_BTD.shape[1]]
        x_BTD = torch.add(x_BTD, self.feed_forward2(self.norm_feed_forward2(x_BTD)), alpha=0.5)
        out_BTD: torch.Tensor = self.norm_out(x_BTD)
        return out_BTD, lengths_B


def mean_of_pairs(x_BTD: torch.Tensor) -> torch.Tensor:
    """Return the means of frames 0 and 1, 2 and 3 ..; an odd last frame is dropped."""
    num_pairs = x_BTD.shape[1] // 2
    return torch.unflatten(x_BTD[:, : 2 * num_pairs], 1, (num_pairs, 2)).mean(2)


class BlockAttention(nn.Module):
    """Self-attention inside blocks: scores q·(k + p[i-j]) / sqrt(K), with one table p for all heads."""

    def __init__(self, config: GraniteConfig) -> None:
        super().__init__()
        width = config.d_model
        self.num_heads, self.head_width, self.block = config.num_heads, width // config.num_heads, config.block
        self.max_distance = config.max_distance
        self.linear_q = nn.Linear(width, width, bias=False)
        self.linear_k = nn.Linear(width, width, bias=False)
        self.linear_v = nn.Linear(width, width, bias=False)
        self.linear_out = nn.Linear(width, width)
        self.positions = nn.Embedding(2 * config.max_distance + 1, self.head_width)
        self.linear_qkv: nn.Linear | None = None

    def fuse_(self) -> None:
        self.linear_qkv = joined(self.linear_q, self.linear_k, self.linear_v)
        del self.linear_q, self.linear_k, self.linear_v

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        num_frames, size = x_BTD.shape[1], min(self.block, x_BTD.shape[1])
        qkv_NLE, lengths_N = in_blocks(self._project(x_BTD), lengths_B, size)
        q_NHLK, k_NHLK, v_NHLK = qkv_NLE.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        bias_NHLL = relative_shift(self._position_scores(q_NHLK, size))
        Padding.of(lengths_N, size).fill_(bias_NHLL, MASKED_SCORE, time_axis=3)
        out_NHLK = attend(q_NHLK, k_NHLK, v_NHLK, bias_NHLL)
        out_BTD = out_NHLK.transpose(1, 2).reshape(x_BTD.shape[0], -1, x_BTD.shape[2])[:, :num_frames]
        projected_BTD: torch.Tensor = self.linear_out(out_BTD)
        return projected_BTD

    def _project(self, x_BTD: torch.Tensor) -> torch.Tensor:
        if self.linear_qkv is not None:
            qkv_BTE: torch.Tensor = self.linear_qkv(x_BTD)
            return qkv_BTE
        return torch.cat([self.linear_q(x_BTD), self.linear_k(x_BTD), self.linear_v(x_BTD)], dim=2)

    def _position_scores(self, q_NHLK: torch.Tensor, size: int) -> torch.Tensor:
        """Return scores [N, H, L, R] for distances size - 1 .. 1 - size, by one product for all heads."""
        table_RK = self.table(size - 1, size - 1)
        scaled_NLHK = q_NHLK.transpose(1, 2) / math.sqrt(self.head_width)
        return (scaled_NLHK.flatten(0, 2) @ table_RK.t()).view(*scaled_NLHK.shape[:3], -1).transpose(1, 2)

    def table(self, farthest_before: int, farthest_after: int) -> torch.Tensor:
        """Return the positions [R, K] of distances from `farthest_before` down to -`farthest_after`."""
        middle = self.max_distance
        return self.positions.weight[middle - farthest_after : middle + farthest_before + 1].flip(0)


def in_blocks(x_BTE: torch.Tensor, lengths_B: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Split the frames into blocks, the last one padded: [N, L, E] and the valid frames of each block [N]."""
    num_blocks = -(-x_BTE.shape[1] // size)
    padded_BTE = F.pad(x_BTE, (0, 0, 0, num_blocks * size - x_BTE.shape[1]))
    starts = torch.arange(0, num_blocks * size, size, device=lengths_B.device)
    lengths_N = (lengths_B[:, None] - starts).clamp(0, size).flatten()
    return padded_BTE.reshape(-1, size, x_BTE.shape[2]), lengths_N


class StridedConvolution(nn.Module):
    """Pointwise, GLU, depthwise over time, BatchNorm, SiLU, pointwise. Padding is zeroed just before the depthwise part."""

    def __init__(self, config: GraniteConfig, stride: int) -> None:
        super().__init__()
        channels = config.conv_width
        self.pointwise1 = nn.Linear(config.d_model, 2 * channels)
        self.depthwise = TimeConv(channels, channels, config.conv_kernel, stride, dilation=1, groups=channels)
        self.norm: nn.Module = nn.BatchNorm1d(channels)
        self.pointwise2 = nn.Linear(channels, config.d_model)

    def fold_norm_(self) -> None:
        """Fold the BatchNorm into the depthwise convolution."""
        assert isinstance(self.norm, nn.BatchNorm1d)
        fold_norm_(self.depthwise, self.norm)
        self.norm = nn.Identity()

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        gated_BTW = F.glu(self.pointwise1(x_BTD), dim=-1)
        gated_BTW = Padding.of(lengths_B, x_BTD.shape[1]).fill_(gated_BTW, 0.0, time_axis=1)
        convolved_BWT = self.norm(self.depthwise(gated_BTW.transpose(1, 2).unsqueeze(2)).squeeze(2))
        out_BTD: torch.Tensor = self.pointwise2(F.silu(convolved_BWT.transpose(1, 2)))
        return out_BTD
