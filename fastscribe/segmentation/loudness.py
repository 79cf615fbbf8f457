"""How loud a recording is from frame to frame, and which of its frames are quiet for the place where they are.

Frames are short (FRAME_S) and their energy is the variance of their samples, so a constant offset does not count. What is
quiet is relative: within a minute and its neighbours, the quietest hundredth is taken for the floor and the loudest twentieth
for the level, and only what lies near the floor is quiet. Where the two are close (steady noise, music without a pause)
nothing is quiet; what is all but digital silence always is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastscribe.audio.read import blocks
from fastscribe.types import AudioInfo, BoolArray, Float64Array

FRAME_S = 0.02
SILENCE = 1e-9  # variance of 16-bit samples that differ by one step now and then
_FRAMES_PER_BLOCK = 500
_SILENCE_DB = -90.0
_LOCAL_S = 60.0
_DEEPEST_DB = 50.0  # below the level; digital silence must not make soft speech loud
_MIN_CONTRAST_DB = 9.0
_QUIET_SHARE = 0.3  # of the way from the floor to the level, in dB


def frame_length(sample_rate: int) -> int:
    return max(1, round(FRAME_S * sample_rate))


def frame_energy(
    audio: AudioInfo, frame_samples: int, channel: int | None, start: int = 0, num_samples: int | None = None
) -> Float64Array:
    """Variance of each frame of a stretch (of all by default), float64; a last frame that is not full counts, samples that
    are missing are 0. Raises AudioError like read()."""
    num_samples = audio.num_samples - start if num_samples is None else num_samples
    stretch = replace(audio, start=audio.start + start, num_samples=num_samples)
    energy = np.zeros(-(-num_samples // frame_samples), dtype=np.float64)
    first = 0
    for block in blocks(stretch, channel=channel, block_samples=frame_samples * _FRAMES_PER_BLOCK):
        num_frames = -(-len(block) // frame_samples)
        padded = np.pad(block, (0, num_frames * frame_samples - len(block)))
        energy[first : first + num_frames] = padded.reshape(num_frames, frame_samples).var(axis=1, dtype=np.float64)
        first += num_frames
    return energy


def decibels(energy: Float64Array) -> Float64Array:
    return 10.0 * np.log10(np.maximum(energy, SILENCE))


def floor_and_level(energy: Float64Array) -> tuple[float, float]:
    """What a hundredth of the frames stay below and a twentieth exceed, in dB; digital silence does not count.

    Speech has closures, so the first is near the floor even where nobody pauses.
    """
    audible = energy[energy > SILENCE]
    if len(audible) == 0:
        return _SILENCE_DB, _SILENCE_DB
    floor, level = np.percentile(decibels(audible), (1.0, 95.0))
    return max(float(floor), float(level) - _DEEPEST_DB), float(level)


def quiet_frames(energy: Float64Array, frame_s: float) -> BoolArray:
    """True where a frame is near the floor of its minute and the minutes beside it."""
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
    """(first, last + 1) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def joined(mask: BoolArray, most: int) -> BoolArray:
    """The mask with stretches of at most `most` False between two True filled up."""
    filled: BoolArray = mask.copy()
    for first, last in runs(~mask):
        if first > 0 and last < len(mask) and last - first <= most:
            filled[first:last] = True
    return filled
