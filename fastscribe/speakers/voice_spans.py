"""Where to hear a speaker alone: the stretches of a recording that a voice print is made of. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from fastscribe.types import Transcript, Turn

Span = tuple[float, float]  # begin and end in seconds

MIN_STRETCH_S, MAX_STRETCH_S = 1.0, 10.0  # shorter ones tell little of a voice; longer ones are cut
MIN_SPEECH_S, MAX_SPEECH_S = 3.0, 20.0  # of all stretches; a print of less is not made, more is not heard
_PAUSE_S = 0.6  # words with a longer pause between them are two turns


def turns_of_words(transcript: Transcript) -> list[Turn]:
    """Return a transcript's turns by its words; a longer pause divides them."""
    turns: list[Turn] = []
    for speaker in transcript.speakers:
        begin_s = end_s = -math.inf
        for word in (one for one in transcript.words if one.speaker == speaker):
            if word.start_s - end_s > _PAUSE_S:
                turns += [Turn(begin_s, end_s, speaker)] if end_s > begin_s else []
                begin_s = word.start_s
            end_s = max(end_s, word.end_s)
        turns += [Turn(begin_s, end_s, speaker)] if end_s > begin_s else []
    return turns


def alone(turns: Iterable[Turn]) -> dict[str, list[Span]]:
    """Return where each speaker speaks and no other one does, in order."""
    edges: list[tuple[float, int, str]] = []
    for turn in turns:
        edges += [(turn.start_s, 1, turn.speaker), (turn.end_s, -1, turn.speaker)]
    edges.sort()
    active: dict[str, int] = {}
    found: dict[str, list[Span]] = {}
    for (time_s, change, speaker), (next_s, *_) in pairwise([*edges, (math.inf, 0, "")]):
        active[speaker] = active.get(speaker, 0) + change
        if not active[speaker]:
            del active[speaker]
        if len(active) != 1 or next_s <= time_s:
            continue
        spans = found.setdefault(next(iter(active)), [])
        if spans and spans[-1][1] == time_s:
            spans[-1] = spans[-1][0], next_s
        else:
            spans.append((time_s, next_s))
    return found


def choose_stretches(spans: Sequence[Span]) -> list[Span]:
    """Return the stretches to make a voice print of, the longest first; none if they are too short together."""
    stretches = sorted((part for span in spans for part in _parts(span)), key=lambda part: part[0] - part[1])
    chosen: list[Span] = []
    total_s = 0.0
    for begin_s, end_s in stretches:
        end_s = min(end_s, begin_s + MAX_SPEECH_S - total_s)
        if end_s - begin_s < MIN_STRETCH_S:
            break
        chosen.append((begin_s, end_s))
        total_s += end_s - begin_s
    return chosen if total_s >= MIN_SPEECH_S else []


def _parts(span: Span) -> list[Span]:
    """Cut a span into equal parts that are not too long."""
    begin_s, end_s = span
    number = max(1, math.ceil((end_s - begin_s) / MAX_STRETCH_S))
    step_s = (end_s - begin_s) / number
    return [(begin_s + at * step_s, begin_s + (at + 1) * step_s) for at in range(number)]


def example(spans: Sequence[Span]) -> Span:
    """Return a stretch to listen to: the longest, up to MAX_STRETCH_S."""
    begin_s, end_s = max(spans, key=lambda span: span[1] - span[0], default=(0.0, 0.0))
    return begin_s, min(end_s, begin_s + MAX_STRETCH_S)
