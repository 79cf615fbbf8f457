"""Settings of a convolutional encoder that its checkpoint fixes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

JasperActivation = Literal["relu", "hardtanh", "selu", "silu", "gelu", "identity"]
JasperResidual = Literal["add", "stride_add", "max"]  # "stride_add": the input, with the block's strides


@dataclass(frozen=True)
class JasperBlockConfig:
    """`repeat` convolutions in a row; the residual is added to the last one's output."""

    filters: int
    repeat: int
    kernel: int
    stride: int  # of each convolution, or of the last alone (stride_last)
    stride_last: bool
    dilation: int
    separable: bool  # each convolution is depthwise plus pointwise
    groups: int  # groups of the pointwise (or non-separable) convolutions; their outputs are shuffled
    heads: int | None  # number of filters that a depthwise convolution's channels share in turn; None: one each
    residual: JasperResidual | Literal["none"]
    dense: bool  # the residual adds the inputs of this block and of all dense blocks before it
    se_hidden: int | None = (
        None  # width of the squeeze-and-excite layer after the last convolution; None: there is none
    )

    @property
    def total_stride(self) -> int:
        return int(self.stride ** (1 if self.stride_last else self.repeat))


@dataclass(frozen=True)
class JasperConfig:
    """Convolutional encoder: Jasper (Li et al. 2019), QuartzNet (Kriman et al. 2019), ContextNet (Han et al. 2020), Citrinet
    (Majumdar et al. 2021) and mixtures of them."""

    num_mels: int
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
