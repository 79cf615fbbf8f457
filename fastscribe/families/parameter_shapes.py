"""Names and shapes of a model's weights, computed from its config without torch for `fastscribe inspect`.

They equal those of Model(config).state_dict(); a test compares them for every model family. The config of each family's encoder
makes its own from the shapes of common layers.
"""

from __future__ import annotations

from fastscribe.config import AedConfig, ModelConfig, TransformerConfig
from fastscribe.families.registry import module_of

Shapes = dict[str, tuple[int, ...]]


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    """Return the shapes of a linear layer's weights."""
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, width: int) -> Shapes:
    """Return the shapes of a LayerNorm's weights."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def batch_norm(name: str, width: int) -> Shapes:
    """Return the shapes of a BatchNorm's weights and buffers."""
    buffers: Shapes = {f"{name}.running_mean": (width,), f"{name}.running_var": (width,)}
    return norm(name, width) | buffers | {f"{name}.num_batches_tracked": ()}


def prefixed(name: str, shapes: Shapes) -> Shapes:
    """Return the shapes of a module's weights by their names in its owner."""
    return {f"{name}.{key}": shape for key, shape in shapes.items()}


def joined(*parts: Shapes) -> Shapes:
    """Return the shapes of several modules in one mapping."""
    return {name: shape for part in parts for name, shape in part.items()}


def parameter_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of each weight by name."""
    encoder = config.encoder
    parts = [prefixed("encoder", module_of(encoder.family, "config").encoder_shapes(encoder))]
    width, num_tokens = encoder.d_model, config.num_labels + 1
    if config.joint is not None and config.predictor is not None:
        hidden, joint = config.predictor.hidden, config.joint.hidden
        parts.append({"transducer.predictor.embedding.weight": (num_tokens, hidden)})
        for layer in range(config.predictor.num_layers):
            for side in ("ih", "hh"):
                name = f"transducer.predictor.lstm.{{}}_{side}_l{layer}"
                parts.append({name.format("weight"): (4 * hidden, hidden), name.format("bias"): (4 * hidden,)})
        parts.append(linear("transducer.joint.encoder", width, joint))
        parts.append(linear("transducer.joint.predictor", hidden, joint))
        num_outputs = config.labels_per_language + 1 + len(config.durations)
        outputs = [f"transducer.joint.output.{tag}" for tag in config.language_heads] or ["transducer.joint.output"]
        parts += [linear(name, joint, num_outputs) for name in outputs]
    if config.has_ctc:
        parts.append(linear("ctc.output", width, num_tokens))
    if config.aed is not None:
        parts.append(prefixed("aed", _attention_decoder(config.aed, width)))
    return joined(*parts)


def _attention_decoder(config: AedConfig, d_model: int) -> Shapes:
    hidden = config.decoder.hidden
    parts = [linear("projection", d_model, hidden)] if d_model != hidden else []
    if config.bridge is not None:
        layer = _transformer_layer(config.bridge, {"attention": "norm_attention"})
        parts += [prefixed(f"bridge.{number}", layer) for number in range(config.bridge.num_layers)]
        parts += _final_norm("bridge_norm", config.bridge)
    parts.append({"embedding.weight": (config.num_classes, hidden), "positions.weight": (config.max_tokens, hidden)})
    layer = _transformer_layer(config.decoder, {"own": "norm_own", "frames": "norm_frames"})
    parts += [prefixed(f"layers.{number}", layer) for number in range(config.decoder.num_layers)]
    parts += _final_norm("final_norm", config.decoder)
    return joined(norm("norm", hidden), linear("head", hidden, config.num_classes), *parts)


def _transformer_layer(config: TransformerConfig, attentions: dict[str, str]) -> Shapes:
    """Return the shapes of a layer; `attentions` maps each attention to its norm."""
    width = config.hidden
    shapes = norm("norm_feed_forward", width)
    shapes |= linear("feed_forward.inner", width, config.ff_hidden)
    shapes |= linear("feed_forward.outer", config.ff_hidden, width)
    for attention, its_norm in attentions.items():
        shapes |= norm(its_norm, width)
        for name in ("query", "key", "value", "out"):
            shapes |= linear(f"{attention}.{name}", width, width)
    return shapes


def _final_norm(name: str, config: TransformerConfig) -> list[Shapes]:
    return [norm(name, config.hidden)] if config.pre_norm and config.final_norm else []
