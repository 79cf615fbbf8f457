"""Shapes of a FastConformer encoder's weights."""

from __future__ import annotations

import math

from fastscribe.families.blocks.shapes import Shapes, batch_norm, joined, linear, norm, prefixed
from fastscribe.families.conformer.config import EncoderConfig, subsampled


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
