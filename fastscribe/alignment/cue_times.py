"""When the words and cues of known subtitles are, of which some words were not heard. Pure.

A cue begins with its first word and ends with its last one. One of which no word was heard, or that has no words, keeps its
place between the cues around it: its old times move as theirs did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise, zip_longest

import numpy as np

from fastscribe.results.formats.given_cues import GivenCue
from fastscribe.types import Word

_UNHEARD_WORD_S = 0.4  # longest time of a word at the edge of a cue that was not heard or has no letters of the model

Span = tuple[float, float]


def place_cues(
    words: Sequence[Word], ranges: Sequence[range], cues: Sequence[GivenCue], last_s: float
) -> tuple[list[Word], list[Span]]:
    """Return the words, all of them with times, and begin and end of each cue in seconds.

    Args:
        words: The words; one without a time begins and ends at NaN.
        ranges: The words of each cue, in order.
        cues: The cues, in the order of their begins.
        last_s: Length of the recording.
    """
    heard = [_heard_span(words[own.start : own.stop]) for own in ranges]
    given = [(round(cue.start_s, 3), round(cue.end_s, 3)) for cue in cues]  # so no slope between two is infinite
    spans = _with_unheard(heard, given, last_s)
    timed = list(words)
    latest_s = 0.0  # end of the cue before
    for number, (own, span) in enumerate(zip(ranges, spans, strict=True)):
        if heard[number] is None:
            timed[own.start : own.stop] = _spread(words[own.start : own.stop], *span)
            continue
        next_s = next((found[0] for found in heard[number + 1 :] if found is not None), last_s)
        timed[own.start : own.stop] = fill(words[own.start : own.stop], latest_s, next_s, _UNHEARD_WORD_S)
        latest_s = span[1]
        spans[number] = _said_span(timed[own.start : own.stop])
    return timed, spans


def _heard_span(words: Sequence[Word]) -> Span | None:
    timed = [word for word in words if math.isfinite(word.start_s)]
    return (timed[0].start_s, timed[-1].end_s) if timed else None


def _said_span(words: Sequence[Word]) -> Span:
    """Return begin and end of the words that are not missing."""
    said = [word for word in words if not word.missing]
    return said[0].start_s, said[-1].end_s


def _with_unheard(heard: Sequence[Span | None], given: Sequence[Span], last_s: float) -> list[Span]:
    """Return times of all cues: the old times of those that were not heard, moved as those of the cues around them."""
    known = [(old, new) for old, new in zip(given, heard, strict=True) if new is not None]
    points = sorted({(old[side], new[side]) for old, new in known for side in (0, 1)})
    olds = [old for old, _ in points]
    news = np.maximum.accumulate([new for _, new in points]).tolist()

    def moved(time_s: float) -> float:
        outside_s = min(0.0, time_s - olds[0]) + max(0.0, time_s - olds[-1])
        return min(max(0.0, float(np.interp(time_s, olds, news)) + outside_s), last_s)

    return [(moved(old[0]), moved(old[1])) if new is None else new for old, new in zip(given, heard, strict=True)]


def fill(words: Sequence[Word], earliest_s: float, latest_s: float, max_word_s: float = math.inf) -> list[Word]:
    """Return the words with times for those that have none: the pause between their neighbours, in equal parts.

    Args:
        words: The words; one without a time begins and ends at NaN.
        earliest_s: Begin of the pause before the first word with a time.
        latest_s: End of the pause after the last one.
        max_word_s: The longest that a word lasts in these two.
    """
    timed: list[Word] = []
    groups = [list(own) for _, own in groupby(words, lambda word: math.isnan(word.start_s))]
    for own, after in zip_longest(groups, groups[1:]):
        if not math.isnan(own[0].start_s):
            timed += own
            continue
        longest_s = len(own) * max_word_s
        low_s = timed[-1].end_s if timed else earliest_s
        high_s = max(low_s, after[0].start_s if after else min(latest_s, low_s + longest_s))
        timed += _spread(own, low_s if timed else max(low_s, high_s - longest_s), high_s)
    return timed


def _spread(words: Sequence[Word], low_s: float, high_s: float) -> list[Word]:
    """Return the words with times that share a span in equal parts."""
    edges = pairwise(np.linspace(low_s, high_s, len(words) + 1).tolist())
    return [replace(word, start_s=start_s, end_s=end_s) for word, (start_s, end_s) in zip(words, edges, strict=True)]
