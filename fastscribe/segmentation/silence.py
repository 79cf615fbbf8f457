"""Long silence, which a model that learnt on short utterances is not given: it writes words where there is nothing to hear.

Soft speech must stay, so silence is more than quiet. It is long, steady throughout and near the floor of its surroundings:
digital silence, or noise that does not vary as speech does. What is in doubt is decoded. Pure.
"""

from __future__ import annotations

import math

import numpy as np

from fastscribe.segmentation.loudness import decibels, runs
from fastscribe.types import BoolArray, Float64Array

MIN_TRIMMED_S = 2.0  # at the edges of a recording that is one utterance; a shorter recording is never trimmed
_MIN_S = 2.0
_MIN_EDGE_S = 1.0  # at the beginning and the end of a recording
_BEFORE_S, _AFTER_S = 0.24, 0.5  # silence that stays before and after sound
_MAX_VARIATION_DB = 6.0  # between the 5th and the 95th percentile; that of speech is larger

Span = tuple[int, int]


def steady_quiet(energy: Float64Array, quiet: BoolArray) -> BoolArray:
    """Return True for each frame in a stretch of quiet frames whose energy does not vary as that of speech does.

    Args:
        energy: Energy of each frame.
        quiet: True for quiet frames.
    """
    steady = np.zeros(len(quiet), dtype=bool)
    for first, last in runs(quiet):
        level = decibels(energy[first:last])
        for begin, end in runs(level <= np.median(level) + _MAX_VARIATION_DB):  # without soft sound at the edges
            softer, louder = np.percentile(level[begin:end], (5.0, 95.0))
            steady[first + begin : first + end] = louder - softer <= _MAX_VARIATION_DB
    return steady


def find_sound(silent: BoolArray, frame_s: float, min_s: float = _MIN_S, min_edge_s: float = _MIN_EDGE_S) -> list[Span]:
    """Return the frame ranges (begin, end) of a recording without its long silence, in order; none if all is silent.

    Args:
        silent: True for each frame that certainly is no speech.
        frame_s: Length of a frame in seconds.
        min_s: Shortest silence in seconds that is left out within the recording.
        min_edge_s: Shortest silence in seconds that is left out at its beginning and at its end.
    """
    num_frames = len(silent)
    edges = [0]  # where sound begins and ends, in turn
    for first, last in runs(silent):
        is_first, is_last = first == 0, last == num_frames
        if (last - first) * frame_s >= (min_edge_s if is_first or is_last else min_s):
            edges.append(0 if is_first else first + round(_AFTER_S / frame_s))
            edges.append(num_frames if is_last else last - round(_BEFORE_S / frame_s))
    spans = zip(edges[::2], [*edges[1:], num_frames][::2], strict=True)
    return [(begin, end) for begin, end in spans if end > begin]


def trim_silence(silent: BoolArray, frame_s: float) -> list[Span]:
    """Return the frame range of a short recording without long silence at its edges; none if all is silent.

    Silence within it stays: the pieces would be shorter than what the model learnt on.

    Args:
        silent: True for each frame that certainly is no speech.
        frame_s: Length of a frame in seconds.
    """
    return find_sound(silent, frame_s, math.inf, MIN_TRIMMED_S)
