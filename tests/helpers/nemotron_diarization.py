"""Small folders of transformers' Nemotron3DiarizationForAudioFrameClassification whose weights are formulas of their names.

scripts/goldens/nemotron_diarization.py gives transformers the same, and stores its probabilities. This file
imports nothing of fastscribe, so that an environment with transformers alone can run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.helpers.hf_folder import write_json
from tests.helpers.sortformer import weight

LENGTHS_S = (
    0.2,
    3.2,
    11.3,
)  # of the recordings with stored probabilities; 3.2 s has whole encoder frames, and whole chunks
_WIDTH, _INNER, _HEAD, _LAYERS, _HEADS, _MELS, _FACTOR = 32, 48, 24, 2, 4, 128, 8
_QUEUE = {"fifo_length": 12, "speaker_cache_update_period": 8}
_CHUNKS = {"chunk_length": 10, "chunk_right_context": 3, "chunk_left_context": 1, **_QUEUE}
_CACHE = {"speaker_cache_length": 40}
# By name: settings of the model, of its encoder, of its speaker cache, and the number of speakers.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]] = {
    "defaults": ({}, {}, {}, 8),
    "cache": (_CHUNKS, {}, _CACHE, 8),
    "variant": (
        _CHUNKS | {"fifo_length": 0, "speaker_cache_update_period": 1},
        {
            "hidden_act": "relu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
        _CACHE | {"speaker_cache_silence_frames_per_speaker": 3, "speaker_cache_length": 20},
        3,
    ),
    # transformers reads it chunk by chunk, as sound that arrives.
    "streamed": (
        _CHUNKS | {"chunk_length": 9, "chunk_right_context": 4, "chunk_left_context": 0},
        {},
        _CACHE | _QUEUE,
        8,
    ),
}


def config(name: str) -> dict[str, Any]:
    """Return a config.json as transformers 5.24 writes it, with small sizes."""
    model, encoder, cache, num_speakers = MODELS[name]
    rotary = {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"}
    return {
        "architectures": ["Nemotron3DiarizationForAudioFrameClassification"],
        "audio_config": {
            **{"attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": _WIDTH, "initializer_range": 0.02},
            **{
                "intermediate_size": _INNER,
                "max_position_embeddings": 5000,
                "model_type": "nemotron3_diarization_audio",
            },
            **{"num_attention_heads": _HEADS, "num_hidden_layers": _LAYERS, "num_key_value_heads": _HEADS},
            **{"num_mel_bins": _MELS, "rope_parameters": rotary, "subsampling_factor": _FACTOR},
            **encoder,
        },
        **{
            "chunk_left_context": 0,
            "chunk_length": 340,
            "chunk_right_context": 40,
            "dtype": "float32",
            "fifo_length": 40,
        },
        "head_config": {
            **{"audio_hidden_size": _WIDTH, "hidden_size": _HEAD, "model_type": "", "num_speakers": num_speakers},
            "subsampling_factor": _FACTOR,
        },
        **{"initializer_range": 0.02, "model_type": "nemotron3_diarization", "speaker_cache_update_period": 300},
        "streaming_config": {
            **{
                "fifo_length": 264,
                "latest_frames_score_boost": 0.05,
                "min_positive_scores_rate": 0.5,
                "model_type": "",
            },
            **{"num_speakers": num_speakers, "prediction_score_threshold": 0.25, "speaker_cache_length": 264},
            **{"speaker_cache_silence_frames_per_speaker": 1, "speaker_cache_update_period": 222},
            **{"strong_boost_rate": 0.75, "subsampling_factor": _FACTOR, "weak_boost_rate": 1.5},
            **cache,
        },
        "transformers_version": "5.24.0",
        **model,
    }


def processor() -> dict[str, Any]:
    """Return a processor_config.json as transformers 5.24 writes it."""
    return {
        "feature_extractor": {
            **{
                "feature_extractor_type": "NemotronAsrStreamingFeatureExtractor",
                "feature_size": _MELS,
                "hop_length": 160,
            },
            **{"mel_filters_dtype": "float32", "n_fft": 512, "padding_side": "right", "padding_value": 0.0},
            **{"preemphasis": 0.97, "return_attention_mask": True, "sampling_rate": 16000, "win_length": 400},
        },
        "processor_class": "Nemotron3DiarizationProcessor",
        "streaming_mode": "low_latency",
        "streaming_modes": {"low_latency": [9, 4], "ultra_low_latency": [3, 1], "very_low_latency": [6, 2]},
        "subsampling_factor": _FACTOR,
    }


def weights(settings: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return weights with which most speakers speak at times."""
    found = {name: torch.from_numpy(weight(name, shape, 7)) for name, shape in _shapes(settings).items()}
    # Mel frames are about -10: without this mean they would all be alike.
    found["model.audio_tower.embedder.projection.weight"] -= found["model.audio_tower.embedder.projection.weight"].mean(
        1, keepdim=True
    )
    return found


def _shapes(settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of transformers' weights by name."""
    found: dict[str, tuple[int, ...]] = {"silence_embeds": (_WIDTH,)}

    def layer(name: str, *shape: int, bias: bool = True) -> None:
        found[f"{name}.weight"] = shape
        if bias:
            found[f"{name}.bias"] = shape[:1]

    tower = "model.audio_tower"
    layer(f"{tower}.embedder.projection", _WIDTH, _FACTOR * _MELS, bias=False)
    for norm in ("input_layer_norm", "layer_norm"):
        layer(f"{tower}.{norm}", _WIDTH)
    for number in range(_LAYERS):
        place = f"{tower}.layers.{number}"
        for part in "qkv":
            layer(f"{place}.self_attn.{part}_proj", _WIDTH, _WIDTH, bias=False)
        layer(f"{place}.self_attn.o_proj", _WIDTH, _WIDTH)
        layer(f"{place}.mlp.fc1", _INNER, _WIDTH)
        layer(f"{place}.mlp.fc2", _WIDTH, _INNER)
        for norm in ("layer_norm1", "layer_norm2"):
            layer(f"{place}.{norm}", _WIDTH)
    layer("model.proj", _HEAD, _WIDTH)
    layer("model.upsampler.conv", _FACTOR * _HEAD, _HEAD, 3)
    layer("classifier.dense", _HEAD, _HEAD)
    layer("classifier.out_proj", settings["head_config"]["num_speakers"], _HEAD)
    return found


def write_folder(folder: Path, settings: Mapping[str, Any], stated: Mapping[str, Any] | None = None) -> Path:
    """Write a folder as transformers does, with other settings in its file if `stated`. Return its path."""
    write_json(folder, config=dict(stated or settings), processor_config=processor())
    save_file(weights(settings), str(folder / "model.safetensors"), {"format": "pt"})
    return folder
