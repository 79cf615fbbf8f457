"""transformers' CohereAsrForConditionalGeneration: decoder config, weight names and control tokens.

The encoder is Parakeet's. The decoder is Canary's with stored positions, a projection of the encoder's frames and an output
layer of its own. The folder's feature extractor cuts long recordings where they are quiet; here fastscribe cuts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastscribe.checkpoint.huggingface import HARMLESS, extractor_of, read_weights
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.value import Checkpoint, Section, read_tokenizer
from fastscribe.config import AedConfig, ModelConfig, TransformerConfig
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.canary import huggingface as canary
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.huggingface import encoder_config, read_features
from fastscribe.families.conformer.names import from_huggingface

UNUSED = re.compile(r"^preprocessor\.featurizer\.")
NAMES = (
    (r"^model\.decoder\.pos_emb\.", "aed.positions."),
    (r"^model\.decoder\.proj\.", "aed.projection."),
)
# Values that a folder's encoder_config may omit.
ENCODER_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1280,
    "num_hidden_layers": 48,
    "num_attention_heads": 8,
    "intermediate_size": 5120,
    "num_mel_bins": 128,
    "scale_input": False,
}
TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
_END_ID, _END = 3, "<|endoftext|>"


def read_config(section: Section, processor: Section) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    extractor, encoder_section = extractor_of(processor), section.part("encoder_config")
    encoder_section.values = ENCODER_DEFAULTS | encoder_section.values
    encoder = encoder_config(encoder_section)
    decoder_config = aed(section, encoder.d_model)
    section.ignore(*HARMLESS, *TOKENS, "is_encoder_decoder")
    section.finish()
    extractor.ignore("min_energy_window_samples", "overlap_chunk_second")
    longest_s, dither = extractor.number("max_audio_clip_s", 35.0), extractor.number("dither", 1e-5)
    features = read_features(extractor, encoder.num_mels, kind="CohereAsrFeatureExtractor")
    return ModelConfig(
        features=replace(features, dither=dither or 0.0),
        encoder=encoder,
        predictor=None,
        joint=None,
        durations=(),
        has_ctc=False,
        num_labels=decoder_config.num_classes,
        aed=decoder_config,
        trained_utterance_s=longest_s,
    )


def our_names(weights: Mapping[str, TensorSource], model: ModelConfig) -> dict[str, TensorSource]:
    """Give the weights of a folder our names, without those that inference does not use."""
    assert isinstance(model.encoder, EncoderConfig)
    kept = {name: source for name, source in weights.items() if not UNUSED.match(name)}
    return from_huggingface(kept, model.encoder, NAMES + canary.NAMES)


def read_model(folder: Path, section: Section, model: ModelConfig) -> Checkpoint:
    """Read the tokenizer and the weights of a folder whose config.json is `section`. Raises CheckpointError."""
    tokenizer = read_tokenizer(folder, model)
    weights = our_names(read_weights(folder), model)
    check_tokens(section, tokenizer.pieces)
    return Checkpoint(folder, "huggingface", model, tokenizer, LazyWeights(weights))


def aed(config: Section, d_model: int) -> AedConfig:
    """Convert the decoder's config, which is the top level of config.json.

    Args:
        config: the whole config.json.
        d_model: width of the encoder.

    Raises:
        UnsupportedCheckpoint: names the key and value that are not supported.
    """
    config.choose("attention_bias", True, (True,))
    config.choose("tie_word_embeddings", False, (False,))
    hidden, heads = config.positive("hidden_size", 1024), config.positive("num_attention_heads", 8)
    if hidden == d_model:
        supported = f"other widths than the encoder's {d_model}"
        raise UnsupportedCheckpoint(config.where, config.path("hidden_size"), hidden, supported)
    config.choose("num_key_value_heads", None, (heads, None))
    config.choose("head_dim", None, (hidden // heads, None))
    decoder = TransformerConfig(
        num_layers=config.positive("num_hidden_layers", 8),
        hidden=hidden,
        ff_hidden=config.positive("intermediate_size", 4096),
        num_heads=heads,
        activation=config.choose("hidden_act", "relu", ("relu",)),
        pre_norm=True,
        final_norm=True,
    )
    return AedConfig(
        decoder=decoder,
        bridge=None,
        num_classes=config.positive("vocab_size", 16384),
        max_tokens=config.positive("max_position_embeddings", 1024),
        max_extra_tokens=None,
        prompt="cohere",
    )


def check_tokens(config: Section, pieces: Sequence[str]) -> None:
    """Check the id of the end token. Raises UnsupportedCheckpoint."""
    token = config.get("eos_token_id", _END_ID)
    if type(token) is not int or not 0 <= token < len(pieces) or pieces[token] != _END:
        supported = f"the id of {_END} in the vocabulary"
        raise UnsupportedCheckpoint(config.where, config.path("eos_token_id"), token, supported)
