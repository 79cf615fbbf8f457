"""Names and shapes of the weights of NeMo's Conformer encoders. Nothing of fastscribe or NeMo is imported."""

from __future__ import annotations

from tests.helpers.published import Yaml
from tests.helpers.se_checkpoint import Shapes, batch_norm, linear


def norm(name: str, width: int) -> Shapes:
    """Return the names of a layer norm's weights, with their shapes."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def conformer_shapes(encoder: Yaml) -> Shapes:
    """Return NeMo's names of a ConformerEncoder's weights, with their shapes."""
    width, heads, kernel = encoder["d_model"], encoder["n_heads"], encoder["conv_kernel_size"]
    bias, mels, factor = encoder.get("use_bias", True), encoder["feat_in"], encoder["subsampling_factor"]
    channels = encoder["subsampling_conv_channels"]
    channels = width if channels == -1 else channels
    stages, at = factor.bit_length() - 1, 0
    shapes: Shapes = {}
    for stage in range(stages):
        mels = mels // 2 + 1 if encoder.get("causal_downsampling") else (mels + 1) // 2
        is_separable = stage > 0 and encoder["subsampling"] == "dw_striding"
        inputs = 1 if stage == 0 or is_separable else channels
        shapes |= linear(f"encoder.pre_encode.conv.{at}", inputs, channels, True, 3, 3)
        if is_separable:
            at += 1
            shapes |= linear(f"encoder.pre_encode.conv.{at}", channels, channels, True, 1, 1)
        at += 2
    shapes |= linear("encoder.pre_encode.out", channels * mels, width)
    for layer in (f"encoder.layers.{number}" for number in range(encoder["n_layers"])):
        for name in ("feed_forward1", "feed_forward2", "self_att", "conv", "out"):
            shapes |= norm(f"{layer}.norm_{name}", width)
        inner = width * encoder["ff_expansion_factor"]
        for name in ("feed_forward1", "feed_forward2"):
            shapes |= linear(f"{layer}.{name}.linear1", width, inner, bias)
            shapes |= linear(f"{layer}.{name}.linear2", inner, width, bias)
        for name in "qkv":
            shapes |= linear(f"{layer}.self_attn.linear_{name}", width, width, bias)
        shapes |= linear(f"{layer}.self_attn.linear_out", width, width, bias)
        shapes |= linear(f"{layer}.self_attn.linear_pos", width, width, False)
        shapes |= {f"{layer}.self_attn.pos_bias_{name}": (heads, width // heads) for name in "uv"}
        shapes |= linear(f"{layer}.conv.pointwise_conv1", width, 2 * width, bias, 1)
        shapes |= linear(f"{layer}.conv.depthwise_conv", 1, width, bias, kernel)
        shapes |= linear(f"{layer}.conv.pointwise_conv2", width, width, bias, 1)
        shapes |= (batch_norm if encoder["conv_norm_type"] == "batch_norm" else norm)(f"{layer}.conv.batch_norm", width)
    return shapes
