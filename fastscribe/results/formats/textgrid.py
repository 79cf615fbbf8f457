"""Praat's TextGrid, in its long text format: a tier of words and one of segments for each speaker. Pure.

The intervals of a tier must follow each other from 0 to the end, without overlap and none of them empty. So where words or
segments of a speaker overlap, the earlier one ends where the later one begins, one without length gets a millisecond, and empty
intervals fill the pauses. The last one may end after the recording; then all tiers do. Spaces at the ends of lines are Praat's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fastscribe._system.text_layout import clean_text
from fastscribe.types import Segment, Transcript, Word


class _Interval(NamedTuple):
    start_ms: int
    end_ms: int
    text: str = ""


def to_textgrid(transcript: Transcript) -> str:
    """Return a TextGrid with the tiers `words` and `segments`; of a dialogue, `agent - words` and so on for each speaker."""
    speakers: Sequence[str | None] = transcript.speakers or (None,)
    tiers = []
    for speaker in speakers:
        parts = (
            ("words", [one for one in transcript.words if speaker in (None, one.speaker)]),
            ("segments", [one for one in transcript.segments if speaker in (None, one.speaker)]),
        )
        tiers += [(name if speaker is None else f"{speaker} - {name}", _placed(found)) for name, found in parts]
    ends = [intervals[-1].end_ms for _, intervals in tiers if intervals]
    end_ms = max(_ms(transcript.audio.duration_s), *ends, 1)
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", *_span(0, end_ms)]
    lines += ["tiers? <exists> ", f"size = {len(tiers)} ", "item []: "]
    for number, (name, intervals) in enumerate(tiers, start=1):
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier" ',
            f"        name = {_quoted(clean_text(name))} ",
        ]
        tiled = _tiled(intervals, end_ms)
        lines += [*_span(0, end_ms, "        "), f"        intervals: size = {len(tiled)} "]
        for place, one in enumerate(tiled, start=1):
            lines.append(f"        intervals [{place}]:")
            lines += [*_span(one.start_ms, one.end_ms, " " * 12), f"{' ' * 12}text = {_quoted(one.text)} "]
    return "\n".join(lines) + "\n"


def _placed(parts: Sequence[Word | Segment]) -> list[_Interval]:
    """Return the parts as intervals in order, which do not overlap and are not empty."""
    found: list[_Interval] = []
    for part in sorted(parts, key=lambda part: _ms(part.start_s)):
        start_ms = _ms(part.start_s)
        if found:
            start_ms = max(start_ms, found[-1].start_ms + 1)
            found[-1] = found[-1]._replace(end_ms=min(found[-1].end_ms, start_ms))
        found.append(_Interval(start_ms, max(_ms(part.end_s), start_ms + 1), clean_text(part.text)))
    return found


def _tiled(intervals: Sequence[_Interval], end_ms: int) -> list[_Interval]:
    """Return the intervals with empty ones in the pauses, from 0 to the end."""
    bounds = [_Interval(0, 0), *intervals, _Interval(end_ms, end_ms)]
    found = []
    for before, after in pairwise(bounds):
        if before.end_ms < after.start_ms:
            found.append(_Interval(before.end_ms, after.start_ms))
        found.append(after)
    return found[:-1]


def _span(start_ms: int, end_ms: int, indent: str = "") -> list[str]:
    return [f"{indent}{name} = {time_ms / 1000} " for name, time_ms in (("xmin", start_ms), ("xmax", end_ms))]


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _ms(time_s: float) -> int:
    return max(0, round(round(float(time_s), 3) * 1000)) if math.isfinite(time_s) else 0
