"""Shapes of a Granite Speech encoder's weights."""

from __future__ import annotations

from fastscribe.families.blocks.shapes import Shapes, batch_norm, joined, linear, norm, prefixed
from fastscribe.families.granite.config import GRANITE_STACKED, GraniteConfig


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
