"""How large a batch should be, from a few measured passes. Pure: whoever has a device measures.

A pass over B rows of T frames takes about  c + a*B*T + b*B*T*T  seconds and  m*B*T + n*B*T*T  bytes. The constant c (launches,
and units left idle by small batches) is what large batches save; bytes are what they cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastscribe.pipeline.batching import Budget
from fastscribe.types import Float64Array

# (rows, frames) to measure: two lengths, so that linear and quadratic parts can be told apart, and a fourfold size range.
SHAPES = ((8, 128), (32, 128), (128, 128), (8, 512), (32, 512))
_MAX_OVERHEAD = 0.02  # share of a full batch's time that may be the constant
_MEMORY_SHARE = 0.7  # of what is free; the rest is for decoding, the front end and the allocator's rounding
# Three quarters of an hour of audio. Matrices are tall enough by then on any GPU, and the first batch's reading and the last
# one's text, beside which the device has nothing to do, grow with the batch.
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
class Held:
    """Memory that a batch takes while it is decoded, where that is much."""

    frame_bytes: float = 0.0
    row_bytes: float = 0.0  # whatever its length


@dataclass(frozen=True)
class CostModel:
    overhead_s: float
    frame_s: float
    frame2_s: float
    frame_bytes: float
    frame2_bytes: float

    def seconds(self, rows: int, frames: int) -> float:
        return self.overhead_s + rows * (self.frame_s * frames + self.frame2_s * frames**2)

    def bytes(self, rows: int, frames: int) -> float:
        return rows * (self.frame_bytes * frames + self.frame2_bytes * frames**2)


def fit(passes: Sequence[Pass]) -> CostModel:
    """Least squares over relative errors, no coefficient below zero."""
    linear = np.array([p.rows * p.frames for p in passes], dtype=np.float64)
    quadratic = np.array([p.rows * p.frames**2 for p in passes], dtype=np.float64)
    seconds = _non_negative([np.ones_like(linear), linear, quadratic], np.array([p.seconds for p in passes]))
    size = _non_negative([linear, quadratic], np.array([p.bytes for p in passes]))
    return CostModel(*map(float, seconds), *map(float, size))


def budget(model: CostModel, free_bytes: float, held: Held = Held()) -> Budget:
    """The smallest batch in which the constant hardly shows, as far as memory allows.

    A decoder that holds much reads all its weights at each step, for few rows as for many: there the largest batch pays.
    """
    enough = model.overhead_s / (_MAX_OVERHEAD * model.frame_s) if model.frame_s > 0 else _MAX_FRAMES
    if held.frame_bytes:
        enough = _MAX_FRAMES
    frame_bytes = model.frame_bytes + held.frame_bytes
    fitting = _MEMORY_SHARE * free_bytes / frame_bytes if frame_bytes > 0 else _MAX_FRAMES
    bend = frame_bytes / model.frame2_bytes if model.frame2_bytes > 0 else math.inf
    row_frames = held.row_bytes / frame_bytes if frame_bytes > 0 else 0.0
    return Budget(max(1.0, min(max(enough, MIN_FRAMES), _MAX_FRAMES, fitting)), bend, row_frames)


def largest_that_fitted(passes: Sequence[Pass], held: Held) -> Budget:
    """Where memory ran out while passes were measured. What a decoder holds takes its share of the room."""
    row_frames = held.row_bytes / held.frame_bytes if held.frame_bytes else 0.0
    if not passes:
        return Budget(MIN_FRAMES, row_frames=row_frames)
    largest = max(passes, key=lambda one: one.rows * one.frames)
    frames = largest.rows * largest.frames
    share = largest.bytes / (largest.bytes + held.frame_bytes * frames) if held.frame_bytes else 1.0
    return Budget(max(1.0, share * frames), row_frames=row_frames)


def _non_negative(columns: Sequence[Float64Array], target: Float64Array) -> Float64Array:
    """Least squares of target ~ sum of columns in relative terms; the most negative coefficient is dropped until none is."""
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
