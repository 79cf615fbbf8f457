"""Settings of a FastConformer encoder that its checkpoint fixes, the values that they may have, and the weights' shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fastscribe._system.jit import runs_in_python
from fastscribe.config import AttentionConfigs, ChunkedAttention, ModelConfig, Size, Within
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.parameter_shapes import Shapes, batch_norm, joined, linear, norm, prefixed

ConvNorm = Literal["batch_norm", "layer_norm"]
Subsampling = Literal["dw_striding", "striding"]
SUBSAMPLING_FACTORS = (2, 4, 8, 16, 32)
MIN_WIDTH_OF_LOOPS = 512  # of an encoder whose layers are loops on a CPU (cpu_layers.py)


@dataclass(frozen=True)
class LanguagePromptConfig:
    """Layers after the encoder that tell it the language to write (Nemotron 3.5 ASR): a one-hot beside each frame."""

    num_prompts: Annotated[int, Within(1, 1 << 12)]  # length of the one-hot
    hidden: Annotated[int, Within(1, 1 << 15)]
    languages: Mapping[str, int]  # index of each language in the one-hot, by the checkpoint's names
    index: Annotated[int, Within(0, 1 << 12)]  # of the language that the model gets


@dataclass(frozen=True)
class EncoderConfig:
    """FastConformer encoder (Rekesh et al. 2023)."""

    num_mels: Annotated[int, Within(1, 1024)]
    num_layers: Annotated[int, Within(1, 256)]
    d_model: Annotated[int, Within(2, 1 << 14)]
    num_heads: Annotated[int, Within(1, 256)]
    ff_hidden: Annotated[int, Within(1, 1 << 17)]
    conv_kernel: Annotated[int, Within(1, 1023)]
    conv_norm: ConvNorm
    use_bias: bool
    xscaling: bool
    subsampling: Subsampling
    subsampling_factor: Annotated[int, SUBSAMPLING_FACTORS]
    subsampling_channels: Annotated[int, Within(1, 1 << 14)]
    attention: AttentionConfigs | None = None  # None: every frame attends to all
    contexts: tuple[ChunkedAttention, ...] = ()  # a streaming model's choices of `attention`, its default first
    causal_subsampling: bool = False  # windows end at their frame, in time and in frequency
    causal_conv: bool = False  # in the layers
    language_prompt: LanguagePromptConfig | None = None
    family: ClassVar[str] = "conformer"
    has_matrices: ClassVar[bool] = True
    separates_words: ClassVar[bool] = False
    num_tokens: ClassVar[int | None] = None

    @property
    def largest_matrix(self) -> tuple[int, int]:
        """See EncoderSettings."""
        return self.d_model, self.ff_hidden

    @property
    def attends(self) -> str:
        """See EncoderSettings."""
        return str(self.attention or "full")

    @property
    def has_loops(self) -> bool:
        """See EncoderSettings. A narrower encoder transcribes a short recording in less time than numba is loaded in.

        In Python the loops would take a thousand times as long.
        """
        return self.d_model >= MIN_WIDTH_OF_LOOPS and not runs_in_python()

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of output frames."""
        return subsampled(mel_frames, self.subsampling_factor.bit_length() - 1, self.causal_subsampling)

    def check_fit(self, where: object) -> None:
        """See EncoderSettings."""
        if self.d_model % self.num_heads or self.d_model % 2:
            supported = f"even multiples of {self.num_heads} heads"
            raise UnsupportedCheckpoint(where, "encoder width", self.d_model, supported)
        if self.conv_kernel % 2 == 0:
            raise UnsupportedCheckpoint(where, "encoder.conv_kernel", self.conv_kernel, "odd numbers")
        if self.contexts and self.attention != self.contexts[0]:
            supported = f"the first context, {self.contexts[0]}"
            raise UnsupportedCheckpoint(where, "encoder.attention", str(self.attention), supported)
        if (prompt := self.language_prompt) is not None:
            for index in (prompt.index, *prompt.languages.values()):
                if type(index) is not int or not 0 <= index < prompt.num_prompts:
                    supported = f"0 to {prompt.num_prompts - 1}"
                    raise UnsupportedCheckpoint(where, "language_prompt.languages", index, supported)


def subsampled(size: Size, times: int, is_causal: bool) -> Size:
    """Return the size after `times` stride-2 convolutions with kernel 3.

    They are padded by 1 on both sides, causal ones by 2 before and 1 after.
    """
    for _ in range(times):
        size = size // 2 + 1 if is_causal else (size + 1) // 2
    return size


def language_prompt_of(config: ModelConfig) -> LanguagePromptConfig | None:
    """Return the config of the layers that tell a model the language, if it has them."""
    return config.encoder.language_prompt if isinstance(config.encoder, EncoderConfig) else None


def encoder_shapes(config: EncoderConfig) -> Shapes:
    """Return the shape of each weight of the encoder, by its name."""
    channels, width = config.subsampling_channels, config.d_model
    shapes: Shapes = {}
    for stage in range(int(math.log2(config.subsampling_factor))):
        if stage == 0 or config.subsampling == "striding":
            inputs_and_sizes = [(1 if stage == 0 else channels, 3)]
        else:
            inputs_and_sizes = [(1, 3), (channels, 1)]  # depthwise, pointwise
        for number, (inputs, size) in enumerate(inputs_and_sizes):
            name = f"subsampling.stages.{stage}.{number}"
            shapes |= {f"{name}.weight": (channels, inputs, size, size), f"{name}.bias": (channels,)}
    num_bins = subsampled(config.num_mels, int(math.log2(config.subsampling_factor)), config.causal_subsampling)
    shapes |= linear("subsampling.out", channels * num_bins, width)
    if (prompt := config.language_prompt) is not None:
        shapes |= linear("language_prompt.inner", width + prompt.num_prompts, prompt.hidden)
        shapes |= linear("language_prompt.outer", prompt.hidden, width)
    layer = _layer(config)
    return joined(shapes, *(prefixed(f"layers.{number}", layer) for number in range(config.num_layers)))


def _layer(config: EncoderConfig) -> Shapes:
    width, bias = config.d_model, config.use_bias
    norms = ("norm_feed_forward1", "norm_self_attn", "norm_conv", "norm_feed_forward2", "norm_out")
    shapes = joined(*(norm(name, width) for name in norms))
    for name in ("feed_forward1", "feed_forward2"):
        shapes |= linear(f"{name}.linear1", width, config.ff_hidden, bias)
        shapes |= linear(f"{name}.linear2", config.ff_hidden, width, bias)
    for name in ("q", "k", "v", "out"):
        shapes |= linear(f"self_attn.linear_{name}", width, width, bias)
    shapes |= linear("self_attn.linear_pos", width, width, bias=False)
    head = (config.num_heads, width // config.num_heads)
    shapes |= {"self_attn.pos_bias_u": head, "self_attn.pos_bias_v": head}
    shapes |= linear("conv.pointwise1", width, 2 * width, bias) | linear("conv.pointwise2", width, width, bias)
    shapes |= {"conv.depthwise.weight": (width, 1, config.conv_kernel)}
    shapes |= {"conv.depthwise.bias": (width,)} if bias else {}
    is_batch_norm = config.conv_norm == "batch_norm"
    return shapes | (batch_norm("conv.norm", width) if is_batch_norm else norm("conv.norm", width))
