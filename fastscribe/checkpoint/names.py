"""Mapping of weight names between NeMo or Hugging Face's folders and ours. Pure; names that match no rule stay, and
build_model reports them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.config import EncoderConfig, EncoderConfigs, GraniteConfig, JasperConfig, ModelConfig
from fastscribe.families.canary import huggingface as hf_canary
from fastscribe.families.canary import nemo as nemo_canary
from fastscribe.families.cohere import huggingface as hf_cohere
from fastscribe.families.granite import huggingface as hf_granite
from fastscribe.families.jasper.nemo import convolutions

_NEMO_UNUSED = re.compile(
    r"^preprocessor\.featurizer\.(window|fb)$|" + nemo_canary.UNUSED
)  # or computed from the config
# Pairs of their text and ours in a name; ^ is its beginning. Readers replace theirs, and writers ours by the first pair's.
_Pairs = tuple[tuple[str, str], ...]
_NEMO: _Pairs = (
    ("^encoder.pre_encode.out.", "^encoder.subsampling.out."),
    (".conv.batch_norm.", ".conv.norm."),
    ("^decoder.prediction.embed.", "^transducer.predictor.embedding."),
    ("^decoder.prediction.dec_rnn.lstm.", "^transducer.predictor.lstm."),
    ("^joint.enc.", "^transducer.joint.encoder."),
    ("^joint.pred.", "^transducer.joint.predictor."),
    ("^joint.joint_net.2.", "^transducer.joint.output."),
    ("^joint.joint_net.1.", "^transducer.joint.output."),  # of a joint without dropout
    ("^prompt_kernel.0.", "^encoder.language_prompt.inner."),
    ("^prompt_kernel.2.", "^encoder.language_prompt.outer."),
)
_NEMO_CTC: _Pairs = (("^decoder.decoder_layers.0.", "^ctc.output."),)
_NEMO_HYBRID_CTC: _Pairs = (("^ctc_decoder.decoder_layers.0.", "^ctc.output."),)
_HUGGINGFACE: _Pairs = (
    ("^encoder.subsampling.linear.", "^encoder.subsampling.out."),
    (".self_attn.q_proj.", ".self_attn.linear_q."),
    (".self_attn.k_proj.", ".self_attn.linear_k."),
    (".self_attn.v_proj.", ".self_attn.linear_v."),
    (".self_attn.o_proj.", ".self_attn.linear_out."),
    (".self_attn.relative_k_proj.", ".self_attn.linear_pos."),
    (".self_attn.bias_u", ".self_attn.pos_bias_u"),
    (".self_attn.bias_v", ".self_attn.pos_bias_v"),
    ("^decoder.embedding.", "^transducer.predictor.embedding."),
    ("^decoder.lstm.", "^transducer.predictor.lstm."),
    ("^decoder.decoder_projector.", "^transducer.joint.predictor."),
    ("^encoder_projector.", "^transducer.joint.encoder."),
    ("^joint.head.", "^transducer.joint.output."),
    ("^ctc_head.", "^ctc.output."),
    ("^prompt_projector.linear_1.", "^encoder.language_prompt.inner."),
    ("^prompt_projector.linear_2.", "^encoder.language_prompt.outer."),
)
_BOTH: _Pairs = (
    (".norm_self_att.", ".norm_self_attn."),
    (".conv.pointwise_conv1.", ".conv.pointwise1."),
    (".conv.pointwise_conv2.", ".conv.pointwise2."),
    (".conv.depthwise_conv.", ".conv.depthwise."),
)
_POINTWISE = re.compile(r"\.conv\.pointwise[12]\.weight$|^ctc\.output\.weight$")


def from_nemo(weights: Mapping[str, TensorSource], config: EncoderConfigs) -> dict[str, TensorSource]:
    """Rename NeMo's weights, and drop those that inference does not use."""
    kept = {name: source for name, source in weights.items() if not _NEMO_UNUSED.match(name)}
    pairs = _reading(_NEMO + _NEMO_CTC + _NEMO_HYBRID_CTC)
    return _rename(kept, _NEMO_CONVOLUTIONS[type(config)](config), pairs + nemo_canary.NAMES + _reading(_BOTH))


def from_huggingface(
    weights: Mapping[str, TensorSource], config: EncoderConfig | GraniteConfig
) -> dict[str, TensorSource]:
    """Rename the weights of a Hugging Face folder."""
    if isinstance(config, GraniteConfig):
        return _rename(weights, {}, hf_granite.NAMES + _reading(_BOTH))
    convolutions = {
        **_subsampling(config, "encoder.subsampling.layers"),
        **_subsampling(config, "model.encoder.subsampling.layers"),  # Canary's
    }
    if config.causal_subsampling:
        convolutions = _causal_subsampling(config)
    kept = {name: source for name, source in weights.items() if not hf_cohere.UNUSED.match(name)}
    return _rename(kept, convolutions, hf_cohere.NAMES + hf_canary.NAMES + _reading(_HUGGINGFACE + _BOTH))


def to_nemo(weights: Mapping[str, TensorSource], config: ModelConfig) -> dict[str, TensorSource]:
    """Give a FastConformer model's weights NeMo's names and shapes, the inverse of from_nemo()."""
    assert isinstance(config.encoder, EncoderConfig)
    head = _NEMO_CTC if config.joint is None else _NEMO_HYBRID_CTC
    convolutions = _subsampling(config.encoder, "encoder.pre_encode.conv")
    return _rename_back(weights, convolutions, _NEMO + head + _BOTH)


def to_huggingface(weights: Mapping[str, TensorSource], config: EncoderConfig) -> dict[str, TensorSource]:
    """Give a FastConformer model's weights the names and shapes of transformers' Parakeet, the inverse of
    from_huggingface()."""
    return _rename_back(weights, _subsampling(config, "encoder.subsampling.layers"), _HUGGINGFACE + _BOTH)


def _rename_back(
    weights: Mapping[str, TensorSource], convolutions: Mapping[str, str], pairs: _Pairs
) -> dict[str, TensorSource]:
    shaped = {name: _as_convolution(name, source) for name, source in weights.items()}
    return _rename(shaped, {ours: theirs for theirs, ours in convolutions.items()}, _writing(pairs), as_linear=False)


def _reading(pairs: _Pairs) -> tuple[tuple[str, str], ...]:
    """Return the pattern of theirs and the replacement of each pair."""
    return tuple(
        ("^" * theirs.startswith("^") + re.escape(theirs.lstrip("^")), ours.lstrip("^")) for theirs, ours in pairs
    )


def _writing(pairs: _Pairs) -> tuple[tuple[str, str], ...]:
    return _reading(tuple((ours, theirs) for theirs, ours in pairs))


def _rename(
    weights: Mapping[str, TensorSource],
    convolutions: Mapping[str, str],
    table: tuple[tuple[str, str], ...],
    as_linear: bool = True,
) -> dict[str, TensorSource]:
    renamed = {}
    for name, source in weights.items():
        stem, _, suffix = name.rpartition(".")
        new_name = f"{convolutions[stem]}.{suffix}" if stem in convolutions else name
        for pattern, replacement in table:
            new_name = re.sub(pattern, replacement, new_name)
        renamed[new_name] = _as_linear(new_name, source) if as_linear else source
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


def _as_convolution(name: str, source: TensorSource) -> TensorSource:
    return source.reshaped((*source.shape, 1)) if _POINTWISE.search(name) else source
