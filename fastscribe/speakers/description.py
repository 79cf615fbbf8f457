"""What `fastscribe inspect` says of a speaker model or a voice model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastscribe.cli.describe import ENCODERS
from fastscribe.config import streaming_text
from fastscribe.speakers.config import EcapaConfig, SpeakerCheckpoint, StackingConfig, VoiceCheckpoint
from fastscribe.speakers.nemo_voices import read_voice_model
from fastscribe.speakers.readers import read_speaker_model
from fastscribe.speakers.side_model import check_weights


def read(path: Path, option: str) -> SpeakerCheckpoint | VoiceCheckpoint:
    """Read the model of an option and check the names and shapes of its weights, not their values. Raises CheckpointError."""
    checkpoint = read_voice_model(path) if option == "voices" else read_speaker_model(path)
    check_weights(checkpoint.config, checkpoint.weights, checkpoint.path)
    return checkpoint


def describe(checkpoint: SpeakerCheckpoint | VoiceCheckpoint) -> dict[str, Any]:
    """Return what cli.describe.describe() does of other models. Frames of chunks are the encoder's."""
    return _voice_model(checkpoint) if isinstance(checkpoint, VoiceCheckpoint) else _speaker_model(checkpoint)


def _voice_model(checkpoint: VoiceCheckpoint) -> dict[str, Any]:
    config, encoder = checkpoint.config, checkpoint.config.encoder
    return {
        "path": str(checkpoint.path),
        "source": "nemo",
        "family": "ecapa_tdnn" if isinstance(encoder, EcapaConfig) else "titanet",
        "parameters": checkpoint.num_parameters,
        "sample_rate_hz": config.features.sample_rate,
        "mels": config.features.num_mels,
        "normalize": config.features.normalize,
        "frame_s": config.frame_s,
        **_ENCODERS[type(encoder)](encoder),
        "pooling": config.pooling,
        "voice_print": config.num_outputs,
        "weights_bytes_fp32": 4 * checkpoint.num_parameters,
    }


def _speaker_model(checkpoint: SpeakerCheckpoint) -> dict[str, Any]:
    config, encoder, cache = checkpoint.config, checkpoint.config.encoder, checkpoint.config.cache
    facts: dict[str, Any] = {
        "path": str(checkpoint.path),
        "source": checkpoint.source,
        "family": "speaker model (Sortformer)",
        "speakers": config.num_speakers,
        "parameters": checkpoint.num_parameters,
        "stored_dtype": ", ".join(checkpoint.dtypes),
        "sample_rate_hz": config.features.sample_rate,
        "mels": config.features.num_mels,
        "normalize": config.features.normalize,
        "frame_s": round(config.frame_s, 6),
        **_ENCODERS[type(encoder)](encoder),
    }
    if config.transformer is not None:
        facts["transformer"] = f"{config.transformer.num_layers} x {config.transformer.hidden}"
    if cache is None:
        facts["window_s"] = config.trained_s
    else:
        facts["speaker_streaming"] = streaming_text(cache.streaming)
    return facts | {"weights_bytes_fp32": 4 * checkpoint.num_parameters}


def _stacking(encoder: StackingConfig) -> dict[str, Any]:
    layers = encoder.layers
    return {
        "layers": layers.num_layers,
        "d_model": layers.hidden,
        "heads": layers.num_heads,
        "ff_hidden": layers.ff_hidden,
        "activation": layers.activation,
        "subsampling": f"stacks of {encoder.subsampling_factor} mel frames",
    }


def _ecapa(encoder: EcapaConfig) -> dict[str, Any]:
    return {
        "blocks": encoder.num_blocks,
        "d_model": encoder.d_model,
        "conv_kernels": f"{min(encoder.kernels)} to {max(encoder.kernels)}",
    }


_ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {**ENCODERS, StackingConfig: _stacking, EcapaConfig: _ecapa}
