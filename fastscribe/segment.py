"""Long recordings into utterances that a model can take at once, cut where it is quietest.

The choice of the cuts is pure (choose_cuts) and sees nothing but the energy of short frames, which split() gathers in
one pass in bounded memory. There is no voice activity detection and nothing is dropped: the pieces tile the recording.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from fastscribe.audio.read import blocks
from fastscribe.types import AudioInfo, Utterance

FRAME_S = 0.02
SMOOTH_S = 0.24  # a pause between words, not a stop consonant's closure
MIN_PIECE_SHARE = 0.7  # a cut is looked for in the last 30 % before the limit
FRAMES_PER_BLOCK = 500


def split(audio: AudioInfo, max_utterance_s: float, channel: int | None) -> tuple[Utterance, ...]:
    """Utterances of at most `max_utterance_s` (0 = no limit) that tile the recording without gap or overlap.

    Reads the samples only of what is longer than that, once, and then raises AudioError like read().
    """
    max_samples = int(max_utterance_s * audio.sample_rate)
    if max_utterance_s <= 0 or audio.num_samples <= max_samples:
        return (Utterance(audio, 0, audio.num_samples),)
    frame_samples = max(1, min(round(FRAME_S * audio.sample_rate), max_samples // 10))
    frame_s = frame_samples / audio.sample_rate
    cuts = choose_cuts(frame_energy(audio, frame_samples, channel), frame_s, max_utterance_s)
    edges = [0, *(cut * frame_samples for cut in cuts), audio.num_samples]
    return tuple(Utterance(audio, begin, end - begin) for begin, end in itertools.pairwise(edges))


def frame_energy(audio: AudioInfo, frame_samples: int, channel: int | None) -> np.ndarray:
    """Variance of each frame's samples; a last frame that is not full counts, samples that are missing are 0."""
    energy = np.zeros(-(-audio.num_samples // frame_samples), dtype=np.float64)
    first = 0
    for block in blocks(audio, channel=channel, block_samples=frame_samples * FRAMES_PER_BLOCK):
        num_frames = -(-len(block) // frame_samples)
        padded = np.pad(block, (0, num_frames * frame_samples - len(block)))
        energy[first : first + num_frames] = padded.reshape(num_frames, frame_samples).var(axis=1, dtype=np.float64)
        first += num_frames
    return energy


def choose_cuts(energy: np.ndarray, frame_s: float, max_s: float) -> list[int]:
    """Frame indices to cut in front of, so that no piece is longer than `max_s` and each cut lies in a quiet place.

    No piece is much shorter than a third of `max_s` either: what is left at the end is shared between the last two.
    """
    max_frames = max(1, int(max_s / frame_s + 1e-6))
    loudness = _loudness_around(energy, max(1, round(SMOOTH_S / frame_s / 2)))
    cuts, begin = [], 0
    while len(energy) - begin > max_frames:
        low, high = _search_range(len(energy) - begin, max_frames)
        begin += low + _quietest(loudness[begin + low : begin + high + 1])
        cuts.append(begin)
    return cuts


def _search_range(left: int, max_frames: int) -> tuple[int, int]:
    """The shortest and the longest that the next piece may be, when `left` frames are still to be cut."""
    if left > (1 + MIN_PIECE_SHARE) * max_frames:
        return math.ceil(MIN_PIECE_SHARE * max_frames), max_frames
    longest = min(max_frames, int(MIN_PIECE_SHARE * left))  # one cut is enough: neither piece may take more than 70 %
    return left - longest, longest


def _loudness_around(energy: np.ndarray, half: int) -> np.ndarray:
    """For each frame index, the mean energy of `half` frames before it and `half` from it on; length N + 1."""
    if len(energy) == 0:
        return np.zeros(1)
    sums = np.convolve(np.pad(energy, half, mode="edge"), np.ones(2 * half), mode="valid")
    return sums / (2 * half)


def _quietest(loudness: np.ndarray) -> int:
    """Index of the minimum; of a silence that is flat, the middle of its last stretch."""
    lowest = np.flatnonzero(loudness == loudness.min())
    gaps = np.flatnonzero(np.diff(lowest) > 1)
    stretch = lowest[gaps[-1] + 1 :] if len(gaps) else lowest
    return int(stretch[len(stretch) // 2])
