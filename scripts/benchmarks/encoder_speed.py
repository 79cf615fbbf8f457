"""Speed of the encoder that a Recognizer runs on this device, by batch and length, and the share of its arithmetic.

Work is counted from the shape (work.py), so padding and recomputation do not count as work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fastscribe.bench.roofline import time_call
from fastscribe.bench.work import encoder_gflop_per_audio_s
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import ModelConfig
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import Features, Frames

Encode = Callable[[Features], Frames]


def build(form: str, checkpoint: Checkpoint, device: torch.device) -> Encode:
    """Return the encoder with its graphs for small batches: "shipped" in bf16, "shipped_fp8" in fp8."""
    return Recognizer.build(checkpoint, str(device), {"shipped": "bf16", "shipped_fp8": "fp8"}[form]).encode


def random_features(config: ModelConfig, lengths_s: Sequence[float], device: torch.device) -> Features:
    """Return random features, a row for each length."""
    front = config.features
    lengths = [round(length_s * front.sample_rate) // front.hop_length for length_s in lengths_s]
    mel_BMT = torch.randn(len(lengths), front.num_mels, max(lengths), device=device)
    return Features(mel_BMT, torch.tensor(lengths, device=device))


def measure(encode: Encode, config: ModelConfig, lengths_s: Sequence[float], device: torch.device) -> dict[str, Any]:
    """Measure one batch of rows of these lengths, from features on."""
    features = random_features(config, lengths_s, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    timing = time_call(lambda: encode(features), device, seconds=0.4, most=60)
    audio_s = sum(lengths_s)
    work_gflop = encoder_gflop_per_audio_s(config, lengths_s) * audio_s
    return {
        "rtfx": 1000.0 * audio_s / timing.median_ms,
        "tflop_per_s": work_gflop / timing.median_ms,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        **timing.row(),
    }
