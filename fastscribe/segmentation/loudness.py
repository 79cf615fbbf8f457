"""Frame-by-frame loudness of a recording, and its quiet frames.

Frames are short (FRAME_S). Their energy is the variance of their samples, so a constant offset does not count. Quiet is
relative: for each minute and its neighbours, the 1st percentile is the floor and the 95th the level, and a frame near the
floor is quiet. If the two are close (steady noise, music without a pause), no frame is quiet, except digital silence.
"""

from __future__ import annotations

import numpy as np

from fastscribe.audio.read import blocks
from fastscribe.types import AudioInfo, BoolArray, Float64Array

FRAME_S = 0.02
SILENCE = 1e-9  # variance of 16-bit samples that differ by one step now and then
_FRAMES_PER_BLOCK = 500
_SILENCE_DB = -90.0
_LOCAL_S = 60.0
_MAX_RANGE_DB = 50.0  # from the level down to the floor, so that near-silence does not make soft speech loud
_MIN_CONTRAST_DB = 9.0
_QUIET_SHARE = 0.3  # quiet: up to this share of the range from the floor to the level, in dB


def frame_length(sample_rate: int) -> int:
    """Return the samples in a frame."""
    return max(1, round(FRAME_S * sample_rate))


def frame_energy(audio: AudioInfo, frame_samples: int) -> Float64Array:
    """Return the variance of each frame; the last frame is zero-padded.

    Args:
        audio: The recording, or a part of it.
        frame_samples: Samples in a frame.

    Raises:
        AudioError: As read().
    """
    energy = np.zeros(-(-audio.num_samples // frame_samples), dtype=np.float64)
    first = 0
    for block in blocks(audio, frame_samples * _FRAMES_PER_BLOCK):
        num_frames = -(-len(block) // frame_samples)
        padded = np.pad(block, (0, num_frames * frame_samples - len(block)))
        energy[first : first + num_frames] = padded.reshape(num_frames, frame_samples).var(axis=1, dtype=np.float64)
        first += num_frames
    return energy


def decibels(energy: Float64Array) -> Float64Array:
    """Return the energy in dB, digital silence as -90 dB."""
    return np.asarray(10.0 * np.log10(np.maximum(energy, SILENCE)))


def floor_and_level(energy: Float64Array) -> tuple[float, float]:
    """Return the 1st and the 95th percentile of the frames, in dB, without digital silence.

    Speech has closures, so the 1st percentile is near the noise floor even in speech without pauses.
    """
    audible = energy[energy > SILENCE]
    if len(audible) == 0:
        return _SILENCE_DB, _SILENCE_DB
    floor, level = np.percentile(decibels(audible), (1.0, 95.0))
    return max(float(floor), float(level) - _MAX_RANGE_DB), float(level)


def quiet_frames(energy: Float64Array, frame_s: float) -> BoolArray:
    """Return True for each frame near the floor of its minute and the minutes beside it."""
    energy_db = decibels(energy)
    quiet = energy <= SILENCE
    step = max(1, round(_LOCAL_S / frame_s))
    for begin in range(0, len(energy), step):
        floor, level = floor_and_level(energy[max(0, begin - step) : begin + 2 * step])
        if level - floor >= _MIN_CONTRAST_DB:
            here = slice(begin, begin + step)
            quiet[here] |= energy_db[here] <= floor + _QUIET_SHARE * (level - floor)
    return quiet


def runs(mask: BoolArray) -> list[tuple[int, int]]:
    """Return (first, last + 1) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def fill_short_gaps(mask: BoolArray, max_frames: int) -> BoolArray:
    """Return the mask with stretches of at most `max_frames` False between two True set to True."""
    filled: BoolArray = mask.copy()
    for first, last in runs(~mask):
        if first > 0 and last < len(mask) and last - first <= max_frames:
            filled[first:last] = True
    return filled
