"""Small Sortformer checkpoints whose weights are formulas of their names, and recordings for them.

scripts/goldens/speakers.py gives NeMo the same, and stores its probabilities. This file imports nothing of
fastscribe, so that an environment with NeMo alone can run it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers.archives import packed
from tests.helpers.conformer_shapes import conformer_shapes, norm
from tests.helpers.se_checkpoint import linear

RATE = 16_000
LENGTHS_S = (0.2, 3.0, 11.3)  # of the recordings with stored probabilities
_CACHE = {
    "spkcache_len": 20,
    "fifo_len": 12,
    "chunk_len": 10,
    "spkcache_update_period": 8,
    "spkcache_sil_frames_per_spk": 1,
}
CACHE = _CACHE | {"chunk_left_context": 1, "chunk_right_context": 2}
# By name: settings of the model, of its modules, and of its Transformer.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "v1": ({}, {}, {}),
    "pre_norm": ({}, {}, {"pre_ln": True, "hidden_size": 32}),
    "v2": ({"streaming_mode": True}, CACHE, {}),
    "v2_async": ({"streaming_mode": True, "async_streaming": True}, CACHE, {}),
    "v2_no_queue": ({"streaming_mode": True}, CACHE | {"fifo_len": 0, "spkcache_update_period": 1}, {}),
}
_WIDTH, _INNER, _CHANNELS, _LAYERS = 32, 64, 8, 2


def config(name: str) -> dict[str, Any]:
    """Return the model section of the published configurations, with small sizes."""
    top, modules, transformer = MODELS[name]
    hidden = transformer.get("hidden_size", 24)
    mels, norm = (128, "NA") if top else (80, "per_feature")
    asr = "nemo.collections.asr"
    return {
        "target": f"{asr}.models.sortformer_diar_models.SortformerEncLabelModel",
        **{"sample_rate": RATE, "pil_weight": 0.5, "ats_weight": 0.5, "max_num_of_spks": 4, "session_len_sec": 90},
        "model_defaults": {"fc_d_model": _WIDTH, "tf_d_model": hidden},
        **top,
        "preprocessor": {
            "_target_": f"{asr}.modules.AudioToMelSpectrogramPreprocessor",
            **{"normalize": norm, "window_size": 0.025, "sample_rate": RATE, "window_stride": 0.01, "window": "hann"},
            **{"features": mels, "n_fft": 512, "frame_splicing": 1, "dither": 0.00001},
        },
        "sortformer_modules": {
            "_target_": f"{asr}.modules.sortformer_modules.SortformerModules",
            **{"num_spks": 4, "dropout_rate": 0.5, "fc_d_model": _WIDTH, "tf_d_model": hidden, **modules},
        },
        "encoder": {
            "_target_": f"{asr}.modules.ConformerEncoder",
            **{"feat_in": mels, "feat_out": -1, "n_layers": _LAYERS, "d_model": _WIDTH, "subsampling": "dw_striding"},
            **{"subsampling_factor": 8, "subsampling_conv_channels": _CHANNELS, "causal_downsampling": False},
            **{"ff_expansion_factor": 4, "self_attention_model": "rel_pos", "n_heads": 4, "att_context_size": [-1, -1]},
            **{"att_context_style": "regular", "xscaling": True, "untie_biases": True, "pos_emb_max_len": 5000},
            **{"conv_kernel_size": 9, "conv_norm_type": "batch_norm", "conv_context_size": None, "dropout": 0.1},
            **{"dropout_pre_encoder": 0.1, "dropout_emb": 0.0, "dropout_att": 0.1, "stochastic_depth_drop_prob": 0.0},
            **{"stochastic_depth_mode": "linear", "stochastic_depth_start_layer": 1},
        },
        "transformer_encoder": {
            "_target_": f"{asr}.modules.transformer.transformer_encoders.TransformerEncoder",
            **{"num_layers": _LAYERS, "hidden_size": hidden, "inner_size": _INNER, "num_attention_heads": 4},
            **{"attn_score_dropout": 0.5, "attn_layer_dropout": 0.5, "ffn_dropout": 0.5, "hidden_act": "relu"},
            **{"pre_ln": False, "pre_ln_final_layer_norm": True, **transformer},
        },
        "loss": {"_target_": f"{asr}.losses.bce_loss.BCELoss", "weight": None, "reduction": "mean"},
        **{"lr": 0.0001, "optim": {"name": "adamw", "lr": 0.0001, "betas": [0.9, 0.98], "weight_decay": 1e-3}},
    }


def weights(settings: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return weights with which most speakers speak at times."""
    salt = 59 if settings.get("streaming_mode") else 45
    return {name: torch.from_numpy(weight(name, shape, salt)) for name, shape in shapes(settings).items()}


def weight(name: str, shape: tuple[int, ...], salt: int) -> np.ndarray:
    """Return normal numbers whose seed is the name, scaled so that activations keep their size."""
    seed = int.from_bytes(hashlib.sha256(f"{salt} {name}".encode()).digest()[:4], "big")
    values = np.random.RandomState(seed).standard_normal(shape)
    if name.endswith("running_var"):
        return (0.5 + values**2).astype(np.float32)
    if len(shape) < 2 or "pos_bias" in name:
        return ((("norm" in name) * name.endswith("weight")) + 0.2 * values).astype(np.float32)
    if "single_hidden" in name:  # its inputs are positive: all speakers speak about equally often
        return (12 * (values - values.mean(1, keepdims=True)) / np.sqrt(shape[1])).astype(np.float32)
    return (1.5 * values / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def recording(length_s: float) -> np.ndarray:
    """Return tones of four pitches by turns with noise and silence [S], as 16-bit numbers."""
    num_samples = round(length_s * RATE)
    time_s = np.arange(num_samples) / RATE
    pitch = np.array([140.0, 900.0, 0.0, 310.0, 2300.0])[(time_s / 0.7).astype(int) % 5]
    noise = np.random.RandomState(num_samples).standard_normal(num_samples)
    samples = np.where(pitch > 0, 9000 * np.sign(np.sin(2 * np.pi * pitch * time_s)) + 900 * noise, 3 * noise)
    return samples.astype(np.int16)


def shapes(settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of NeMo's weights by name."""
    hidden = settings["transformer_encoder"]["hidden_size"]
    found = {
        name: shape for name, shape in conformer_shapes(settings["encoder"]).items() if not name.endswith("_tracked")
    }
    for place in (f"transformer_encoder.layers.{number}" for number in range(_LAYERS)):
        found |= norm(f"{place}.layer_norm_1", hidden) | norm(f"{place}.layer_norm_2", hidden)
        for part in ("query_net", "key_net", "value_net", "out_projection"):
            found |= linear(f"{place}.first_sub_layer.{part}", hidden, hidden)
        found |= linear(f"{place}.second_sub_layer.dense_in", hidden, _INNER)
        found |= linear(f"{place}.second_sub_layer.dense_out", _INNER, hidden)
    if settings["transformer_encoder"]["pre_ln"]:
        found |= norm("transformer_encoder.final_layer_norm", hidden)
    if hidden != _WIDTH:
        found |= linear("sortformer_modules.encoder_proj", _WIDTH, hidden)
    found |= linear("sortformer_modules.hidden_to_spks", 2 * hidden, 4)
    found |= linear("sortformer_modules.first_hidden_to_hidden", hidden, hidden)
    found |= linear("sortformer_modules.single_hidden_to_spks", hidden, 4)
    return found


def write_nemo(path: Path, settings: Mapping[str, Any], stated: Mapping[str, Any] | None = None) -> Path:
    """Write a checkpoint as NeMo does, with other settings in its file if `stated`. Return its path."""
    return write_archive(path, stated or settings, weights(settings))


def write_archive(path: Path, settings: Mapping[str, Any], stored_weights: Mapping[str, torch.Tensor]) -> Path:
    """Write a .nemo file. Return its path."""
    stored = io.BytesIO()
    torch.save(dict(stored_weights), stored)
    contents = {"model_config.yaml": json.dumps(settings).encode(), "model_weights.ckpt": stored.getvalue()}
    return packed({f"./{name}": content for name, content in contents.items()}, path)
