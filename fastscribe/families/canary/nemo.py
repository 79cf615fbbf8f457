"""NeMo's EncDecMultiTaskModel (Canary): the decoder's sections of model_config.yaml, and NeMo's names of
the weights beside the encoder's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

from fastscribe.checkpoint.names import Pairs, within
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


_ATTENTION: Pairs = (
    ("query_net.", "query."),
    ("key_net.", "key."),
    ("value_net.", "value."),
    ("out_projection.", "out."),
)
_FEED_FORWARD: Pairs = (("dense_in.", "inner."), ("dense_out.", "outer."))
_DECODER_LAYER: Pairs = (
    ("layer_norm_1.", "norm_own."),
    ("layer_norm_2.", "norm_frames."),
    ("layer_norm_3.", "norm_feed_forward."),
    *within("first_sub_layer.", "own.", _ATTENTION),
    *within("second_sub_layer.", "frames.", _ATTENTION),
    *within("third_sub_layer.", "feed_forward.", _FEED_FORWARD),
)
ENCODER_LAYER: Pairs = (
    ("layer_norm_1.", "norm_attention."),
    ("layer_norm_2.", "norm_feed_forward."),
    *within("first_sub_layer.", "attention.", _ATTENTION),
    *within("second_sub_layer.", "feed_forward.", _FEED_FORWARD),
)
NAMES: Pairs = (
    ("^encoder_decoder_proj.", "^aed.projection."),
    ("^log_softmax.mlp.layer0.", "^aed.head."),
    ("^transf_decoder._embedding.token_embedding.", "^aed.embedding."),
    ("^transf_decoder._embedding.position_embedding.pos_enc", "^aed.positions.weight"),
    ("^transf_decoder._embedding.position_embedding.weight", "^aed.positions.weight"),  # positions that were learnt
    ("^transf_decoder._embedding.layer_norm.", "^aed.norm."),
    ("^transf_decoder._decoder.final_layer_norm.", "^aed.final_norm."),
    *within("^transf_decoder._decoder.layers.#.", "^aed.layers.#.", _DECODER_LAYER),
    ("^transf_encoder.final_layer_norm.", "^aed.bridge_norm."),
    *within("^transf_encoder.layers.#.", "^aed.bridge.#.", ENCODER_LAYER),
)


# --- the writer -------------------------------------------------------------------------------------------------------

_ASR, _COMMON = "nemo.collections.asr.", "nemo.collections.common."
_TRANSFORMER = _ASR + "modules.transformer."
_DROPOUT = 0.1


def custom_tokenizer(is_aggregate: bool) -> dict[str, Any]:
    """Return the section of that name, of a vocabulary that is joined from several languages' or not."""
    name = "CanaryTokenizer" if is_aggregate else "CanaryBPETokenizer"
    return {"_target_": f"{_COMMON}tokenizers.canary_tokenizer.{name}"}


def sections(aed: AedConfig, d_model: int) -> dict[str, Any]:
    """Return the decoder's sections of the YAML, which aed() reads. Keys that are left out have NeMo's defaults."""
    hidden, bridge = aed.decoder.hidden, aed.bridge or replace(aed.decoder, num_layers=0)
    extra = -1 if aed.max_extra_tokens is None else aed.max_extra_tokens
    greedy, beam = {"temperature": None, "n_samples": 1}, {"beam_size": 1, "len_pen": 0.0}
    strategy, search = ("beam", beam) if aed.beam else ("greedy", greedy)
    return {
        "prompt_format": aed.prompt,
        "model_defaults": {"asr_enc_hidden": d_model, "lm_enc_hidden": hidden, "lm_dec_hidden": hidden},
        "transf_encoder": {
            "_target_": _TRANSFORMER + "transformer_encoders.TransformerEncoder",
            "pre_ln_final_layer_norm": bridge.final_norm,
            **_sizes(bridge),
        },
        "transf_decoder": {
            "_target_": _TRANSFORMER + "get_nemo_transformer",
            "model_name": None,
            "encoder": None,
            "pre_ln_final_layer_norm": aed.decoder.final_norm,
            "config_dict": {
                "max_sequence_length": aed.max_tokens,
                "num_token_types": 0,
                "embedding_dropout": _DROPOUT,
                **_sizes(aed.decoder),
            },
        },
        "head": {
            "_target_": _ASR + "parts.submodules.token_classifier.TokenClassifier",
            "hidden_size": hidden,
            "num_classes": aed.num_classes,
        },
        "decoding": {"strategy": strategy, strategy: {**search, "max_generation_delta": extra}},
        "loss": {"_target_": _COMMON + "losses.smoothed_cross_entropy.SmoothedCrossEntropyLoss"},
    }


def _sizes(config: TransformerConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.hidden,
        "inner_size": config.ff_hidden,
        "num_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_act": config.activation,
        "pre_ln": config.pre_norm,
        **dict.fromkeys(("ffn_dropout", "attn_score_dropout", "attn_layer_dropout"), _DROPOUT),
    }
