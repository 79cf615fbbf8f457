"""The values that a convolutional encoder's settings may have."""

from __future__ import annotations

from typing import get_args

from fastscribe.checkpoint.validate import MAX_STRIDE, Limits
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.jasper.config import JasperActivation, JasperBlockConfig, JasperConfig, JasperResidual

_SIZES = {
    "blocks.filters": (2, 1 << 14),
    "blocks.repeat": (1, 64),
    "blocks.kernel": (1, 1023),
    "blocks.stride": (1, 8),
    "blocks.dilation": (1, 256),
    "blocks.groups": (1, 1 << 14),
    "blocks.heads": (1, 1 << 14),
    "blocks.se_hidden": (1, 1 << 14),
}
_WORDS = {
    "encoder.activation": get_args(JasperActivation),
    "encoder.masked": (True, False),
    "blocks.stride_last": (True, False),
    "blocks.separable": (True, False),
    "blocks.residual": ("none", *get_args(JasperResidual)),
    "blocks.dense": (True, False),
}
_MAX_BLOCKS, _MAX_CONVOLUTIONS = 256, 4000  # convolutions include those of residuals


def _check(encoder: JasperConfig, where: object) -> None:
    """Check each block, and that residuals match the channels and frames that they are added to."""
    if not 0 < len(encoder.blocks) <= _MAX_BLOCKS:
        raise UnsupportedCheckpoint(where, "encoder.blocks", len(encoder.blocks), f"1 to {_MAX_BLOCKS} blocks")
    channels, inputs, dense, convolutions = encoder.num_mels, [encoder.num_mels], [], 0
    for number, block in enumerate(encoder.blocks):
        dense += [channels] * block.dense
        residuals = [] if block.residual == "none" else list(dense) if block.dense else [channels]
        is_strided = block.total_stride > 1
        own_stride = block.stride if block.residual == "stride_add" else 1
        convolutions += block.repeat + len(residuals)
        for fits, name, value, supported in (
            (block.kernel % 2 == 1, "kernel", block.kernel, "odd numbers"),
            (block.stride == 1 or block.dilation == 1, "dilation", block.dilation, "1 with a stride"),
            (all(n % block.groups == 0 for n in (block.filters, channels)), "groups", block.groups, "divisors"),
            (block.heads is None or block.separable, "heads", block.heads, "null without separable"),
            (not any(n % (block.heads or 1) for n in _widths(block, channels)), "heads", block.heads, "divisors"),
            (not residuals or residuals == inputs, "residual", block.residual, "of the blocks just before"),
            (not residuals or own_stride == block.total_stride, "stride", block.stride, "the residual's"),
            (not (block.dense and is_strided), "stride", block.stride, "1 in dense blocks"),
            (convolutions <= _MAX_CONVOLUTIONS, "repeat", block.repeat, f"{_MAX_CONVOLUTIONS} convolutions in all"),
        ):
            if not fits:
                raise UnsupportedCheckpoint(where, f"encoder.blocks.{number}.{name}", value, supported)
        channels = block.filters
        inputs = [*inputs, channels] if block.dense and residuals else [channels]
    if encoder.subsampling_factor > MAX_STRIDE:
        raise UnsupportedCheckpoint(where, "encoder stride", encoder.subsampling_factor, f"up to {MAX_STRIDE}")


def _widths(block: JasperBlockConfig, in_channels: int) -> tuple[int, ...]:
    """Return the channels of the block's depthwise convolutions."""
    return (in_channels, block.filters) if block.repeat > 1 else (in_channels,)


LIMITS = Limits(
    _SIZES, _WORDS, _check, {"blocks": lambda encoder: encoder.blocks}, nullable=("blocks.heads", "blocks.se_hidden")
)
