"""The FastConformer encoder (Rekesh et al. 2023, after Gulati et al. 2020). Attention is in attention.py.

The layout is [B, T, D] throughout. Parameters have the unfused names of training and checkpoints. `model.optimise_` converts a
loaded encoder to its inference form: one matrix for q, k and v, BatchNorm folded into the depthwise convolution (in float32,
before any cast), and subsampling's products as linear layers.

Shapes: B batch, M mels, T frames (mel frames before subsampling, encoder frames after), D width, C subsampling channels,
F mel bins left after subsampling.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import Size
from fastscribe.families.blocks.forms import Container, FusedOnCpu, Optimised, fold_norm_, linear_from
from fastscribe.families.blocks.padding import Padding, zero_beyond
from fastscribe.families.conformer.attention import Positions, RelPositionAttention
from fastscribe.families.conformer.config import EncoderConfig, LanguagePromptConfig, subsampled
from fastscribe.types import Features, Frames

# Of subsampling's largest tensor. 1 GB in bf16, and well within 32-bit indices; a CPU is faster while it stays in a cache.
_MAX_CONV_ELEMENTS, _MAX_CPU_CONV_ELEMENTS = 2**29, 2**23


def windows(x_BTM: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Unfold [B, T, M] to the 3x3 windows of a stride-2 convolution: [B, T', M', 3 x 3], T' and M' half of T and M."""
    before = 2 if is_causal else 1
    return F.pad(x_BTM, (before, 1, before, 1)).unfold(1, 3, 2).unfold(2, 3, 2).flatten(3)


def depthwise_conv2d(
    x_BCTF: torch.Tensor, weight_C1JK: torch.Tensor, bias_C: torch.Tensor | None, stride: int, padding: tuple[int, int]
) -> torch.Tensor:
    """Compute a depthwise convolution of channels-last memory, such as a view of [B, T, F, C], in the weights' dtype.

    In this memory format torch would take cuDNN on a GPU, which builds a plan for each new shape of a batch: 85 ms of the
    host's time (docs/log.md, "the first runs on a GPU"). Torch's own kernel needs channels first, and no plan.
    """
    x_BCTF = x_BCTF.to(weight_C1JK.dtype)
    if x_BCTF.is_cuda:
        x_BCTF, weight_C1JK = x_BCTF.contiguous(), weight_C1JK.flatten(1).view(weight_C1JK.shape)
    return F.conv2d(x_BCTF, weight_C1JK, bias_C, stride, padding, groups=len(weight_C1JK))


class Encoder(Container):
    """Subsampling and conformer layers: Features to Frames."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.subsampling = Subsampling(config)
        self.layers: nn.Module = Layers(config)
        prompt = config.language_prompt
        self.language_prompt: LanguagePrompt | None = None
        if prompt is not None:
            self.language_prompt = LanguagePrompt(prompt, config.d_model)

    def forward(self, features: Features) -> Frames:
        dtype = self.subsampling.out.weight.dtype
        x_BTD, lengths_B = self.subsampling(features.mel_BMT.to(dtype).transpose(1, 2), features.lengths_B)
        if self.config.xscaling:
            x_BTD = x_BTD * math.sqrt(self.config.d_model)
        x_BTD = self.layers(x_BTD, lengths_B)
        if self.language_prompt is not None:
            x_BTD = self.language_prompt(x_BTD)
        return Frames(x_BTD, lengths_B)

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of output frames."""
        return self.config.num_frames(mel_frames)


class Subsampling(Optimised, FusedOnCpu):
    """Strided 3x3 convolutions over time and mel, each halving both, then one linear layer: [B, T, M] to [B, T', D].

    "striding" has full convolutions; "dw_striding" has a full one and then depthwise-pointwise pairs. Padding is zeroed
    before every strided convolution. Causal windows end at their frame: two are before it and none after.

    The first convolution (one channel) and the pointwise ones are matrix products in channels-last memory ([B, T, F, C]): a
    CPU packs them like other products, and a GPU needs no cuDNN plan.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        channels, num_stages = config.subsampling_channels, int(math.log2(config.subsampling_factor))
        self.config, self.is_causal = config, config.causal_subsampling
        padding = 2 if self.is_causal else 1  # on both sides; `_convolve` crops what a causal one makes too many
        self.stages = nn.ModuleList()
        for stage in range(num_stages):
            if stage == 0 or config.subsampling == "striding":
                convs = [nn.Conv2d(1 if stage == 0 else channels, channels, 3, stride=2, padding=padding)]
            else:
                depthwise = nn.Conv2d(channels, channels, 3, stride=2, padding=padding, groups=channels)
                convs = [depthwise, nn.Conv2d(channels, channels, 1)]
            self.stages.append(nn.Sequential(*convs, nn.ReLU(inplace=True)))
        # Of the first convolution's output.
        self.elements_per_frame = channels * self._subsampled(config.num_mels, 1) // 2
        self.out = nn.Linear(channels * self._subsampled(config.num_mels, num_stages), config.d_model)
        self.channels_last = False  # True: channels are the innermost axis of the input of `out`
        # cpu_subsampling.py and fused_layers.py put the first two convolutions here, which `stages` lacks then:
        self.fused: nn.Module | None = None

    def forward(self, x_BTM: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Subsample; split the batch by rows, then by frames, if its largest tensor would be too large."""
        batch, num_frames, _ = x_BTM.shape
        factor, early = 2 ** len(self.stages), 2 if self.is_causal else 1
        is_cached = x_BTM.device.type == "cpu" and not torch.is_grad_enabled()
        limit = _MAX_CPU_CONV_ELEMENTS if is_cached else _MAX_CONV_ELEMENTS
        fits = batch * num_frames * self.elements_per_frame <= limit
        if fits or (batch == 1 and num_frames < 2 * (1 + early) * factor):
            return self._convolve(x_BTM, lengths_B)
        if batch > 1:
            half = batch // 2
            parts = [self(x_BTM[rows], lengths_B[rows]) for rows in (slice(None, half), slice(half, None))]
            return torch.cat([out_BTD for out_BTD, _ in parts]), torch.cat([lengths for _, lengths in parts])
        # An output frame depends on its own `factor` mel frames and some earlier ones; a causal one on its first mel frame
        # and up to two factors of earlier ones. So the second half begins one or two output frames early, and these frames,
        # which are wrong because zeros precede them, are dropped. A causal first half has frames beyond the middle too.
        middle = num_frames // (2 * factor) * factor
        before_1TD, _ = self(x_BTM[:, :middle], lengths_B.clamp(max=middle))
        start = middle - early * factor
        after_1TD, _ = self(x_BTM[:, start:], (lengths_B - start).clamp(min=0))
        whole_1TD = torch.cat([before_1TD[:, : middle // factor], after_1TD[:, early:]], dim=1)
        return whole_1TD, self._subsampled(lengths_B, len(self.stages))

    def _subsampled(self, size: Size, times: int) -> Size:
        return subsampled(size, times, self.is_causal)

    def _convolve(self, x_BTM: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frames, bins = x_BTM.shape[1:]
        x_BTFC = windows(x_BTM, self.is_causal) if self.fused is None else self.fused(x_BTM, lengths_B)
        for index, stage in enumerate(self.stages):
            if index > (0 if self.fused is None else 1):
                x_BTFC = zero_beyond(x_BTFC, lengths_B)
            frames, bins = self._subsampled(frames, 1), self._subsampled(bins, 1)
            for layer in stage.children():
                x_BTFC = _apply_layer(layer, x_BTFC)[:, :frames, :bins]
            lengths_B = self._subsampled(lengths_B, 1)
        return self.out((x_BTFC if self.channels_last else x_BTFC.transpose(2, 3)).flatten(2)), lengths_B

    def optimise_(self) -> None:
        """Convert products to linear layers, fold each depthwise bias into the next pointwise layer, and permute the last
        layer's inputs to channels-last order."""
        self.channels_last = True
        for index, stage in enumerate(self.stages.children()):
            bias_C: torch.Tensor | None = None
            for name, conv in list(stage.named_children()):
                if not isinstance(conv, nn.Conv2d):
                    continue
                assert conv.bias is not None
                channels = conv.out_channels
                if index == 0 or conv.kernel_size == (1, 1):
                    weight_CE, product_bias_C = conv.weight.flatten(1), conv.bias
                    if bias_C is not None:
                        product_bias_C = product_bias_C.float() + weight_CE.float() @ bias_C.float()
                    setattr(stage, name, linear_from(weight_CE, product_bias_C))
                    continue
                weight = conv.weight.contiguous(memory_format=torch.channels_last)
                conv.weight = nn.Parameter(weight, requires_grad=False)
                if conv.groups > 1:
                    bias_C, conv.bias = conv.bias, None
        weight_DCF = self.out.weight.unflatten(1, (channels, -1))
        self.out.weight = nn.Parameter(weight_DCF.transpose(1, 2).flatten(1), requires_grad=False)

    def fuse_for_cpu_(self, dtype: torch.dtype) -> None:
        """Replace the first two convolutions of a wide encoder."""
        if not self.config.has_loops or len(self.stages) < 2:
            return
        first, second = self.stages[0], self.stages[1]
        assert isinstance(first, nn.Sequential) and isinstance(second, nn.Sequential)
        if isinstance(first[0], nn.Linear) and isinstance(second[0], nn.Conv2d) and second[0].groups > 1:
            from fastscribe.families.conformer.cpu_subsampling import FirstConvolutions

            self.fused = FirstConvolutions(first[0], second[0], self.is_causal, dtype)
            self.stages[0], self.stages[1] = nn.Sequential(), second[1:]


def _apply_layer(layer: nn.Module, x_BTFC: torch.Tensor) -> torch.Tensor:
    """Apply a layer of a stage; a convolution whose input is unfolded is a product. Weights may have another dtype."""
    if not isinstance(layer, nn.Conv2d):
        out_BTFC: torch.Tensor = layer(x_BTFC)
        return out_BTFC
    if layer.groups == 1 and layer.weight[0].numel() == x_BTFC.shape[3]:
        return F.linear(x_BTFC, layer.weight.flatten(1), layer.bias)
    x_BCTF = x_BTFC.permute(0, 3, 1, 2)
    if layer.groups > 1:
        padding = int(layer.padding[0])
        out_BCTF = depthwise_conv2d(x_BCTF, layer.weight, layer.bias, 2, (padding, padding))
    else:
        out_BCTF = layer(x_BCTF.to(layer.weight.dtype))
    return out_BCTF.permute(0, 2, 3, 1).to(x_BTFC.dtype)


class Layers(nn.ModuleList):
    """The conformer layers: [B, T, D] to [B, T, D], undefined beyond a row's length."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(ConformerLayer(config) for _ in range(config.num_layers))
        self.attention = config.attention

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        padding = Padding.of(lengths_B, x_BTD.shape[1])
        positions = Positions.of(x_BTD, self.attention)
        for layer in self:
            x_BTD = layer(x_BTD, padding, positions)
        return x_BTD


class ConformerLayer(Optimised):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(config.d_model)
        self.feed_forward1 = FeedForward(config.d_model, config.ff_hidden, config.use_bias)
        self.norm_self_attn = nn.LayerNorm(config.d_model)
        self.self_attn = RelPositionAttention(config)
        self.norm_conv = nn.LayerNorm(config.d_model)
        self.conv = ConvolutionModule(config)
        self.norm_feed_forward2 = nn.LayerNorm(config.d_model)
        self.feed_forward2 = FeedForward(config.d_model, config.ff_hidden, config.use_bias)
        self.norm_out = nn.LayerNorm(config.d_model)

    def optimise_(self) -> None:
        self.self_attn.fuse_()
        self.conv.fold_norm_()

    def forward(self, x_BTD: torch.Tensor, padding: Padding, positions: Positions) -> torch.Tensor:
        x_BTD = torch.add(x_BTD, self.feed_forward1(self.norm_feed_forward1(x_BTD)), alpha=0.5)
        x_BTD = x_BTD + self.self_attn(self.norm_self_attn(x_BTD), padding, positions)
        x_BTD = x_BTD + self.conv(self.norm_conv(x_BTD), padding)
        x_BTD = torch.add(x_BTD, self.feed_forward2(self.norm_feed_forward2(x_BTD)), alpha=0.5)
        out_BTD: torch.Tensor = self.norm_out(x_BTD)
        return out_BTD


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int, use_bias: bool) -> None:
        super().__init__()
        self.linear1 = nn.Linear(width, hidden, bias=use_bias)
        self.activation: nn.Module = nn.SiLU()
        self.linear2 = nn.Linear(hidden, width, bias=use_bias)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        out_BTD: torch.Tensor = self.linear2(self.activation(self.linear1(x_BTD)))
        return out_BTD


class ConvolutionModule(nn.Module):
    """Pointwise, GLU, depthwise over time, norm, SiLU, pointwise. Padding is zeroed just before the depthwise part."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, bias, kernel = config.d_model, config.use_bias, config.conv_kernel
        self.is_causal = config.causal_conv
        self.pointwise1 = nn.Linear(width, 2 * width, bias=bias)
        padding = kernel - 1 if self.is_causal else kernel // 2
        self.depthwise = nn.Conv1d(width, width, kernel, padding=padding, groups=width, bias=bias)
        self.norm: nn.Module = nn.BatchNorm1d(width) if config.conv_norm == "batch_norm" else nn.LayerNorm(width)
        self.pointwise2 = nn.Linear(width, width, bias=bias)

    def fold_norm_(self) -> None:
        """Fold a BatchNorm into the depthwise convolution."""
        if isinstance(self.norm, nn.BatchNorm1d):
            fold_norm_(self.depthwise, self.norm)
            self.norm = nn.Identity()

    def forward(self, x_BTD: torch.Tensor, padding: Padding) -> torch.Tensor:
        x_BTD = padding.filled(F.glu(self.pointwise1(x_BTD), dim=-1), 0.0, time_axis=1)
        x_BTD = self._depthwise(x_BTD)
        out_BTD: torch.Tensor = self.pointwise2(F.silu(self._normalise(x_BTD), inplace=not self.training))
        return out_BTD

    def _normalise(self, x_BTD: torch.Tensor) -> torch.Tensor:
        if isinstance(self.norm, nn.BatchNorm1d):
            return torch.transpose(self.norm(x_BTD.transpose(1, 2)), 1, 2)
        normed_BTD: torch.Tensor = self.norm(x_BTD)
        return normed_BTD

    def _depthwise(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Convolve as 2-D with height one: [B, T, D] is then channels-last memory, which needs no transposing copy on a CPU.

        A causal convolution is padded on both sides, and the outputs beyond the last frame are dropped.
        """
        conv = self.depthwise
        x_BD1T, padding = x_BTD.transpose(1, 2).unsqueeze(2), (0, int(conv.padding[0]))
        out_BD1T = depthwise_conv2d(x_BD1T, conv.weight.unsqueeze(2), conv.bias, 1, padding)
        return out_BD1T[..., : x_BTD.shape[1]].squeeze(2).transpose(1, 2).to(x_BTD.dtype)


class LanguagePrompt(Optimised):
    """The layers of Nemotron 3.5 ASR that tell it which language to write: two, with a ReLU between.

    They map frames [B, T, D], with a one-hot of the language beside each, to frames [B, T, D].
    """

    def __init__(self, config: LanguagePromptConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.is_optimised = False
        self.inner = nn.Linear(width + config.num_prompts, config.hidden)
        self.outer = nn.Linear(config.hidden, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        if not self.is_optimised:
            language = x_BTD.new_zeros(*x_BTD.shape[:2], self.config.num_prompts)
            language[..., self.config.index] = 1.0
            x_BTD = torch.cat([x_BTD, language], dim=2)
        out_BTD: torch.Tensor = self.outer(F.relu(self.inner(x_BTD), inplace=not self.training))
        return out_BTD

    @torch.no_grad()
    def optimise_(self) -> None:
        """Add the language's column to the bias of the first layer, in float32: the one-hot is the same at all frames."""
        linear, num_prompts, self.is_optimised = self.inner, self.config.num_prompts, True
        frames, languages = linear.weight.split([linear.in_features - num_prompts, num_prompts], dim=1)
        self.inner = linear_from(frames.contiguous(), linear.bias.float() + languages[:, self.config.index].float())
