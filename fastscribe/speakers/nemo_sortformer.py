"""Reader of NeMo's speaker models: SortformerEncLabelModel (diar_sortformer_4spk-v1, diar_streaming_sortformer_4spk-v2, v2.1).

The archive is that of other .nemo files (nemo.py). It has no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fastscribe.checkpoint import names, nemo
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.nemo_config import features_of, target
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import NEMO_CONFIG_NAME, Section, report_invalid_config
from fastscribe.checkpoint.weights import load_torch
from fastscribe.config import ModelConfig, TransformerConfig
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.families.canary.nemo import ENCODER_LAYER
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.nemo import encoder_config
from fastscribe.rooms import option_for
from fastscribe.speakers.config import MAX_SPEAKERS, SpeakerCacheConfig, SpeakerCheckpoint, SpeakerModelConfig
from fastscribe.speakers.settings import MAX_SPEAKER_FRAMES

_UNUSED = re.compile(r"^sortformer_modules\.hidden_to_spks\.")  # NeMo's forward pass does not use it
_NAMES = names.reading(
    (
        *names.within("^transformer_encoder.layers.#.", "layers.#.", ENCODER_LAYER),
        ("^transformer_encoder.final_layer_norm.", "final_norm."),
        ("^sortformer_modules.encoder_proj.", "projection."),
        ("^sortformer_modules.first_hidden_to_hidden.", "hidden."),
        ("^sortformer_modules.single_hidden_to_spks.", "speakers."),
    )
)
_DEFAULT_TRAINED_S = 90.0
_MAX_TRAINED_S = 3600.0


def read(path: Path) -> SpeakerCheckpoint:
    """Read a Sortformer: a .nemo file, the unpacked folder, or a folder with one .nemo file.

    Raises:
        CheckpointError: There is none, or it is damaged, unsafe, not supported, or a model of another kind.
    """
    members, config = nemo.open_config(path)
    option = option_for(config.values) or "model"
    if option != "speakers":
        raise CheckpointError(path, f"no speaker model (Sortformer): it is for --{option}, and --speakers needs one")
    with report_invalid_config(f"{path}: {NEMO_CONFIG_NAME}"):
        model = speaker_model_config(config)
        # The limits of sizes are those of a transcription model with this encoder.
        assert isinstance(model.encoder, EncoderConfig)
        validate(ModelConfig(model.features, model.encoder, None, None, (), has_ctc=True, num_labels=1), path)
    weights = load_torch(members[nemo.WEIGHTS_NAME], f"{path}: {nemo.WEIGHTS_NAME}")
    return SpeakerCheckpoint(path, "nemo", model, LazyWeights(_renamed(weights, model.encoder)))


def _renamed(weights: Mapping[str, TensorSource], encoder: EncoderConfig) -> dict[str, TensorSource]:
    found = names.from_nemo(weights, encoder)
    used = {name: source for name, source in found.items() if not _UNUSED.match(name)}
    return names.rename(used, {}, _NAMES, linear=None)


def speaker_model_config(config: Section) -> SpeakerModelConfig:
    """Convert model_config.yaml. Raises UnsupportedCheckpoint naming key and value."""
    features, section = features_of(config.part("preprocessor")), config.part("encoder")
    target(section, "ConformerEncoder")
    encoder = encoder_config(section)
    transformer = _transformer(config.part("transformer_encoder"))
    modules = config.part("sortformer_modules")
    target(modules, "SortformerModules")
    num_speakers = modules.whole("num_spks", 4, 1, MAX_SPEAKERS)
    for key, value, expected in (
        ("encoder.feat_in", encoder.num_mels, features.num_mels),
        ("max_num_of_spks", config.get("max_num_of_spks", num_speakers), num_speakers),
        ("sortformer_modules.fc_d_model", modules.get("fc_d_model", 512), encoder.d_model),
        ("sortformer_modules.tf_d_model", modules.get("tf_d_model", 192), transformer.hidden),
        ("sortformer_modules.subsampling_factor", modules.get("subsampling_factor", 8), encoder.subsampling_factor),
    ):
        if value != expected:
            raise UnsupportedCheckpoint(config.where, key, value, str(expected))
    is_streaming = config.choose("streaming_mode", False, (True, False, None)) is True
    is_async = config.choose("async_streaming", False, (True, False, None)) is True
    cache = _cache(modules, num_speakers, is_async)
    modules.ignore("dropout_rate", "causal_attn_rate", "causal_attn_rc", "scores_add_rnd", "max_index")
    modules.finish()
    guard = config.number("eps", 1e-3)
    return SpeakerModelConfig(
        features=features,
        encoder=encoder,
        head_hidden=transformer.hidden,
        transformer=transformer,
        num_speakers=num_speakers,
        trained_s=_trained_s(config),
        peak_guard=None if is_streaming else guard,
        cache=cache if is_streaming else None,
    )


def _transformer(section: Section) -> TransformerConfig:
    target(section, "TransformerEncoder")
    section.choose("mask_future", False, (False, None))
    section.ignore("ffn_dropout", "attn_score_dropout", "attn_layer_dropout")
    config = TransformerConfig(
        num_layers=section.whole("num_layers", None, 1, 256),
        hidden=section.whole("hidden_size", None, 2, 1 << 14),
        ff_hidden=section.whole("inner_size", None, 1, 1 << 17),
        num_heads=section.whole("num_attention_heads", 1, 1, 256),
        activation=section.choose("hidden_act", "relu", ("relu",)),
        pre_norm=section.choose("pre_ln", False, (True, False)),
        final_norm=section.choose("pre_ln_final_layer_norm", True, (True, False)),
    )
    section.finish()
    if config.hidden % config.num_heads:
        supported = f"multiples of {config.num_heads} heads"
        raise UnsupportedCheckpoint(section.where, section.path("hidden_size"), config.hidden, supported)
    return config


def _cache(section: Section, num_speakers: int, is_async: bool) -> SpeakerCacheConfig:
    silent = section.whole("spkcache_sil_frames_per_spk", 3, 0, MAX_SPEAKER_FRAMES)
    return SpeakerCacheConfig(
        cache_frames=section.whole("spkcache_len", 188, (1 + silent) * num_speakers, MAX_SPEAKER_FRAMES),
        queue_frames=section.whole("fifo_len", 0, 0, MAX_SPEAKER_FRAMES),
        chunk_frames=section.whole("chunk_len", 188, 1, MAX_SPEAKER_FRAMES),
        update_frames=section.whole("spkcache_update_period", 188, 1, MAX_SPEAKER_FRAMES),
        left_frames=section.whole("chunk_left_context", 1, 0, MAX_SPEAKER_FRAMES),
        right_frames=section.whole("chunk_right_context", 1, 0, MAX_SPEAKER_FRAMES),
        silent_frames=silent,
        min_probability=section.between("pred_score_threshold", 0.25, 1e-6, 1.0),
        latest_boost=section.between("scores_boost_latest", 0.05, 0.0, 100.0),
        silence_threshold=section.between("sil_threshold", 0.2, 0.0, float(num_speakers)),
        strong_rate=section.between("strong_boost_rate", 0.75, 0.0, 1.0),
        weak_rate=section.between("weak_boost_rate", 1.5, 0.0, float(num_speakers)),
        min_positive_rate=section.between("min_pos_scores_rate", 0.5, 0.0, 1.0),
        keeps_first_probabilities=is_async,
    )


def _trained_s(config: Section) -> float:
    """Return the length of the recordings that the model learnt from."""
    for section in (config, config.part("train_ds", optional=True)):
        if "session_len_sec" in section:
            return section.between("session_len_sec", _DEFAULT_TRAINED_S, 1.0, _MAX_TRAINED_S)
    return _DEFAULT_TRAINED_S
