"""Small voice models (TitaNet, SpeakerNet, ECAPA-TDNN) whose weights are formulas of their names, and recordings for them.

scripts/goldens/speakers.py gives NeMo the same, and stores its vectors. This file imports nothing of fastscribe, so
that an environment with NeMo alone can run it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers.se_checkpoint import Shapes, batch_norm, encoder_shapes, linear
from tests.helpers.sortformer import write_archive

RATE = 16_000
LENGTHS_S = (0.5, 1.27, 3.3)  # of the recordings with stored vectors
_MELS = 80


def _block(filters: int, kernel: int, repeat: int = 1, residual: bool = False, se: bool = True) -> dict[str, Any]:
    plain = {"stride": [1], "dilation": [1], "dropout": 0.1, "separable": True, "se": se, "se_context_size": -1}
    return {"filters": filters, "repeat": repeat, "kernel": [kernel], "residual": residual, **plain}


def _jasper(se: bool, last: int) -> dict[str, Any]:
    """Return the published encoder, narrower."""
    middle = [_block(32, kernel, 3 if se else 2, True, se) for kernel in (7, 11, 15)]
    blocks = [_block(32, 3, residual=not se, se=se), *middle, _block(last, 1, se=se)]
    return {"_target_": "nemo.collections.asr.modules.ConvASREncoder", "feat_in": _MELS, "activation": "relu"} | {
        "conv_mask": True,
        "jasper": blocks,
    }


_ECAPA = {
    "_target_": "nemo.collections.asr.modules.ECAPAEncoder",
    "feat_in": _MELS,
    "filters": [32, 32, 32, 32, 96],
    "kernel_sizes": [5, 3, 3, 3, 1],
    "dilations": [1, 2, 3, 4, 1],
    "scale": 8,
}
# By name: the encoder, settings of the decoder, and of the preprocessor.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "titanet": (_jasper(True, 64), {"pool_mode": "attention", "emb_sizes": 24, "attention_channels": 16}, {}),
    "two_layers": (_jasper(True, 48), {"pool_mode": "attention", "emb_sizes": [40, 24]}, {"normalize": "all_features"}),
    "speakernet": (_jasper(False, 48), {"pool_mode": "xvector", "emb_sizes": 24}, {}),
    "tap": (_jasper(False, 48), {"pool_mode": "tap", "emb_sizes": [40, 24], "angular": False}, {"window_size": 0.02}),
    "ecapa": (_ECAPA, {"pool_mode": "attention", "emb_sizes": 24}, {"stft_conv": False}),
    "ecapa_unpadded": (_ECAPA, {"pool_mode": "xvector", "emb_sizes": 24}, {"pad_to": 0}),
}


def config(name: str) -> dict[str, Any]:
    """Return the model section of the published configurations, with small sizes."""
    encoder, decoder, preprocessor = MODELS[name]
    asr = "nemo.collections.asr"
    last = encoder["jasper"][-1]["filters"] if "jasper" in encoder else encoder["filters"][-1]
    loss = {"scale": 30, "margin": 0.2, "_target_": f"{asr}.losses.angularloss.AngularSoftmaxLoss"}
    return {
        **({"loss": loss} if decoder.get("angular", True) else {}),
        "target": f"{asr}.models.label_models.EncDecSpeakerLabelModel",
        "sample_rate": RATE,
        "preprocessor": {
            "_target_": f"{asr}.modules.AudioToMelSpectrogramPreprocessor",
            **{"normalize": "per_feature", "window_size": 0.025, "sample_rate": RATE, "window_stride": 0.01},
            **{"window": "hann", "features": _MELS, "n_fft": 512, "frame_splicing": 1, "dither": 0.00001},
            **preprocessor,
        },
        "encoder": dict(encoder),
        "decoder": {
            "_target_": f"{asr}.modules.SpeakerDecoder",
            **{"feat_in": last, "num_classes": 7, "angular": True, **decoder},
        },
        "optim": {"name": "sgd", "lr": 0.08, "weight_decay": 0.0002},
    }


def shapes(settings: Mapping[str, Any]) -> Shapes:
    """Return the shapes of NeMo's weights by name."""
    encoder, decoder = settings["encoder"], settings["decoder"]
    width = decoder["feat_in"]
    found = encoder_shapes(encoder) if "jasper" in encoder else _ecapa_shapes(encoder)
    pooled = width * (1 if decoder["pool_mode"] == "tap" else 2)
    has_attention = decoder["pool_mode"] == "attention"
    if has_attention:
        channels = decoder.get("attention_channels", 128)
        place = "decoder._pooling.attention_layer"
        found |= linear(f"{place}.0.conv_layer", 3 * width, channels, True, 1) | batch_norm(f"{place}.0.bn", channels)
        found |= linear(f"{place}.2", channels, width, True, 1)
    sizes = decoder["emb_sizes"]
    sizes = [pooled, *(sizes if isinstance(sizes, list) else [sizes])]
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        place = f"decoder.emb_layers.{number}"
        if has_attention:
            found |= batch_norm(f"{place}.0", inputs) | linear(f"{place}.1", inputs, outputs, True, 1)
        else:
            norm = batch_norm(f"{place}.1", outputs)
            found |= linear(f"{place}.0", inputs, outputs)
            found |= {key: shape for key, shape in norm.items() if not key.endswith(("weight", "bias"))}
    return found | linear("decoder.final", sizes[-1], decoder["num_classes"], not decoder["angular"])


def _ecapa_shapes(encoder: Mapping[str, Any]) -> Shapes:
    filters, kernels, groups = encoder["filters"], encoder["kernel_sizes"], encoder["scale"]

    def tdnn(name: str, inputs: int, outputs: int, kernel: int) -> Shapes:
        return linear(f"{name}.conv_layer", inputs, outputs, True, kernel) | batch_norm(f"{name}.bn", outputs)

    found = tdnn("encoder.layers.0", encoder["feat_in"], filters[0], kernels[0])
    for number in range(1, len(filters) - 1):
        block, gate = f"encoder.layers.{number}.group_tdnn_block", f"encoder.layers.{number}.se_layer.se_layer"
        width = filters[number]
        found |= tdnn(f"{block}.0", width, width, 1) | tdnn(f"{block}.4", width, width, 1)
        found |= linear(f"{block}.1", width // groups, width, True, kernels[number]) | batch_norm(f"{block}.3", width)
        found |= linear(f"{gate}.0", width, 128, True, 1) | batch_norm(f"{gate}.2", 128)
        found |= linear(f"{gate}.3", 128, width, True, 1)
    return found | tdnn("encoder.feature_agg", filters[-1], filters[-1], kernels[-1])


def weights(settings: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return weights with which activations keep their size."""
    return {name: _weight(name, shape) for name, shape in shapes(settings).items()}


def _weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return normal numbers whose seed is the name."""
    if not shape:
        return torch.zeros((), dtype=torch.int64)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    values = np.random.RandomState(seed).standard_normal(shape)
    if name.endswith("running_var"):
        values = 0.5 + values**2
    elif len(shape) == 1:
        values = name.endswith("weight") + 0.2 * values
    else:
        values = (2.0 if ".fc." in name else 1.5) * values / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(values.astype(np.float32))


def recording(length_s: float, pitch_hz: float = 140.0) -> np.ndarray:
    """Return a tone that glides between vowel-like filters, with noise [S], as 16-bit numbers."""
    num_samples = round(length_s * RATE)
    time_s = np.arange(num_samples) / RATE
    noise = np.random.RandomState(num_samples).standard_normal(num_samples)
    phase = 2 * np.pi * pitch_hz * (time_s + 0.02 * np.sin(2 * np.pi * 2 * time_s))
    tone = np.sign(np.sin(phase)) * (1 + np.sin(2 * np.pi * 3.1 * time_s))
    return np.asarray(4000 * tone + 600 * noise, np.int16)


def write_nemo(path: Path, settings: Mapping[str, Any], stated: Mapping[str, Any] | None = None) -> Path:
    """Write a checkpoint as NeMo does, with other settings in its file if `stated`. Return its path."""
    return write_archive(path, stated or settings, weights(settings))
