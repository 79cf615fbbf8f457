"""Batch size from a few measured encoder passes. Pure: the recognizer measures.

A pass over B rows of T frames takes about  c + a*B*T + b*B*T*T  seconds and  m*B*T + n*B*T*T  bytes. Larger batches spread
the constant c (kernel launches, and units that small batches leave idle) over more frames, and need more memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from fastscribe.config import ModelConfig
from fastscribe.cuda.device import free_bytes
from fastscribe.decode.decoder import DecoderMemory
from fastscribe.errors import is_out_of_memory
from fastscribe.families.model import Model
from fastscribe.pipeline.batching import Budget
from fastscribe.types import Features, Float64Array

# (rows, frames) to measure: two lengths, to separate the linear from the quadratic terms, and a fourfold range of sizes.
SHAPES = ((8, 128), (32, 128), (128, 128), (8, 512), (32, 512))
_MAX_OVERHEAD = 0.02  # largest share of the constant in a full batch's time
_MEMORY_SHARE = 0.7  # of free memory; the rest is for decoding, the front end and the allocator's rounding
# Three quarters of an hour of audio. Matrices of this height fill any GPU. A larger batch leaves the device idle for longer
# while the first batch is read and the last batch's text is made.
_MAX_FRAMES = 32_768
MIN_FRAMES = 2_048


@dataclass(frozen=True)
class Pass:
    """One measured encoder pass."""

    rows: int
    frames: int
    seconds: float
    bytes: float


@dataclass(frozen=True)
class CostModel:
    """Coefficients of an encoder pass: c, a and b, then m and n, of the formulas above."""

    overhead_s: float
    frame_s: float
    frame2_s: float
    frame_bytes: float
    frame2_bytes: float


def fit(passes: Sequence[Pass]) -> CostModel:
    """Fit the coefficients by non-negative least squares over relative errors."""
    linear = np.array([p.rows * p.frames for p in passes], dtype=np.float64)
    quadratic = np.array([p.rows * p.frames**2 for p in passes], dtype=np.float64)
    seconds = _non_negative([np.ones_like(linear), linear, quadratic], np.array([p.seconds for p in passes]))
    size = _non_negative([linear, quadratic], np.array([p.bytes for p in passes]))
    return CostModel(*map(float, seconds), *map(float, size))


def budget(
    model: CostModel,
    free_bytes: float,
    decoder_memory: DecoderMemory = DecoderMemory(),  # noqa: B008 - frozen
) -> Budget:
    """Return the smallest budget in which the constant is at most 2 % of the time, limited by memory.

    A decoder with much memory per frame (attention) reads all its weights at each step, for any number of rows. It gets the
    largest batch that fits.

    Args:
        model: The fitted cost of an encoder pass.
        free_bytes: Free device memory.
        decoder_memory: Memory that the decoder needs beside the encoder's.
    """
    enough = model.overhead_s / (_MAX_OVERHEAD * model.frame_s) if model.frame_s > 0 else _MAX_FRAMES
    if decoder_memory.frame_bytes:
        enough = _MAX_FRAMES
    frame_bytes = model.frame_bytes + decoder_memory.frame_bytes
    fitting = _MEMORY_SHARE * free_bytes / frame_bytes if frame_bytes > 0 else _MAX_FRAMES
    quadratic_at_frames = frame_bytes / model.frame2_bytes if model.frame2_bytes > 0 else math.inf
    overhead_frames_per_row = decoder_memory.row_bytes / frame_bytes if frame_bytes > 0 else 0.0
    return Budget(
        max(1.0, min(max(enough, MIN_FRAMES), _MAX_FRAMES, fitting)), quadratic_at_frames, overhead_frames_per_row
    )


def budget_after_out_of_memory(passes: Sequence[Pass], decoder_memory: DecoderMemory) -> Budget:
    """Return the budget after an out-of-memory error: the largest pass that fitted, less the decoder's share."""
    overhead_frames_per_row = (
        decoder_memory.row_bytes / decoder_memory.frame_bytes if decoder_memory.frame_bytes else 0.0
    )
    if not passes:
        return Budget(MIN_FRAMES, overhead_frames_per_row=overhead_frames_per_row)
    largest = max(passes, key=lambda one: one.rows * one.frames)
    frames = largest.rows * largest.frames
    share = largest.bytes / (largest.bytes + decoder_memory.frame_bytes * frames) if decoder_memory.frame_bytes else 1.0
    return Budget(max(1.0, share * frames), overhead_frames_per_row=overhead_frames_per_row)


def _non_negative(columns: Sequence[Float64Array], target: Float64Array) -> Float64Array:
    """Fit target ~ sum of columns by relative least squares. Drop the most negative coefficient until none is negative."""
    kept = list(range(len(columns)))
    while True:
        matrix = np.stack([columns[index] / target for index in kept], axis=1)
        scale = np.linalg.norm(matrix, axis=0)
        solution = np.linalg.lstsq(matrix / scale, np.ones_like(target), rcond=None)[0] / scale
        worst = int(np.argmin(solution))
        if solution[worst] >= 0 or len(kept) == 1:
            break
        kept.pop(worst)
    coefficients = np.zeros(len(columns))
    coefficients[kept] = np.maximum(solution, 0.0)
    return coefficients


# The batch budget of a GPU: measured with a few encoder passes over noise. The functions above make a budget of them.


def measured_budget(models: Sequence[Model], decoder_memory: DecoderMemory, device: torch.device) -> Budget:
    """Return the budget for batches that all these models encode.

    Args:
        models: The recogniser's first; the frames are those of its encoder.
        decoder_memory: What its decoder needs.
        device: The GPU that they are on.
    """
    passes: list[Pass] = []
    try:
        for rows, frames in SHAPES:
            passes.append(_measure(models, rows, frames, device))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # the measurement used none of the shared streams
    if len(passes) < len(SHAPES):
        return budget_after_out_of_memory(passes, decoder_memory)
    return budget(fit(passes), free_bytes(device), decoder_memory)


def _measure(models: Sequence[Model], rows: int, num_frames: int, device: torch.device) -> Pass:
    """Measure an encoder pass over noise: the second of two, so that one-time work is not counted."""
    frame_s = models[0].config.frame_s
    work = [(model.encoder, _noise(model.config, rows, num_frames * frame_s, device)) for model in models]
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.synchronize(device)
        start = perf_counter()
        with torch.inference_mode():
            _ = [encoder(features) for encoder, features in work]  # all outputs are kept until a batch is decoded
        torch.cuda.synchronize(device)
        seconds = perf_counter() - start
    return Pass(rows, num_frames, seconds, torch.cuda.max_memory_allocated(device) - before)


def _noise(config: ModelConfig, rows: int, seconds: float, device: torch.device) -> Features:
    """Return random features of as much audio."""
    mel_frames = round(seconds * config.features.sample_rate) // config.features.hop_length
    mel_BMT = torch.randn(rows, config.features.num_mels, mel_frames, device=device)
    return Features(mel_BMT, torch.full((rows,), mel_frames, device=device))
