"""Settings of a convolutional encoder that its checkpoint fixes, the values that they may have, and the weights' shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fastscribe.config import MAX_STRIDE, Within
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.parameter_shapes import Shapes, batch_norm, linear, prefixed

JasperActivation = Literal["relu", "hardtanh", "selu", "silu", "gelu", "identity"]
JasperResidual = Literal["add", "stride_add", "max"]  # "stride_add": the input, with the block's strides


@dataclass(frozen=True)
class JasperBlockConfig:
    """`repeat` convolutions in a row; the residual is added to the last one's output."""

    filters: Annotated[int, Within(2, 1 << 14)]
    repeat: Annotated[int, Within(1, 64)]
    kernel: Annotated[int, Within(1, 1023)]
    stride: Annotated[int, Within(1, 8)]  # of each convolution, or of the last alone (stride_last)
    stride_last: bool
    dilation: Annotated[int, Within(1, 256)]
    separable: bool  # each convolution is depthwise plus pointwise
    # Groups of the pointwise (or non-separable) convolutions; their outputs are shuffled.
    groups: Annotated[int, Within(1, 1 << 14)]
    # Number of filters that a depthwise convolution's channels share in turn; None: one each.
    heads: Annotated[int, Within(1, 1 << 14)] | None
    residual: Literal["none", JasperResidual]
    dense: bool  # the residual adds the inputs of this block and of all dense blocks before it
    # Width of the squeeze-and-excite layer after the last convolution; None: there is none.
    se_hidden: Annotated[int, Within(1, 1 << 14)] | None = None

    @property
    def total_stride(self) -> int:
        return int(self.stride ** (1 if self.stride_last else self.repeat))


@dataclass(frozen=True)
class JasperConfig:
    """Convolutional encoder: Jasper (Li et al. 2019), QuartzNet (Kriman et al. 2019), ContextNet (Han et al. 2020), Citrinet
    (Majumdar et al. 2021) and mixtures of them."""

    num_mels: Annotated[int, Within(1, 1024)]
    blocks: tuple[JasperBlockConfig, ...]
    activation: JasperActivation
    masked: bool  # False: the masked frame that the STFT adds beyond a recording's end counts as a frame
    kind: str = "jasper"
    family: ClassVar[str] = "jasper"
    has_matrices: ClassVar[bool] = False
    separates_words: ClassVar[bool] = False
    num_tokens: ClassVar[int | None] = None
    attends: ClassVar[str] = "none"
    has_loops: ClassVar[bool] = False

    @property
    def d_model(self) -> int:
        return self.blocks[-1].filters

    @property
    def largest_matrix(self) -> tuple[int, int]:
        """See EncoderSettings."""
        channels = self.blocks[len(self.blocks) // 2].filters
        return channels, channels

    @property
    def subsampling_factor(self) -> int:
        return math.prod(block.total_stride for block in self.blocks)

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of output frames."""
        return math.ceil(mel_frames / self.subsampling_factor)

    def check_fit(self, where: object) -> None:
        """See EncoderSettings."""
        if not 0 < len(self.blocks) <= _MAX_BLOCKS:
            raise UnsupportedCheckpoint(where, "encoder.blocks", len(self.blocks), f"1 to {_MAX_BLOCKS} blocks")
        channels, inputs, dense, convolutions = self.num_mels, [self.num_mels], [], 0
        for number, block in enumerate(self.blocks):
            dense += [channels] * block.dense
            residuals = [] if block.residual == "none" else list(dense) if block.dense else [channels]
            is_strided = block.total_stride > 1
            own_stride = block.stride if block.residual == "stride_add" else 1
            convolutions += block.repeat + len(residuals)
            depthwise = (channels, block.filters) if block.repeat > 1 else (channels,)  # channels of these convolutions
            for fits, name, value, supported in (
                (block.kernel % 2 == 1, "kernel", block.kernel, "odd numbers"),
                (block.stride == 1 or block.dilation == 1, "dilation", block.dilation, "1 with a stride"),
                (all(n % block.groups == 0 for n in (block.filters, channels)), "groups", block.groups, "divisors"),
                (block.heads is None or block.separable, "heads", block.heads, "null without separable"),
                (not any(n % (block.heads or 1) for n in depthwise), "heads", block.heads, "divisors"),
                (not residuals or residuals == inputs, "residual", block.residual, "of the blocks just before"),
                (not residuals or own_stride == block.total_stride, "stride", block.stride, "the residual's"),
                (not (block.dense and is_strided), "stride", block.stride, "1 in dense blocks"),
                (convolutions <= _MAX_CONVOLUTIONS, "repeat", block.repeat, f"{_MAX_CONVOLUTIONS} convolutions in all"),
            ):
                if not fits:
                    raise UnsupportedCheckpoint(where, f"encoder.blocks.{number}.{name}", value, supported)
            channels = block.filters
            inputs = [*inputs, channels] if block.dense and residuals else [channels]
        if self.subsampling_factor > MAX_STRIDE:
            raise UnsupportedCheckpoint(where, "encoder stride", self.subsampling_factor, f"up to {MAX_STRIDE}")


_MAX_BLOCKS, _MAX_CONVOLUTIONS = 256, 4000  # convolutions include those of residuals


def encoder_shapes(config: JasperConfig) -> Shapes:
    """Return the shape of each weight of the encoder, by its name."""
    shapes: Shapes = {}
    channels, dense_channels = config.num_mels, []
    for number, block in enumerate(config.blocks):
        if block.dense:
            dense_channels.append(channels)
        for repeat in range(block.repeat):
            inputs = channels if repeat == 0 else block.filters
            shapes |= prefixed(f"blocks.{number}.convs.{repeat}", _conv_norm(block, inputs))
        if block.se_hidden is not None:
            name = f"blocks.{number}.squeeze_excite"
            shapes |= linear(f"{name}.squeeze", block.filters, block.se_hidden, bias=False)
            shapes |= linear(f"{name}.excite", block.se_hidden, block.filters, bias=False)
        residuals = dense_channels if block.dense else [channels]
        for residual, inputs in enumerate(residuals if block.residual != "none" else []):
            name = f"blocks.{number}.residuals.{residual}"
            shapes |= {f"{name}.conv.weight": (block.filters, inputs, 1)} | batch_norm(f"{name}.norm", block.filters)
        channels = block.filters
    return shapes


def _conv_norm(block: JasperBlockConfig, inputs: int) -> Shapes:
    kernel = 1 if block.separable else block.kernel
    shapes: Shapes = {"conv.weight": (block.filters, inputs // block.groups, kernel)}
    if block.separable:
        shapes |= {"depthwise.weight": (block.heads or inputs, 1, block.kernel)}
    return shapes | batch_norm("norm", block.filters)
