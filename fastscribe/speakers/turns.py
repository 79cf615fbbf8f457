"""Turns of speakers: from a speaker model's probabilities. Pure.

Shapes: T frames, N speakers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastscribe.types import Float32Array, Turn

_THRESHOLD = 0.5  # a speaker speaks while the probability is above it; NeMo's default too
_OVERLAP_SHARE = 3  # a window shares 1/3 of its length with the next one


def windows(num_frames: int, max_frames: int) -> list[tuple[int, int]]:
    """Return the windows (begin, end) in frames that cover a recording; neighbours overlap, none is longer than max_frames."""
    if num_frames <= max_frames:
        return [(0, num_frames)]
    step = max(1, max_frames - max_frames // _OVERLAP_SHARE)
    begins = [*range(0, num_frames - max_frames, step), num_frames - max_frames]
    return [(begin, begin + max_frames) for begin in begins]


def stitched(parts: Sequence[tuple[int, Float32Array]]) -> Float32Array:
    """Return the probabilities [T, N] of a recording from those of its windows.

    A window numbers its speakers by itself. They get the numbers with which they agree best where the window overlaps the ones
    before; who is silent there gets a number that is left. Each window counts from the middle of that overlap on.

    Args:
        parts: First frame and probabilities [T, N] of each window, in order.
    """
    whole_TN = parts[0][1]
    for begin, part_TN in parts[1:]:
        shared = min(len(whole_TN) - begin, len(part_TN))
        order = _matched(whole_TN[begin : begin + shared], part_TN[:shared])
        own = shared // 2
        whole_TN = np.concatenate([whole_TN[: begin + own], part_TN[own:, order]])
    return whole_TN


def _matched(before_TN: Float32Array, after_TN: Float32Array) -> list[int]:
    """Return, for each speaker before, the number of the same speaker after: the best agreement first."""
    agreement_NN = before_TN.T.astype(np.float64) @ after_TN
    order = [0] * len(agreement_NN)
    for _ in order:
        before, after = np.unravel_index(int(agreement_NN.argmax()), agreement_NN.shape)
        order[before] = int(after)
        agreement_NN[before], agreement_NN[:, after] = -1.0, -1.0
    return order


def turns_of(
    speakers_TN: Float32Array, frame_s: float, duration_s: float, names: Sequence[str] | None = None
) -> tuple[Turn, ...]:
    """Return the turns, in the order in which they begin. Turns of different speakers may overlap.

    Args:
        speakers_TN: Probability that each speaker speaks.
        frame_s: Length of a frame in seconds.
        duration_s: Length of the recording, beyond which no turn lasts.
        names: Of the speakers, in the order in which they begin to speak; "speaker 3" is the third one without a name.
    """
    is_speech_TN = np.pad(speakers_TN > _THRESHOLD, ((1, 1), (0, 0)))
    change_TN = np.diff(is_speech_TN.astype(np.int8), axis=0)
    found = []
    for number in range(speakers_TN.shape[1]):
        begins, ends = (np.flatnonzero(change_TN[:, number] == sign) for sign in (1, -1))
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        found += [(begin * frame_s, min(end * frame_s, duration_s), number) for begin, end in spans]
    found.sort()
    numbers = list(dict.fromkeys(number for _, _, number in found))
    name_of = {number: speaker_name(place, names) for place, number in enumerate(numbers)}
    return tuple(Turn(start_s, end_s, name_of[number]) for start_s, end_s, number in found if start_s < end_s)


def speaker_name(place: int, names: Sequence[str] | None) -> str:
    """Return the name of a speaker, counted from 0 in the order in which they begin to speak."""
    return names[place] if names is not None and place < len(names) else f"speaker {place + 1}"
