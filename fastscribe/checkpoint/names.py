"""Mapping of weight names from NeMo and from Hugging Face's folders to ours. Pure; names that match no rule stay,
and build_model reports them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastscribe.checkpoint import hf_canary, hf_cohere, hf_granite, nemo_canary
from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.nemo_jasper import convolutions
from fastscribe.config import EncoderConfig, EncoderConfigs, GraniteConfig, JasperConfig

_NEMO_UNUSED = re.compile(
    r"^preprocessor\.featurizer\.(window|fb)$|" + nemo_canary.UNUSED
)  # or computed from the config
_NEMO = (
    (r"^encoder\.pre_encode\.out\.", "encoder.subsampling.out."),
    (r"\.conv\.batch_norm\.", ".conv.norm."),
    (r"^decoder\.prediction\.embed\.", "transducer.predictor.embedding."),
    (r"^decoder\.prediction\.dec_rnn\.lstm\.", "transducer.predictor.lstm."),
    (r"^joint\.enc\.", "transducer.joint.encoder."),
    (r"^joint\.pred\.", "transducer.joint.predictor."),
    (r"^joint\.joint_net\.[12]\.", "transducer.joint.output."),  # 1 if the joint has no dropout
    (r"^prompt_kernel\.0\.", "encoder.language_prompt.inner."),
    (r"^prompt_kernel\.2\.", "encoder.language_prompt.outer."),
    (r"^(ctc_decoder|decoder)\.decoder_layers\.0\.", "ctc.output."),
    *nemo_canary.NAMES,
)
_HUGGINGFACE = (
    *hf_cohere.NAMES,
    *hf_canary.NAMES,
    (r"^encoder\.subsampling\.linear\.", "encoder.subsampling.out."),
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.self_attn\.relative_k_proj\.", ".self_attn.linear_pos."),
    (r"\.self_attn\.bias_([uv])$", r".self_attn.pos_bias_\1"),
    (r"^decoder\.embedding\.", "transducer.predictor.embedding."),
    (r"^decoder\.lstm\.", "transducer.predictor.lstm."),
    (r"^decoder\.decoder_projector\.", "transducer.joint.predictor."),
    (r"^encoder_projector\.", "transducer.joint.encoder."),
    (r"^joint\.head\.", "transducer.joint.output."),
    (r"^ctc_head\.", "ctc.output."),
    (r"^prompt_projector\.linear_1\.", "encoder.language_prompt.inner."),
    (r"^prompt_projector\.linear_2\.", "encoder.language_prompt.outer."),
)
_BOTH = (
    (r"\.norm_self_att\.", ".norm_self_attn."),
    (r"\.conv\.pointwise_conv([12])\.", r".conv.pointwise\1."),
    (r"\.conv\.depthwise_conv\.", ".conv.depthwise."),
)
_POINTWISE = re.compile(r"\.conv\.pointwise[12]\.weight$|^ctc\.output\.weight$")


def from_nemo(weights: Mapping[str, TensorSource], config: EncoderConfigs) -> dict[str, TensorSource]:
    """Rename NeMo's weights, and drop those that inference does not use."""
    kept = {name: source for name, source in weights.items() if not _NEMO_UNUSED.match(name)}
    return _rename(kept, _NEMO_CONVOLUTIONS[type(config)](config), _NEMO + _BOTH)


def from_huggingface(
    weights: Mapping[str, TensorSource], config: EncoderConfig | GraniteConfig
) -> dict[str, TensorSource]:
    """Rename the weights of a Hugging Face folder."""
    if isinstance(config, GraniteConfig):
        return _rename(weights, {}, hf_granite.NAMES + _BOTH)
    convolutions = {
        **_subsampling(config, "encoder.subsampling.layers"),
        **_subsampling(config, "model.encoder.subsampling.layers"),  # Canary's
    }
    if config.causal_subsampling:
        convolutions = _causal_subsampling(config)
    kept = {name: source for name, source in weights.items() if not hf_cohere.UNUSED.match(name)}
    return _rename(kept, convolutions, _HUGGINGFACE + _BOTH)


def _rename(
    weights: Mapping[str, TensorSource], convolutions: Mapping[str, str], table: tuple[tuple[str, str], ...]
) -> dict[str, TensorSource]:
    renamed = {}
    for name, source in weights.items():
        stem, _, suffix = name.rpartition(".")
        new_name = f"{convolutions[stem]}.{suffix}" if stem in convolutions else name
        for pattern, replacement in table:
            new_name = re.sub(pattern, replacement, new_name)
        renamed[new_name] = _as_linear(new_name, source)
    return renamed


def _subsampling(config: EncoderConfig, prefix: str) -> dict[str, str]:
    """Map names of subsampling convolutions: NeMo and Hugging Face number all layers, ours are numbered by stage."""
    names, position = {}, 0
    for stage in range(config.subsampling_factor.bit_length() - 1):
        for conv in range(1 if stage == 0 or config.subsampling == "striding" else 2):
            names[f"{prefix}.{position}"] = f"encoder.subsampling.stages.{stage}.{conv}"
            position += 1
        position += 1  # the activation
    return names


def _causal_subsampling(config: EncoderConfig) -> dict[str, str]:
    """Map Hugging Face's names of causal subsampling convolutions."""
    names = {"encoder.subsampling.conv_in": "encoder.subsampling.stages.0.0"}
    for stage in range(1, config.subsampling_factor.bit_length() - 1):
        for number, kind in enumerate(("depthwise", "pointwise")):
            theirs = f"encoder.subsampling.layers.{stage - 1}.{kind}_conv"
            names[theirs] = f"encoder.subsampling.stages.{stage}.{number}"
    return names


# For each encoder family, the map of NeMo's names of numbered convolutions to ours.
_NEMO_CONVOLUTIONS: dict[type, Callable[[Any], dict[str, str]]] = {
    EncoderConfig: partial(_subsampling, prefix="encoder.pre_encode.conv"),
    JasperConfig: convolutions,
}


def _as_linear(name: str, source: TensorSource) -> TensorSource:
    """Drop the last dimension of 1x1 convolutions over time, which are linear layers here."""
    is_pointwise = _POINTWISE.search(name) and len(source.shape) == 3 and source.shape[-1] == 1
    return source.reshaped(source.shape[:-1]) if is_pointwise else source
