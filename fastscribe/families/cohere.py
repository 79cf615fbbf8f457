"""transformers' CohereAsrForConditionalGeneration: decoder config, weight names and control tokens.

The encoder is Parakeet's. The decoder is Canary's with stored positions, a projection of the encoder's frames and an output
layer of its own. The folder's feature extractor cuts long recordings where they are quiet; here fastscribe cuts them.

The published config.json and weights are NeMo's in form and names. transformers reads that config.json as the defaults of its
class, writes one of its own form, and gives a new model's weights NeMo's names too, with `model.` in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastscribe.checkpoint.huggingface import HARMLESS, extractor_of, read_weights
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.names import from_nemo
from fastscribe.checkpoint.value import Checkpoint, Section, read_tokenizer
from fastscribe.config import AedConfig, ModelConfig, TransformerConfig
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.canary import huggingface as canary
from fastscribe.families.canary.nemo import NAMES as DECODER_NAMES
from fastscribe.families.canary.nemo import decoder_of
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.huggingface import encoder_config, from_huggingface, read_features
from fastscribe.families.conformer.nemo import encoder_config as nemo_encoder_config

NAMES = (
    (r"^decoder\.pos_emb\.", "aed.positions."),
    (r"^decoder\.proj\.", "aed.projection."),
)
# Sections of the published config.json. They are read if there is no encoder_config.
_SECTIONS = ("encoder", "transf_decoder", "transf_encoder", "head")
# Keys that transformers does not read: of training, of prompts, and of the front end of other programs.
_UNREAD = (
    *("batch_size", "decoding", "log_batch_stats", "log_prediction", "max_seq_len", "min_energy_window_samples"),
    *("model_defaults", "multitask_metrics_cfg", "overlap_chunk_second", "preprocessor", "prompt_defaults"),
    *("prompt_format", "sample_rate", "supported_languages", "use_loss_mask_for_prompt"),
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


def read_config(section: Section, processor: Section) -> ModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    extractor = extractor_of(processor)
    is_published = "encoder_config" not in section and "transf_decoder" in section
    encoder, decoder, num_classes, max_tokens = _published(section) if is_published else _saved(section)
    if decoder.hidden == encoder.d_model:
        key, supported = section.path("hidden_size"), f"other widths than the encoder's {encoder.d_model}"
        raise UnsupportedCheckpoint(section.where, key, decoder.hidden, supported)
    clip_s = section.number("max_audio_clip_s", 35.0)
    section.ignore(*HARMLESS, *TOKENS, *_UNREAD, "is_encoder_decoder")
    section.finish()
    extractor.ignore("min_energy_window_samples", "overlap_chunk_second")
    longest_s, dither = extractor.number("max_audio_clip_s", clip_s), extractor.number("dither", 1e-5)
    features = read_features(extractor, encoder.num_mels, kind="CohereAsrFeatureExtractor")
    return ModelConfig(
        features=replace(features, dither=dither or 0.0),
        encoder=encoder,
        predictor=None,
        joint=None,
        durations=(),
        has_ctc=False,
        num_labels=num_classes,
        aed=AedConfig(decoder, None, num_classes, max_tokens, max_extra_tokens=None, prompt="cohere"),
        trained_utterance_s=longest_s,
    )


def our_names(weights: Mapping[str, TensorSource], model: ModelConfig) -> dict[str, TensorSource]:
    """Give the weights of a folder our names, without those that inference does not use."""
    assert isinstance(model.encoder, EncoderConfig)
    bare = {name.removeprefix("model."): source for name, source in weights.items()}
    bare = from_nemo(bare, model.encoder, DECODER_NAMES)
    return from_huggingface(bare, model.encoder, NAMES + canary.NAMES)


def read_model(folder: Path, section: Section, model: ModelConfig) -> Checkpoint:
    """Read the tokenizer and the weights of a folder whose config.json is `section`. Raises CheckpointError."""
    tokenizer = read_tokenizer(folder, model)
    weights = our_names(read_weights(folder), model)
    if "encoder_config" not in section and "aed.embedding.weight" in weights:
        # The published class stores the two once.
        weights.setdefault("aed.head.weight", weights["aed.embedding.weight"])
    canary.check_tokens(section, tokenizer.pieces, canary.END)
    return Checkpoint(folder, "huggingface", model, tokenizer, LazyWeights(weights))


def _saved(section: Section) -> tuple[EncoderConfig, TransformerConfig, int, int]:
    """Convert what transformers writes. Returns encoder, decoder, size of the vocabulary, and positions of the decoder."""
    part = section.part("encoder_config")
    part.values = ENCODER_DEFAULTS | part.values
    section.choose("attention_bias", True, (True,))
    section.choose("tie_word_embeddings", False, (False,))
    hidden, heads = section.positive("hidden_size", 1024), section.positive("num_attention_heads", 8)
    section.choose("num_key_value_heads", None, (heads, None))
    section.choose("head_dim", None, (hidden // heads, None))
    decoder = TransformerConfig(
        num_layers=section.positive("num_hidden_layers", 8),
        hidden=hidden,
        ff_hidden=section.positive("intermediate_size", 4096),
        num_heads=heads,
        activation=section.choose("hidden_act", "relu", ("relu",)),
        pre_norm=True,
        final_norm=True,
    )
    section.ignore(*_SECTIONS)
    num_classes, max_tokens = section.positive("vocab_size", 16384), section.positive("max_position_embeddings", 1024)
    return encoder_config(part), decoder, num_classes, max_tokens


def _published(section: Section) -> tuple[EncoderConfig, TransformerConfig, int, int]:
    """Convert the published form, as _saved()."""
    decoder, max_tokens = decoder_of(section.part("transf_decoder"))
    section.part("transf_encoder", optional=True).choose("num_layers", 0, (0, None))
    num_classes = section.part("head").positive("num_classes")
    section.choose("vocab_size", num_classes, (num_classes,))
    return nemo_encoder_config(section.part("encoder")), decoder, num_classes, max_tokens
