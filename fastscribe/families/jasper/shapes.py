"""Shapes of a convolutional encoder's weights."""

from __future__ import annotations

from fastscribe.families.blocks.shapes import Shapes, batch_norm, linear, prefixed
from fastscribe.families.jasper.config import JasperBlockConfig, JasperConfig


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
