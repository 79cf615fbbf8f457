"""A row that is shorter than its model takes lies in the middle of silence. Imported when one comes.

NeMo's loader does so for Canary: an utterance below 1 s gets zeros on both sides. Two cuts of negative length say where it
lies, and the times of its tokens count from its own beginning again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fastscribe.types import Cut, Hypothesis, SampleArray


def centre(row_S: SampleArray, length: int, least: int, rate: int) -> tuple[Cut, Cut]:
    """Move the first `length` samples of a row into the middle of its first `least`, with zeros around them.

    Returns:
        The silence before and after them, as cuts of negative length.
    """
    before = (least - length + 1) // 2  # of an odd number of zeros the most are before, as there
    row_S[before : before + length] = row_S[:length].copy()
    row_S[:before] = row_S[before + length : least] = 0
    return Cut(0.0, -before / rate), Cut((before + length) / rate, (before + length - least) / rate)


def without_silence(hypothesis: Hypothesis, cuts: Sequence[Cut], frame_s: float) -> Hypothesis:
    """Return the hypothesis of a row that centre() made with its frames counted in the utterance.

    Times in the silence become the nearest ones of the utterance. Tokens that are spread evenly are spread over it.
    """
    before, after = cuts
    first = round(-before.duration_s / frame_s)
    count = max(1, math.ceil((after.at_s + before.duration_s) / frame_s))
    starts = hypothesis.token_frames
    ends = [start + duration for start, duration in zip(starts, hypothesis.token_durations, strict=True)]
    if hypothesis.is_timed:
        moved = [
            (min(max(start - first, 0), count), min(max(end - first, 0), count))
            for start, end in zip(starts, ends, strict=True)
        ]
    else:
        whole = max(ends, default=1)
        moved = [(start * count // whole, end * count // whole) for start, end in zip(starts, ends, strict=True)]
    return replace(
        hypothesis,
        token_frames=tuple(start for start, _ in moved),
        token_durations=tuple(end - start for start, end in moved),
        nbest=tuple(without_silence(one, cuts, frame_s) for one in hypothesis.nbest),
    )
