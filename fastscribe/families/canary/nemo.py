"""NeMo's EncDecMultiTaskModel (Canary): the decoder's sections of model_config.yaml, and NeMo's names of
the weights beside the encoder's.
"""

from __future__ import annotations

import math
import re
from typing import get_args

from fastscribe.checkpoint.value import Section
from fastscribe.config import AedConfig, PromptForm, TransformerActivation, TransformerConfig
from fastscribe.errors import UnsupportedCheckpoint

_MULTIPLE = 8  # NeMo rounds the number of classes up to a multiple
_DEFAULT_POSITIONS = 512


def aed(config: Section, num_labels: int) -> AedConfig:
    """Convert the decoder's sections of the whole config. Raises UnsupportedCheckpoint naming key and value."""
    decoder, max_tokens = decoder_of(config.part("transf_decoder"))
    bridge = _bridge(config.part("transf_encoder", optional=True))
    _check_head(config.part("head", optional=True), decoder.hidden)
    if bridge is not None and bridge.hidden != decoder.hidden:
        where, wanted = config.where, f"the decoder's {decoder.hidden}"
        raise UnsupportedCheckpoint(where, "transf_encoder.hidden_size", bridge.hidden, wanted)
    decoding = config.part("decoding", optional=True)
    is_beam = decoding.choose("strategy", "beam", ("beam", "greedy", "greedy_batch")) == "beam"
    return AedConfig(
        decoder=decoder,
        bridge=bridge,
        num_classes=math.ceil(num_labels / _MULTIPLE) * _MULTIPLE,
        max_tokens=max_tokens,
        max_extra_tokens=_max_extra(decoding.part("beam" if is_beam else "greedy", optional=True)),
        prompt=config.choose("prompt_format", None, get_args(PromptForm)),
        beam=is_beam,
    )


def decoder_of(outer: Section) -> tuple[TransformerConfig, int]:
    """Convert the section transf_decoder. Returns the decoder and its number of positions."""
    outer.choose("model_name", None, (None,))
    outer.choose("encoder", None, (None, False))
    outer.ignore("pretrained", "library")
    has_final_norm = outer.choose("pre_ln_final_layer_norm", True, (True, False))
    section = outer.part("config_dict")
    outer.finish()
    section.ignore("vocab_size", "num_token_types", "embedding_dropout", "learn_positional_encodings", "lm_dec_hidden")
    max_tokens = section.positive("max_sequence_length", _DEFAULT_POSITIONS)
    # NeMo reads this key only outside config_dict.
    section.ignore("pre_ln_final_layer_norm")
    return _transformer(section, has_final_norm), max_tokens


def _transformer(section: Section, has_final_norm: bool) -> TransformerConfig:
    section.ignore("ffn_dropout", "attn_score_dropout", "attn_layer_dropout")
    config = TransformerConfig(
        num_layers=section.positive("num_layers"),
        hidden=section.positive("hidden_size"),
        ff_hidden=section.positive("inner_size"),
        num_heads=section.positive("num_attention_heads", 1),
        activation=section.choose("hidden_act", "relu", get_args(TransformerActivation)),
        pre_norm=section.choose("pre_ln", False, (True, False)),
        final_norm=has_final_norm,
    )
    section.finish()
    return config


def _bridge(section: Section) -> TransformerConfig | None:
    if not section.get("num_layers", 0):
        return None
    section.choose("mask_future", False, (False,))
    return _transformer(section, section.choose("pre_ln_final_layer_norm", True, (True, False)))


def _check_head(section: Section, hidden: int) -> None:
    section.choose("num_layers", 1, (1,))
    section.choose("hidden_size", hidden, (hidden,))
    section.ignore("activation", "log_softmax", "dropout", "num_classes", "use_transformer_init")
    section.finish()


def _max_extra(section: Section) -> int | None:
    """Return by how many tokens may exceed the frames; None (key -1) for no limit."""
    delta = section.get("max_generation_delta", -1)
    if type(delta) is not int:
        raise UnsupportedCheckpoint(section.where, section.path("max_generation_delta"), delta, "whole numbers")
    return delta if delta >= 0 else None


_ATTENTION = (
    (r"\.query_net\.", ".query."),
    (r"\.key_net\.", ".key."),
    (r"\.value_net\.", ".value."),
    (r"\.out_projection\.", ".out."),
    (r"\.dense_in\.", ".inner."),
    (r"\.dense_out\.", ".outer."),
)
_DECODER, _BRIDGE = r"^transf_decoder\._decoder\.layers\.(\d+)\.", r"^transf_encoder\.layers\.(\d+)\."
NAMES = (
    (r"^encoder_decoder_proj\.", "aed.projection."),
    (r"^log_softmax\.mlp\.layer0\.", "aed.head."),
    (r"^transf_decoder\._embedding\.token_embedding\.", "aed.embedding."),
    (r"^transf_decoder\._embedding\.position_embedding\.(pos_enc|weight)$", "aed.positions.weight"),
    (r"^transf_decoder\._embedding\.layer_norm\.", "aed.norm."),
    (r"^transf_decoder\._decoder\.final_layer_norm\.", "aed.final_norm."),
    (_DECODER + r"layer_norm_1\.", r"aed.layers.\1.norm_own."),
    (_DECODER + r"layer_norm_2\.", r"aed.layers.\1.norm_frames."),
    (_DECODER + r"layer_norm_3\.", r"aed.layers.\1.norm_feed_forward."),
    (_DECODER + r"first_sub_layer\.", r"aed.layers.\1.own."),
    (_DECODER + r"second_sub_layer\.", r"aed.layers.\1.frames."),
    (_DECODER + r"third_sub_layer\.", r"aed.layers.\1.feed_forward."),
    (r"^transf_encoder\.final_layer_norm\.", "aed.bridge_norm."),
    (_BRIDGE + r"layer_norm_1\.", r"aed.bridge.\1.norm_attention."),
    (_BRIDGE + r"layer_norm_2\.", r"aed.bridge.\1.norm_feed_forward."),
    (_BRIDGE + r"first_sub_layer\.", r"aed.bridge.\1.attention."),
    (_BRIDGE + r"second_sub_layer\.", r"aed.bridge.\1.feed_forward."),
    *_ATTENTION,
)
UNUSED = re.compile(r"^transf_decoder\._embedding\.token_type_embedding\.")
