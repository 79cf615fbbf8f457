"""Speed of an encoder by batch and length, in each of its forms, and the share of the device's arithmetic that it uses.

`shipped` is the form that a Recognizer runs on this device, with graphs for small batches; the other forms show the gain of
each step. Work is counted from the shape (work.py), so padding and recomputation do not count as work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from fastscribe.bench.timing import time_call, wall_ms
from fastscribe.bench.work import encoder_gflop_per_audio_s
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import ModelConfig
from fastscribe.errors import UsageError
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.conformer.fused_layers import fuse_
from fastscribe.families.model import build_model
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import Features, Frames
from scripts.benchmarks import operation_speed

Encode = Callable[[Features], Frames]
# The plain layers; fused with torch's operations; fused with Triton's; what a run uses, in bf16 and in fp8.
FORMS = ("plain", "fused_torch", "fused_triton", "shipped", "shipped_fp8")
STAGES = ("features", "subsampling", "encoder")
_NEW_SHAPES = 5


def build(form: str, checkpoint: Checkpoint, device: torch.device) -> Encode:
    """Return the encoder in one of FORMS, in bf16 except for the last. Raise the error if a form is unavailable."""
    assert form in FORMS
    if form.startswith("shipped"):
        dtype = "fp8" if form == "shipped_fp8" else "bf16"
        return Recognizer.build(checkpoint, str(device), dtype).encode
    encoder = build_model(checkpoint.config, checkpoint.weights, checkpoint.path).encoder
    encoder.optimise_()
    encoder.to(device, torch.bfloat16)
    if form != "plain":
        if not isinstance(encoder, Encoder):
            raise UsageError(f"{form}: this encoder has no such form")
        fuse_(encoder, operation_speed.operations(form.removeprefix("fused_")))
    encode: Encode = torch.inference_mode()(encoder.forward)
    return encode


def random_features(config: ModelConfig, lengths_s: Sequence[float], device: torch.device) -> Features:
    """Return random features, a row for each length."""
    front = config.features
    lengths = [round(length_s * front.sample_rate) // front.hop_length for length_s in lengths_s]
    mel_BMT = torch.randn(len(lengths), front.num_mels, max(lengths), device=device)
    return Features(mel_BMT, torch.tensor(lengths, device=device))


def measure_stage(stage: str, recognizer: Recognizer, rows: int, seconds: float) -> dict[str, Any]:
    """Measure one of STAGES alone, for `rows` rows of noise of `seconds` each; the encoder is a FastConformer.

    `new_shape_ms` is the wall time of a call with a new length, the median of a few. Its excess over `wall_ms`, the same for a
    known length, is spent on plans and memory for the new shape.
    """
    device, config = recognizer.device, recognizer.model.config
    encoder = recognizer.model.encoder
    assert isinstance(encoder, Encoder)
    dtype = next(encoder.subsampling.parameters()).dtype

    def prepared(length_s: float) -> Callable[[], object]:
        features = random_features(config, [length_s] * rows, device)
        if stage == "features":
            num_samples = round(length_s * recognizer.sample_rate)
            samples_BS = torch.randint(-8000, 8000, (rows, num_samples), dtype=torch.int16, device=device)
            return partial(recognizer.features, samples_BS, torch.full((rows,), num_samples, device=device))
        if stage == "subsampling":
            given = features.mel_BMT.to(dtype).transpose(1, 2), features.lengths_B
            return torch.inference_mode()(partial(encoder.subsampling, *given))
        return partial(recognizer.encode, features)

    call = prepared(seconds)
    row = time_call(call, device, seconds=0.3, most=40).row() | {"wall_ms": wall_ms(call, device)}
    shift = 0.01 * STAGES.index(stage)  # another stage's lengths would be half new
    new = [wall_ms(prepared(seconds * (1 - 0.03 * number - shift)), device) for number in range(1, _NEW_SHAPES + 1)]
    return row | {"new_shape_ms": median(new)}


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
