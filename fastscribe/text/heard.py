"""Which words of an aligned text were not spoken, and which speech is not in the text. Pure.

Forced alignment finds a place for every word. A word that nobody spoke gets frames in which the model hears blank or something
else, so the probabilities of its tokens there are far lower than those of a spoken word, even of one that greedy decoding
spells in another way. Speech that is not in the text has tokens of greedy decoding between the words. The thresholds were
chosen on recordings with words taken out of their texts or put into them (docs/log.md, 2026-11-23).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

MIN_WORD_LOGPROB = -5.0  # mean over the word's tokens of the natural log of their best frame's probability
_MIN_EXTRA_TOKENS = 2
_MIN_EXTRA_LOGPROB = math.log(0.5)  # mean over the tokens
_MARGIN_FRAMES = 1  # tokens this near to a word belong to it


class HeardToken(NamedTuple):
    """A token of greedy decoding."""

    id: int
    first: int  # frame
    end: int  # the frame after its last
    logprob: float


def is_missing(token_logprobs: Sequence[float]) -> bool:
    """Return True for a word that was not spoken.

    Args:
        token_logprobs: For each token of the word with a letter or a digit, the highest natural-log probability that it has
            in its frames. A word without such tokens is not judged.
    """
    return bool(token_logprobs) and sum(token_logprobs) / len(token_logprobs) < MIN_WORD_LOGPROB


def extra_speech(
    heard: Sequence[HeardToken], has_letters: Sequence[bool], spoken: Sequence[tuple[int, int]], num_frames: int
) -> list[tuple[int, int]]:
    """Return the frame ranges of speech between the words of a text.

    Args:
        heard: The tokens of greedy decoding, in order.
        has_letters: For each token of the vocabulary, True if its text has a letter or a digit.
        spoken: The frame ranges of the words that were heard, in order.
        num_frames: Frames of the recording.
    """
    borders = [(0, 0), *spoken, (num_frames, num_frames)]
    found, place = [], 0
    letters = [token for token in heard if has_letters[token.id]]
    for (_, low), (high, _) in pairwise(borders):
        low_frame, high_frame = low + _MARGIN_FRAMES * (low > 0), high - _MARGIN_FRAMES * (high < num_frames)
        while place < len(letters) and letters[place].first < low_frame:
            place += 1
        inside = []
        while place < len(letters) and letters[place].end <= high_frame:
            inside.append(letters[place])
            place += 1
        is_clear = sum(token.logprob for token in inside) >= len(inside) * _MIN_EXTRA_LOGPROB
        if len(inside) >= _MIN_EXTRA_TOKENS and is_clear:
            found.append((inside[0].first, inside[-1].end))
    return found
