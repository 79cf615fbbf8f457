"""The passages of transcripts of which the model is least certain. Pure.

A passage is a segment, cut at its longest pauses if it is long. It is as uncertain as its two least certain words are on
average: one is often a small word that the model is never sure of.
"""

from __future__ import annotations

import heapq
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import NamedTuple

from fastscribe.results.rows import ResultRow
from fastscribe.types import Transcript, Word

_MAX_PASSAGE_S = 15.0
_NUM_WORDS = 2  # whose mean confidence is the passage's
_REDACTED = re.compile(r"\[(?:name|number|email)\]")
_MARGIN_S = 0.3  # of audio before and after the words, or up to the middle of a shorter pause


class Passage(NamedTuple):
    """Words to check, with the audio to hear.

    Attributes:
        transcript: Their transcript.
        row: The transcript's row.
        words: The words.
        start_s: Begin of the audio, on the clock of the transcript.
        end_s: Its end.
        confidence: Mean of the least certain words.
    """

    transcript: Transcript
    row: ResultRow
    words: tuple[Word, ...]
    start_s: float
    end_s: float
    confidence: float


def least_certain(results: Iterable[tuple[Transcript, ResultRow]], num_passages: int) -> list[Passage]:
    """Return the passages of the lowest confidence, the lowest first. Memory does not grow with the results.

    Args:
        results: Transcripts whose segments have their own words.
        num_passages: How many.
    """
    found: list[tuple[float, int, Passage]] = []  # the most certain one is popped first
    order = count()
    for transcript, row in results:
        for passage in passages_of(transcript, row):
            item = -passage.confidence, -next(order), passage
            if len(found) < num_passages:
                heapq.heappush(found, item)
            elif item[:2] > found[0][:2]:
                heapq.heapreplace(found, item)
    return [passage for _, _, passage in sorted(found, key=lambda item: item[:2], reverse=True)]


def passages_of(transcript: Transcript, row: ResultRow) -> Iterator[Passage]:
    """Yield the passages of a transcript, in order. What was redacted is nothing to check, so it does not count."""
    end_s = transcript.audio.duration_s
    timed = [word for word in transcript.words if _is_timed(word)]
    starts_s, ends_s = sorted(word.start_s for word in timed), [0.0, *sorted(word.end_s for word in timed)]
    for segment in transcript.segments:
        for words in _cut([word for word in segment.words if _is_timed(word)]):
            to_check = [word for word in words if not _REDACTED.search(word.text)]
            if not to_check:
                continue
            start_s, stop_s = words[0].start_s, max(word.end_s for word in words)
            before_s = ends_s[bisect_right(ends_s, start_s) - 1]
            next_word = bisect_left(starts_s, stop_s)
            after_s = starts_s[next_word] if next_word < len(starts_s) else end_s
            yield Passage(
                transcript,
                row,
                tuple(words),
                max(start_s - _MARGIN_S, (before_s + start_s) / 2, 0.0),
                min(stop_s + _MARGIN_S, (stop_s + max(after_s, stop_s)) / 2),
                _confidence(to_check),
            )


def _is_timed(word: Word) -> bool:
    return math.isfinite(word.start_s) and math.isfinite(word.end_s)


def _cut(words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    """Yield parts of at most _MAX_PASSAGE_S, or single words: each cut is at the longest pause."""
    if not words:
        return
    if len(words) == 1 or words[-1].end_s - words[0].start_s <= _MAX_PASSAGE_S:
        yield words
        return
    pauses_s = [after.start_s - before.end_s for before, after in pairwise(words)]
    middle = len(pauses_s) / 2
    cut = max(range(len(pauses_s)), key=lambda at: (pauses_s[at], -abs(at - middle))) + 1
    yield from _cut(words[:cut])
    yield from _cut(words[cut:])


def _confidence(words: Sequence[Word]) -> float:
    confidences = sorted(0.0 if math.isnan(word.confidence) else word.confidence for word in words)
    lowest = confidences[:_NUM_WORDS]
    return sum(lowest) / len(lowest)
