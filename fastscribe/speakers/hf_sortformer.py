"""Reader of Hugging Face folders of transformers' Nemotron3DiarizationForAudioFrameClassification (Nemotron-3-Diarization).

A recording is read as transformers reads a whole one: in chunks of `chunk_length`, with the queue of the model's own section.
The sizes of `streaming_config` and the modes of the processor are for sound that arrives while it is spoken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from fastscribe.checkpoint import huggingface, names
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import Section, report_invalid_config
from fastscribe.config import FeaturesConfig, ModelConfig, TransformerActivation, TransformerConfig
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.conformer.config import SUBSAMPLING_FACTORS, EncoderConfig
from fastscribe.families.conformer.huggingface import read_features
from fastscribe.rooms import SIDE_MODELS
from fastscribe.speakers.config import (
    MAX_SPEAKERS,
    SpeakerCacheConfig,
    SpeakerCheckpoint,
    SpeakerModelConfig,
    StackingConfig,
)
from fastscribe.speakers.settings import MAX_SPEAKER_FRAMES

MODEL_TYPE = SIDE_MODELS["speakers"].model_type
_NAMES = (
    (r"^model\.audio_tower\.embedder\.projection\.", "encoder.subsampling.out."),
    (r"^model\.audio_tower\.input_layer_norm\.", "encoder.layers.first_norm."),
    (r"^model\.audio_tower\.layer_norm\.", "encoder.layers.final_norm."),
    (r"^model\.audio_tower\.layers\.(\d+)\.", r"encoder.layers.layers.\1."),
    # A bias of these in a file keeps its name, and is reported as one weight too many.
    (r"\.self_attn\.q_proj\.weight", ".attention.query.weight"),
    (r"\.self_attn\.k_proj\.weight", ".attention.key.weight"),
    (r"\.self_attn\.v_proj\.weight", ".attention.value.weight"),
    (r"\.self_attn\.o_proj\.", ".attention.out."),
    (r"\.layer_norm1\.", ".norm_attention."),
    (r"\.layer_norm2\.", ".norm_feed_forward."),
    (r"\.mlp\.fc1\.", ".feed_forward.inner."),
    (r"\.mlp\.fc2\.", ".feed_forward.outer."),
    (r"^model\.proj\.", "projection."),
    (r"^model\.upsampler\.", "upsampling."),
    (r"^classifier\.dense\.", "hidden."),
    (r"^classifier\.out_proj\.", "speakers."),
    (r"^silence_embeds$", "silence.frame_D"),
)
_WITHOUT_BIAS = re.compile(r"^(encoder\.layers\.layers\.\d+\.attention\.(query|key|value))\.weight$")
_TRAINED_S = 90.0  # not stated; with a speaker cache it is not used


def read(folder: Path, config: Mapping[str, Any]) -> SpeakerCheckpoint:
    """Read a folder whose config.json is `config`. Raises CheckpointError."""
    with report_invalid_config(f"{folder}: config.json"):
        processor = huggingface.read_processor(folder, folder)
        model = speaker_model_config(Section(config, "config", folder), processor)
    weights = huggingface.read_weights(folder)
    return SpeakerCheckpoint(folder, "huggingface", model, LazyWeights(_renamed(weights)))


def speaker_model_config(section: Section, processor: Section) -> SpeakerModelConfig:
    """Convert config.json and the processor's config. Raises UnsupportedCheckpoint naming key and value."""
    section.choose("model_type", None, (MODEL_TYPE,))
    head = section.part("head_config", optional=True)
    encoder = _encoder(section.part("audio_config", optional=True))
    features = read_features(huggingface.extractor_of(processor), encoder.num_mels, is_streaming=True)
    _check_sizes(features, encoder, section.where)
    factor, num_speakers = encoder.subsampling_factor, head.whole("num_speakers", 8, 1, MAX_SPEAKERS)
    head.choose("audio_hidden_size", 512, (encoder.d_model,))
    head.choose("subsampling_factor", 8, (factor,))
    processor.choose("subsampling_factor", factor, (factor,))
    head_hidden = head.whole("hidden_size", 192, 1, 1 << 14)
    cache = _cache(section, section.part("streaming_config", optional=True), num_speakers, factor)
    for part in (head, section):
        part.ignore(*huggingface.HARMLESS)
        part.finish()
    return SpeakerModelConfig(
        features=features,
        encoder=encoder,
        head_hidden=head_hidden,
        transformer=None,
        num_speakers=num_speakers,
        trained_s=_TRAINED_S,
        peak_guard=None,
        cache=cache,
    )


def _encoder(section: Section) -> StackingConfig:
    width, heads = section.positive("hidden_size", 512), section.positive("num_attention_heads", 8)
    section.choose("num_key_value_heads", heads, (heads, None))
    section.choose("head_dim", None, (width // heads, None))
    rotary = section.part("rope_parameters", optional=True)
    rotary.choose("rope_type", "default", ("default",))
    base, share = (
        rotary.between("rope_theta", 10000.0, 1.0, 1e9),
        rotary.between("partial_rotary_factor", 1.0, 0.0, 1.0),
    )
    rotary.finish()
    rotary_width = int(width // heads * share)
    if rotary_width % 2 or not rotary_width:
        raise UnsupportedCheckpoint(section.where, rotary.path("partial_rotary_factor"), share, "even parts of a head")
    layers = TransformerConfig(
        num_layers=section.positive("num_hidden_layers", 31),
        hidden=width,
        ff_hidden=section.positive("intermediate_size", 2048),
        num_heads=heads,
        activation=section.choose("hidden_act", "gelu", get_args(TransformerActivation)),
        pre_norm=True,
        final_norm=True,
    )
    factor = section.choose("subsampling_factor", 8, SUBSAMPLING_FACTORS)
    config = StackingConfig(section.positive("num_mel_bins", 128), factor, layers, base, rotary_width)
    section.ignore(*huggingface.HARMLESS)
    section.finish()
    return config


def _check_sizes(features: FeaturesConfig, encoder: StackingConfig, where: object) -> None:
    """Apply the limits of a transcription model with an encoder of these sizes."""
    layers = encoder.layers
    similar = EncoderConfig(
        num_mels=encoder.num_mels,
        num_layers=layers.num_layers,
        d_model=layers.hidden,
        num_heads=layers.num_heads,
        ff_hidden=layers.ff_hidden,
        conv_kernel=1,
        conv_norm="layer_norm",
        use_bias=False,
        xscaling=False,
        subsampling="dw_striding",
        subsampling_factor=encoder.subsampling_factor,
        subsampling_channels=1,
    )
    validate(ModelConfig(features, similar, None, None, (), has_ctc=True, num_labels=1), where)


def _cache(model: Section, section: Section, num_speakers: int, factor: int) -> SpeakerCacheConfig:
    section.choose("num_speakers", 8, (num_speakers,))
    section.choose("subsampling_factor", 8, (factor,))
    silent = section.whole("speaker_cache_silence_frames_per_speaker", 1, 0, MAX_SPEAKER_FRAMES)
    chunk = model.whole("chunk_length", 340, 1, MAX_SPEAKER_FRAMES)
    config = SpeakerCacheConfig(
        cache_frames=section.whole("speaker_cache_length", 264, (1 + silent) * num_speakers, MAX_SPEAKER_FRAMES),
        queue_frames=model.whole("fifo_length", 40, 0, MAX_SPEAKER_FRAMES),
        chunk_frames=chunk,
        update_frames=model.whole("speaker_cache_update_period", 300, 1, MAX_SPEAKER_FRAMES),
        left_frames=model.whole("chunk_left_context", 0, 0, MAX_SPEAKER_FRAMES),
        right_frames=model.whole("chunk_right_context", 40, 0, chunk - 1),
        silent_frames=silent,
        min_probability=section.between("prediction_score_threshold", 0.25, 1e-6, 1.0),
        latest_boost=section.between("latest_frames_score_boost", 0.05, 0.0, 100.0),
        silence_threshold=None,
        strong_rate=section.between("strong_boost_rate", 0.75, 0.0, 1.0),
        weak_rate=section.between("weak_boost_rate", 1.5, 0.0, float(num_speakers)),
        min_positive_rate=section.between("min_positive_scores_rate", 0.5, 0.0, 1.0),
        keeps_first_probabilities=False,
    )
    section.ignore(*huggingface.HARMLESS, "fifo_length", "speaker_cache_update_period")
    section.finish()
    return config


def _renamed(weights: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
    """Give the weights our names, and the projections to queries, keys and values biases of zero."""
    renamed = names.rename(weights, {}, _NAMES, linear=None)
    found = ((_WITHOUT_BIAS.match(name), source) for name, source in renamed.items())
    return renamed | {f"{match[1]}.bias": _zeros(source) for match, source in found if match}


def _zeros(weight: TensorSource) -> TensorSource:
    """Return a bias of zeros."""
    rows = weight.shape[0]
    return TensorSource(weight.dtype, (rows,), lambda: weight.read().new_zeros(rows))
