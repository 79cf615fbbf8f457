"""Subtitles that `fastscribe align` was given, with the times at which their words were found. Pure.

A row's field `subtitles` has the cues as their file has them (alignment/texts.py), and the row has a segment for each.
So a file of the same format is the given one with other times: text, line breaks, markup, styles. In another format a cue keeps
its line breaks; SubRip and WebVTT keep each other's italics, bold and underline, and speakers are named as that format does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from typing import Any, NamedTuple

from fastscribe._system.text_layout import clean_text, num_columns
from fastscribe.config import SubtitleStyle
from fastscribe.results.formats.cue_markup import (
    LEADING_MARKS,
    SOUNDS,
    convert,
    escape_srt,
    escape_vtt,
    plain_text,
    spaced_text,
)
from fastscribe.types import Segment, Transcript, Word

FORMATS = ("srt", "vtt", "ass")
LEAST_WORD_S = 0.1  # nobody speaks faster
_MIN_OUTSIDE = 3  # fewer words may have been misheard
_VOICE = r"(?P<voice><v(?:\.[^\s<>]*)?\s+)"  # of WebVTT


class GivenCue(NamedTuple):
    """A cue as its file has it."""

    format: str
    start_s: float
    end_s: float
    text: str  # with markup
    id: str = ""  # of WebVTT
    settings: str = ""  # of WebVTT
    speaker: str = ""  # by the name before its text, in a tag or in a field, or by that of a cue before

    def markup(self, format: str, speaker: str | None = None, name: str = "") -> str:
        """Return the text in the markup of SubRip or WebVTT, or that of its own format.

        Args:
            format: "srt" or "vtt".
            speaker: Who speaks it; may have another name now.
            name: Stands before a text in another format, in place of the name that the cue has.
        """
        if format != self.format:
            return name + convert(self._unnamed, self.format, format)
        text = "\n".join(line for line in self.text.split("\n") if line.strip())
        if not speaker or self.speaker in ("", speaker):
            return text
        renamed = self.renamed((escape_srt if format == "srt" else escape_vtt)(clean_text(speaker)))
        return name + text if renamed is None else renamed

    def renamed(self, name: str) -> str | None:
        """Return the text with another name of its speaker, which is in the markup of the cue; None if it has no name."""
        places = [(begin, end) for begin, end, _ in self._names]
        if self.format == "vtt":
            voices = re.finditer(rf"{_VOICE}(?P<name>{self._name_pattern})\s*>", self.text)
            places = sorted([*places, *(found.span("name") for found in voices)])
        parts, at = list[str](), 0
        for begin, end in places:
            parts += self.text[at:begin], name
            at = end
        return "".join(parts) + self.text[at:] if places else None

    def is_shown(self, format: str) -> bool:
        """Return False for a cue without text, such as a drawing, in another format than its own."""
        return format == self.format or any(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines without markup, and without the speaker's name."""
        return tuple(plain_text(self._unnamed, self.format).split("\n"))

    @property
    def _unnamed(self) -> str:
        """The text without the speaker's name and its colon before lines."""
        text, at = "", 0
        for begin, end, colon in self._names:
            between = self.text[end:colon].strip()  # such as a tag that ends, or (V.O.)
            text += self.text[at:begin] + between + (" " if SOUNDS.search(spaced_text(between, self.format)) else "")
            at = colon + 1
            while self.text[at : at + 1].isspace() and self.text[at] != "\n":
                at += 1
        return text + self.text[at:]

    @property
    def _name_pattern(self) -> str:
        """What matches the speaker's name as files have it: with any spaces, and with entities for characters."""
        return r"[^\S\n]+".join(
            "".join(rf"(?:{re.escape(character)}|&#?\w{{1,31}};)" for character in word)
            for word in self.speaker.split()
        )

    @property
    def _names(self) -> list[tuple[int, int, int]]:
        """Begin and end of the speaker's name before lines of the text, and the place of its colon.

        Around it may be what is not spoken: markup, sounds, dashes, music signs.
        """
        if not self.speaker:
            return []
        text = spaced_text(self.text, self.format)
        for _ in range(2):  # ([music])
            text = SOUNDS.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        names = re.finditer(rf"(?m)^(?:[{LEADING_MARKS}]|[^\S\n])*({self._name_pattern})[^\S\n]*(:(?!\S)|：)", text)
        return [(*found.span(1), found.start(2)) for found in names]


@dataclass(frozen=True)
class GivenCues:
    """The cues of a file in the order of their begins, and what stands before them; of ASS the file itself."""

    format: str
    header: str
    cues: tuple[GivenCue, ...]


def cues_of_row(row: Mapping[str, Any] | None) -> GivenCues | None:
    """Return the subtitles of a row that has a line of text for each cue; None if it has none, or a field of another kind."""
    given, text = (row or {}).get("subtitles"), (row or {}).get("text")
    if not isinstance(given, Mapping) or given.get("format") not in FORMATS or not isinstance(text, str):
        return None
    try:
        cues = tuple(_cue(one, given["format"]) for one in given["cues"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if len(text.split("\n")) != len(cues):
        return None
    return GivenCues(given["format"], _text(given.get("header") or ""), cues)


def _cue(given: Mapping[str, Any], format: str) -> GivenCue:
    start_s, end_s = float(given["start"]), float(given["end"])
    if not (math.isfinite(start_s) and math.isfinite(end_s)):
        raise ValueError("a cue without times")
    id, settings, speaker = (" ".join(_text(given.get(name) or "").split()) for name in ("id", "settings", "speaker"))
    return GivenCue(format, start_s, max(start_s, end_s), _text(given["text"]), id, settings, speaker)


def _text(given: object) -> str:
    """Return a text that UTF-8 can encode."""
    return str(given).encode("utf-8", "backslashreplace").decode()


def found_cues(transcript: Transcript) -> GivenCues | None:
    """Return the subtitles whose cues are the segments of a transcript; None if they are not, or words were changed since."""
    given = cues_of_row(transcript.audio.row)
    if given is None or [one.line for one in transcript.segments] != list(range(1, len(given.cues) + 1)):
        return None
    texts = str((transcript.audio.row or {})["text"]).split("\n")
    return given if texts == [one.text for one in transcript.segments] else None


def words_inside(words: Sequence[Word]) -> range:
    """Return which words of a known text are in the recording.

    Those at its begin and its end are not, if they were not heard and have no time in which they could have been spoken.
    """
    is_outside = [word.missing and word.end_s - word.start_s < LEAST_WORD_S for word in words]
    before, after = (sum(takewhile(bool, side)) for side in (is_outside, is_outside[::-1]))
    return range(before if before >= _MIN_OUTSIDE else 0, len(words) - (after if after >= _MIN_OUTSIDE else 0))


def cues_inside(segments: Sequence[Segment]) -> list[bool]:
    """Return for each cue whether it is in the recording: it has words that are, or is a sound between such cues."""
    inside = words_inside([word for one in segments for word in one.words])
    ends = list(accumulate(len(one.words) for one in segments))
    return [
        end - len(one.words) < inside.stop and inside.start < end if one.words else inside.start <= end <= inside.stop
        for one, end in zip(segments, ends, strict=True)
    ]


def shown_ms(
    segments: Sequence[Segment], given: GivenCues, audio_ms: int, gap_ms: int, style: SubtitleStyle
) -> list[tuple[int, int]]:
    """Return begin and end of each cue in a file.

    They are those of its words. A cue that is too short to read ends later if there is room. One without words (a sound), and a
    lone one that was not heard, lasts as long as before, or the least time, also beside others.
    """
    starts_ms = [min(max(0, audio_ms - 1), _ms(one.start_s)) for one in segments]
    is_missing = [False, *(one.is_missing for one in segments), False]
    found = []
    for number, (cue, segment, (start_ms, next_ms)) in enumerate(
        zip(given.cues, segments, pairwise([*starts_ms, audio_ms + gap_ms]), strict=True), start=1
    ):
        read_s = sum(map(num_columns, cue.lines)) / (style.max_chars_per_second or math.inf)
        read_ms = round(max(style.min_cue_s, read_s) * 1000)
        spoken_ms = max(_ms(segment.end_s), start_ms + 1)
        if not segment.words or is_missing[number - 1 : number + 2] == [False, True, False]:
            spoken_ms = max(spoken_ms, start_ms + min(_ms(cue.end_s - cue.start_s), read_ms))
        room_ms = next_ms - gap_ms if next_ms - start_ms >= 2 * gap_ms else next_ms
        end_ms = max(spoken_ms, min(start_ms + read_ms, room_ms))
        found.append((start_ms, min(end_ms, max(audio_ms, start_ms + 1))))
    return found


def _ms(time_s: float) -> int:
    return round(round(time_s, 3) * 1000) if math.isfinite(time_s) else 0
