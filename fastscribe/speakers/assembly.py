"""A recording's transcript with its speakers: words are given to those whose turns are known.

A word is of the speaker whose turns overlap it most. If several overlap it equally, it is of the speaker of the word before, if
this is one of them. A word outside all turns is of the nearest one. Segments end where the speaker changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

import numpy as np

from fastscribe.text.transcript import make_segment
from fastscribe.types import Alternative, Float64Array, Gap, Segment, Token, Transcript, Turn, Word

_MIN_WORD_S = 0.01  # punctuation may take no time
_EQUAL_S = 1e-6
Timed = TypeVar("Timed", Word, Gap, Alternative)


def with_speakers(transcript: Transcript, turns: Sequence[Turn]) -> Transcript:
    """Return the transcript with a speaker for each word, segment, token, gap and alternative.

    Args:
        transcript: A recording's transcript without speakers.
        turns: Who speaks when, on the recording's clock. Without any, no word gets a speaker.
    """
    if not turns:
        return transcript
    table = _TurnTable(turns)
    words = table.name(transcript.words)
    segments, at = [], 0
    for segment in transcript.segments:
        own = words[at : at + len(segment.words)]
        at += len(segment.words)
        segments += _split(segment, own)
    nbest = tuple(replace(one, words=tuple(table.name(one.words))) for one in table.name(transcript.nbest))
    return replace(
        transcript,
        segments=tuple(segments),
        tokens=tuple(_of_words(transcript.tokens, words)),
        gaps=tuple(table.name(transcript.gaps)),
        nbest=nbest,
        speakers=tuple(table.speakers),
        turns=tuple(turns),
    )


def _split(segment: Segment, words: Sequence[Word]) -> list[Segment]:
    """Return the parts of a segment of one speaker each."""
    parts = [list(group) for _, group in groupby(words, lambda word: word.speaker)]
    if len(parts) == 1:
        return [replace(segment, words=tuple(words), speaker=words[0].speaker)]
    return [replace(make_segment(part), line=segment.line, speaker=part[0].speaker) for part in parts]


def _of_words(tokens: Sequence[Token], words: Sequence[Word]) -> list[Token]:
    """Give each token the speaker of the word in which it begins."""
    if not words:
        return list(tokens)
    starts = [word.start_s for word in words]
    places = [max(0, bisect_right(starts, token.start_s + _EQUAL_S) - 1) for token in tokens]
    return [token._replace(speaker=words[at].speaker) for token, at in zip(tokens, places, strict=True)]


class _TurnTable:
    """Turns by speaker, for questions about many spans at once.

    Attributes:
        speakers: The names, in the order in which they begin to speak.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        ordered = sorted(turns, key=lambda turn: turn.start_s)
        self.speakers = list(dict.fromkeys(turn.speaker for turn in ordered))
        self._spans = [_joined([turn for turn in ordered if turn.speaker == name]) for name in self.speakers]

    def name(self, items: Sequence[Timed]) -> list[Timed]:
        """Return the items with their speakers."""
        named, last = [], -1
        starts = np.array([item.start_s for item in items], np.float64)
        ends = np.maximum([item.end_s for item in items], starts + _MIN_WORD_S)
        overlaps = np.array([_overlap(spans, starts, ends) for spans in self._spans]).T
        distances = np.array([_distance(spans, starts, ends) for spans in self._spans]).T
        for item, overlap, distance in zip(items, overlaps, distances, strict=True):
            most = overlap.max()
            if most <= _EQUAL_S:
                last = int(distance.argmin())
            elif last < 0 or overlap[last] < most - _EQUAL_S:
                last = int(overlap.argmax())
            named.append(_named(item, self.speakers[last]))
        return named


def _named(item: Timed, speaker: str) -> Timed:
    return item._replace(speaker=speaker) if isinstance(item, Gap) else replace(item, speaker=speaker)


def _joined(turns: Sequence[Turn]) -> Float64Array:
    """Return a speaker's turns as spans that do not overlap [number, (start, end)], in order."""
    spans: list[list[float]] = []
    for turn in turns:
        if spans and turn.start_s <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], turn.end_s)
        else:
            spans.append([turn.start_s, turn.end_s])
    return np.array(spans, np.float64)


def _overlap(spans: Float64Array, starts: Float64Array, ends: Float64Array) -> Float64Array:
    """Return the seconds that a speaker speaks within each [start, end]."""
    times = spans.ravel()
    spoken = np.repeat(np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])]), 2)[1:-1]  # until each of them
    seconds: Float64Array = np.interp(ends, times, spoken) - np.interp(starts, times, spoken)
    return seconds


def _distance(spans: Float64Array, starts: Float64Array, ends: Float64Array) -> Float64Array:
    """Return the seconds from each [start, end], which is outside all turns, to the speaker's nearest turn."""
    after = np.searchsorted(spans[:, 0], ends)
    begins, lasts = np.append(spans[:, 0], np.inf), np.append(-np.inf, spans[:, 1])
    seconds: Float64Array = np.minimum(begins[after] - ends, starts - lasts[after])
    return seconds
