"""Settings of a Granite Speech encoder that its checkpoint fixes, the values that they may have, and the weights' shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fastscribe.config import MAX_PIECES, MAX_STRIDE, Within
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.parameter_shapes import Shapes, batch_norm, joined, linear, norm, prefixed

GRANITE_STACKED = 2  # mel frames that a GraniteConfig's encoder takes as one


@dataclass(frozen=True)
class GraniteConfig:
    """Conformer of Granite Speech 5.0 TurboCTC (Saon et al. 2026).

    A frame attends to its block, positions are learnt (Shaw et al. 2018), some layers halve the frames, and the frames after
    the middle layer are conditioned on their own CTC probabilities (Nozaki and Komatsu 2021).
    """

    num_mels: Annotated[int, Within(1, 1024)]
    num_layers: Annotated[int, Within(1, 256)]
    d_model: Annotated[int, Within(2, 1 << 14)]
    num_heads: Annotated[int, Within(1, 256)]
    ff_hidden: Annotated[int, Within(1, 1 << 17)]
    conv_kernel: Annotated[int, Within(1, 1023)]
    conv_width: Annotated[int, Within(1, 1 << 16)]  # channels of the depthwise convolution
    use_bias: bool  # in the feed-forward layers
    block: Annotated[int, Within(1, 1 << 12)]  # frames of a block, at each layer's own rate
    max_distance: Annotated[int, Within(1, 1 << 14)]  # of two frames in the stored table of positions
    strided_layers: tuple[int, ...]  # numbers of the layers that halve the frames
    num_tokens: Annotated[int, Within(2, MAX_PIECES + 1)]  # labels and blank
    kind: str = "granite"
    family: ClassVar[str] = "granite"
    has_matrices: ClassVar[bool] = True
    separates_words: ClassVar[bool] = True
    has_loops: ClassVar[bool] = False

    @property
    def largest_matrix(self) -> tuple[int, int]:
        """See EncoderSettings."""
        return self.d_model, self.ff_hidden

    @property
    def attends(self) -> str:
        """See EncoderSettings."""
        return f"blocks:{self.block}"

    @property
    def subsampling_factor(self) -> int:
        return GRANITE_STACKED << len(self.strided_layers)

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of output frames. A halving layer drops an odd last frame."""
        return -(-mel_frames // GRANITE_STACKED) >> len(self.strided_layers)

    def check_fit(self, where: object) -> None:
        """See EncoderSettings."""
        strided, layers = self.strided_layers, range(self.num_layers)
        for fits, name, value, supported in (
            (self.d_model % self.num_heads == 0, "width", self.d_model, f"multiples of {self.num_heads} heads"),
            (self.conv_kernel % 2 == 1, "conv_kernel", self.conv_kernel, "odd numbers"),
            (self.block <= self.max_distance, "block", self.block, f"up to {self.max_distance}, the positions"),
            (self.subsampling_factor <= MAX_STRIDE, "stride", self.subsampling_factor, f"up to {MAX_STRIDE}"),
            (
                *(strided == tuple(sorted(set(strided))) and all(type(n) is int and n in layers for n in strided),),
                *("strided_layers", list(strided), "numbers of layers, in order"),
            ),
        ):
            if not fits:
                raise UnsupportedCheckpoint(where, f"encoder.{name}", value, supported)


def encoder_shapes(config: GraniteConfig) -> Shapes:
    """Return the shape of each weight of the encoder, by its name."""
    width, channels = config.d_model, config.conv_width
    norms = ("norm_feed_forward1", "norm_self_attn", "norm_conv", "norm_feed_forward2", "norm_out")
    layer = joined(*(norm(name, width) for name in norms))
    for name in ("feed_forward1", "feed_forward2"):
        layer |= linear(f"{name}.linear1", width, config.ff_hidden, config.use_bias)
        layer |= linear(f"{name}.linear2", config.ff_hidden, width, config.use_bias)
    for name in ("q", "k", "v"):
        layer |= linear(f"self_attn.linear_{name}", width, width, bias=False)
    layer |= linear("self_attn.linear_out", width, width)
    layer |= {"self_attn.positions.weight": (2 * config.max_distance + 1, width // config.num_heads)}
    layer |= linear("conv.pointwise1", width, 2 * channels) | linear("conv.pointwise2", channels, width)
    layer |= {"conv.depthwise.weight": (channels, 1, config.conv_kernel)} | batch_norm("conv.norm", channels)
    return joined(
        linear("input", 2 * GRANITE_STACKED * config.num_mels, width),
        linear("body.conditioning.inner", width, config.num_tokens),
        linear("body.conditioning.outer", config.num_tokens, width),
        *(prefixed(f"body.layers.{number}", layer) for number in range(config.num_layers)),
    )
