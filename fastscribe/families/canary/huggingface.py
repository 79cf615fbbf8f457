"""transformers' CanaryForConditionalGeneration: decoder config, weight names and control tokens.

The decoder is NeMo's with fewer options: pre-norm layers with a final norm, no layers between encoder and decoder, and
computed instead of stored position embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe.checkpoint.huggingface import HARMLESS, extractor_of, read_weights
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.value import Checkpoint, Section, read_tokenizer
from fastscribe.config import AedConfig, ModelConfig, TransformerConfig
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.huggingface import encoder_config, from_huggingface, read_features

if TYPE_CHECKING:
    import torch

_MAX_POSITIONS = 8192  # positions are not stored, so without a limit a config could request all memory
_MAX_WAVE = 10_000.0  # longest wavelength of the position embeddings, in tokens
START, END = ("decoder_start_token_id", 7, "<|startofcontext|>"), ("eos_token_id", 3, "<|endoftext|>")
_LAYER = r"^decoder\.layers\.(\d+)\."
NAMES = (
    (r"^proj_out\.", "aed.head."),
    (r"^decoder\.embed_tokens\.", "aed.embedding."),
    (r"^decoder\.embedding_layernorm\.", "aed.norm."),
    (r"^decoder\.norm\.", "aed.final_norm."),
    (_LAYER + r"input_layernorm\.", r"aed.layers.\1.norm_own."),
    (_LAYER + r"post_attention_layernorm\.", r"aed.layers.\1.norm_frames."),
    (_LAYER + r"final_layernorm\.", r"aed.layers.\1.norm_feed_forward."),
    (_LAYER + r"self_attn\.", r"aed.layers.\1.own."),
    (_LAYER + r"encoder_attn\.", r"aed.layers.\1.frames."),
    (_LAYER + r"mlp\.fc1\.", r"aed.layers.\1.feed_forward.inner."),
    (_LAYER + r"mlp\.fc2\.", r"aed.layers.\1.feed_forward.outer."),
    (r"^(aed\..*)\.q_proj\.", r"\1.query."),
    (r"^(aed\..*)\.k_proj\.", r"\1.key."),
    (r"^(aed\..*)\.v_proj\.", r"\1.value."),
    (r"^(aed\..*)\.o_proj\.", r"\1.out."),
)


def read_config(section: Section, processor: Section) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    extractor, encoder = extractor_of(processor), encoder_config(section.part("encoder_config"))
    decoder = section.part("decoder_config")
    decoder_config = aed(section, decoder, encoder.d_model)
    decoder.ignore(*HARMLESS, "bos_token_id", "eos_token_id", "is_encoder_decoder", "pad_token_id")
    decoder.finish()
    return ModelConfig(
        features=read_features(extractor, encoder.num_mels),
        encoder=encoder,
        predictor=None,
        joint=None,
        durations=(),
        has_ctc=False,
        num_labels=decoder_config.num_classes,
        aed=decoder_config,
    )


def our_names(weights: Mapping[str, TensorSource], model: ModelConfig) -> dict[str, TensorSource]:
    """Give the weights of a folder our names."""
    assert isinstance(model.encoder, EncoderConfig)
    return from_huggingface(weights, model.encoder, NAMES)


def read_model(folder: Path, section: Section, model: ModelConfig) -> Checkpoint:
    """Read the tokenizer and the weights of a folder whose config.json is `section`. Raises CheckpointError."""
    assert model.aed is not None
    tokenizer = read_tokenizer(folder, model)
    weights = our_names(read_weights(folder), model)
    check_tokens(section, tokenizer.pieces, START, END)
    whole = LazyWeights(add_missing_weights(weights, model.aed))
    return Checkpoint(folder, "huggingface", model, tokenizer, whole)


def aed(config: Section, decoder: Section, d_model: int) -> AedConfig:
    """Convert the decoder's config.

    Args:
        config: the whole config.json.
        decoder: its section decoder_config.
        d_model: width of the encoder.

    Returns:
        The decoder's config.

    Raises:
        UnsupportedCheckpoint: names the key and value that are not supported.
    """
    num_classes = config.positive("vocab_size", 16384)
    config.choose("tie_word_embeddings", True, (True,))
    decoder.choose("vocab_size", 16384, (num_classes,))
    decoder.choose("attention_bias", True, (True,))
    hidden, heads = decoder.positive("hidden_size", 1024), decoder.positive("num_attention_heads", 8)
    if hidden != d_model:
        raise UnsupportedCheckpoint(decoder.where, decoder.path("hidden_size"), hidden, f"the encoder's {d_model}")
    if hidden % 2 or hidden < 4:
        raise UnsupportedCheckpoint(decoder.where, decoder.path("hidden_size"), hidden, "even numbers from 4")
    decoder.choose("num_key_value_heads", 8, (heads, None))
    decoder.choose("head_dim", 128, (hidden // heads, None))
    max_tokens = decoder.positive("max_position_embeddings", 1024)
    if max_tokens > _MAX_POSITIONS:
        where, key = decoder.where, decoder.path("max_position_embeddings")
        raise UnsupportedCheckpoint(where, key, max_tokens, f"up to {_MAX_POSITIONS}")
    return AedConfig(
        decoder=TransformerConfig(
            num_layers=decoder.positive("num_hidden_layers", 8),
            hidden=hidden,
            ff_hidden=decoder.positive("intermediate_size", 4096),
            num_heads=heads,
            activation=decoder.choose("hidden_act", "relu", ("relu",)),
            pre_norm=True,
            final_norm=True,
        ),
        bridge=None,
        num_classes=num_classes,
        max_tokens=max_tokens,
        max_extra_tokens=None,
        prompt="canary2",
    )


def check_tokens(config: Section, pieces: Sequence[str], *tokens: tuple[str, int, str]) -> None:
    """Check the ids of tokens, each a key of config.json, its default, and the piece. Raises UnsupportedCheckpoint."""
    for key, default, piece in tokens:
        token = config.get(key, default)
        if type(token) is not int or not 0 <= token < len(pieces) or pieces[token] != piece:
            raise UnsupportedCheckpoint(config.where, config.path(key), token, f"the id of {piece} in the vocabulary")


def add_missing_weights(weights: Mapping[str, TensorSource], config: AedConfig) -> dict[str, TensorSource]:
    """Add weights that the folder omits (our names): position embeddings, and a tied output layer."""
    max_tokens, width = config.max_tokens, config.decoder.hidden
    added = {"aed.positions.weight": TensorSource("float32", (max_tokens, width), lambda: positions(max_tokens, width))}
    if "aed.embedding.weight" in weights and "aed.head.weight" not in weights:
        added["aed.head.weight"] = weights["aed.embedding.weight"]  # tied weights are stored once
    return {**weights, **added}


def positions(num_positions: int, width: int) -> torch.Tensor:
    """Return float32 [positions, width]: sines, then cosines, with wavelengths from 2 pi to almost 2 pi * _MAX_WAVE tokens."""
    import torch

    step = math.log(_MAX_WAVE ** ((width - 2) / width)) / (width // 2 - 1)
    rates = torch.exp(-step * torch.arange(width // 2).float())
    angles = torch.arange(num_positions)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1) / math.sqrt(width)
