"""Names and shapes of a model's weights, computed from its config without torch for `fastscribe inspect`.

They equal those of Model(config).state_dict(); a test compares them for every model family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fastscribe.config import (
    GRANITE_STACKED,
    AedConfig,
    EncoderConfig,
    GraniteConfig,
    JasperBlockConfig,
    JasperConfig,
    ModelConfig,
    TransformerConfig,
    subsampled,
)

Shapes = dict[str, tuple[int, ...]]


def parameter_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of each weight by name."""
    encoder = config.encoder
    parts = [_prefixed("encoder", _ENCODERS[type(encoder)](encoder))]
    width, num_tokens = encoder.d_model, config.num_labels + 1
    if config.joint is not None and config.predictor is not None:
        hidden, joint = config.predictor.hidden, config.joint.hidden
        parts.append({"transducer.predictor.embedding.weight": (num_tokens, hidden)})
        for layer in range(config.predictor.num_layers):
            for side in ("ih", "hh"):
                name = f"transducer.predictor.lstm.{{}}_{side}_l{layer}"
                parts.append({name.format("weight"): (4 * hidden, hidden), name.format("bias"): (4 * hidden,)})
        parts.append(_linear("transducer.joint.encoder", width, joint))
        parts.append(_linear("transducer.joint.predictor", hidden, joint))
        num_outputs = config.labels_per_language + 1 + len(config.durations)
        outputs = [f"transducer.joint.output.{tag}" for tag in config.language_heads] or ["transducer.joint.output"]
        parts += [_linear(name, joint, num_outputs) for name in outputs]
    if config.has_ctc:
        parts.append(_linear("ctc.output", width, num_tokens))
    if config.aed is not None:
        parts.append(_prefixed("aed", _attention_decoder(config.aed, width)))
    return _joined(*parts)


def _conformer(config: EncoderConfig) -> Shapes:
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
    shapes |= _linear("subsampling.out", channels * num_bins, width)
    if (prompt := config.language_prompt) is not None:
        shapes |= _linear("language_prompt.inner", width + prompt.num_prompts, prompt.hidden)
        shapes |= _linear("language_prompt.outer", prompt.hidden, width)
    layer = _conformer_layer(config)
    return _joined(shapes, *(_prefixed(f"layers.{number}", layer) for number in range(config.num_layers)))


def _conformer_layer(config: EncoderConfig) -> Shapes:
    width, bias = config.d_model, config.use_bias
    norms = ("norm_feed_forward1", "norm_self_attn", "norm_conv", "norm_feed_forward2", "norm_out")
    shapes = _joined(*(_norm(name, width) for name in norms))
    for name in ("feed_forward1", "feed_forward2"):
        shapes |= _linear(f"{name}.linear1", width, config.ff_hidden, bias)
        shapes |= _linear(f"{name}.linear2", config.ff_hidden, width, bias)
    for name in ("q", "k", "v", "out"):
        shapes |= _linear(f"self_attn.linear_{name}", width, width, bias)
    shapes |= _linear("self_attn.linear_pos", width, width, bias=False)
    head = (config.num_heads, width // config.num_heads)
    shapes |= {"self_attn.pos_bias_u": head, "self_attn.pos_bias_v": head}
    shapes |= _linear("conv.pointwise1", width, 2 * width, bias) | _linear("conv.pointwise2", width, width, bias)
    shapes |= {"conv.depthwise.weight": (width, 1, config.conv_kernel)}
    shapes |= {"conv.depthwise.bias": (width,)} if bias else {}
    is_batch_norm = config.conv_norm == "batch_norm"
    return shapes | (_batch_norm("conv.norm", width) if is_batch_norm else _norm("conv.norm", width))


def _jasper(config: JasperConfig) -> Shapes:
    shapes: Shapes = {}
    channels, dense_channels = config.num_mels, []
    for number, block in enumerate(config.blocks):
        if block.dense:
            dense_channels.append(channels)
        for repeat in range(block.repeat):
            inputs = channels if repeat == 0 else block.filters
            shapes |= _prefixed(f"blocks.{number}.convs.{repeat}", _conv_norm(block, inputs))
        if block.se_hidden is not None:
            name = f"blocks.{number}.squeeze_excite"
            shapes |= _linear(f"{name}.squeeze", block.filters, block.se_hidden, bias=False)
            shapes |= _linear(f"{name}.excite", block.se_hidden, block.filters, bias=False)
        residuals = dense_channels if block.dense else [channels]
        for residual, inputs in enumerate(residuals if block.residual != "none" else []):
            name = f"blocks.{number}.residuals.{residual}"
            shapes |= {f"{name}.conv.weight": (block.filters, inputs, 1)} | _batch_norm(f"{name}.norm", block.filters)
        channels = block.filters
    return shapes


def _granite(config: GraniteConfig) -> Shapes:
    width, channels = config.d_model, config.conv_width
    norms = ("norm_feed_forward1", "norm_self_attn", "norm_conv", "norm_feed_forward2", "norm_out")
    layer = _joined(*(_norm(name, width) for name in norms))
    for name in ("feed_forward1", "feed_forward2"):
        layer |= _linear(f"{name}.linear1", width, config.ff_hidden, config.use_bias)
        layer |= _linear(f"{name}.linear2", config.ff_hidden, width, config.use_bias)
    for name in ("q", "k", "v"):
        layer |= _linear(f"self_attn.linear_{name}", width, width, bias=False)
    layer |= _linear("self_attn.linear_out", width, width)
    layer |= {"self_attn.positions.weight": (2 * config.max_distance + 1, width // config.num_heads)}
    layer |= _linear("conv.pointwise1", width, 2 * channels) | _linear("conv.pointwise2", channels, width)
    layer |= {"conv.depthwise.weight": (channels, 1, config.conv_kernel)} | _batch_norm("conv.norm", channels)
    return _joined(
        _linear("input", 2 * GRANITE_STACKED * config.num_mels, width),
        _linear("body.conditioning.inner", width, config.num_tokens),
        _linear("body.conditioning.outer", config.num_tokens, width),
        *(_prefixed(f"body.layers.{number}", layer) for number in range(config.num_layers)),
    )


_ENCODERS: dict[type, Callable[[Any], Shapes]] = {
    EncoderConfig: _conformer,
    JasperConfig: _jasper,
    GraniteConfig: _granite,
}


def _conv_norm(block: JasperBlockConfig, inputs: int) -> Shapes:
    kernel = 1 if block.separable else block.kernel
    shapes: Shapes = {"conv.weight": (block.filters, inputs // block.groups, kernel)}
    if block.separable:
        shapes |= {"depthwise.weight": (block.heads or inputs, 1, block.kernel)}
    return shapes | _batch_norm("norm", block.filters)


def _attention_decoder(config: AedConfig, d_model: int) -> Shapes:
    hidden = config.decoder.hidden
    parts = [_linear("projection", d_model, hidden)] if d_model != hidden else []
    if config.bridge is not None:
        layer = _transformer_layer(config.bridge, {"attention": "norm_attention"})
        parts += [_prefixed(f"bridge.{number}", layer) for number in range(config.bridge.num_layers)]
        parts += _final_norm("bridge_norm", config.bridge)
    parts.append({"embedding.weight": (config.num_classes, hidden), "positions.weight": (config.max_tokens, hidden)})
    layer = _transformer_layer(config.decoder, {"own": "norm_own", "frames": "norm_frames"})
    parts += [_prefixed(f"layers.{number}", layer) for number in range(config.decoder.num_layers)]
    parts += _final_norm("final_norm", config.decoder)
    return _joined(_norm("norm", hidden), _linear("head", hidden, config.num_classes), *parts)


def _transformer_layer(config: TransformerConfig, attentions: dict[str, str]) -> Shapes:
    """Return the shapes of a layer; `attentions` maps each attention to its norm."""
    width = config.hidden
    shapes = _norm("norm_feed_forward", width)
    shapes |= _linear("feed_forward.inner", width, config.ff_hidden)
    shapes |= _linear("feed_forward.outer", config.ff_hidden, width)
    for attention, norm in attentions.items():
        shapes |= _norm(norm, width)
        for name in ("query", "key", "value", "out"):
            shapes |= _linear(f"{attention}.{name}", width, width)
    return shapes


def _final_norm(name: str, config: TransformerConfig) -> list[Shapes]:
    return [_norm(name, config.hidden)] if config.pre_norm and config.final_norm else []


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _batch_norm(name: str, width: int) -> Shapes:
    buffers: Shapes = {f"{name}.running_mean": (width,), f"{name}.running_var": (width,)}
    return _norm(name, width) | buffers | {f"{name}.num_batches_tracked": ()}


def _prefixed(name: str, shapes: Shapes) -> Shapes:
    return {f"{name}.{key}": shape for key, shape in shapes.items()}


def _joined(*parts: Shapes) -> Shapes:
    return {name: shape for part in parts for name, shape in part.items()}
