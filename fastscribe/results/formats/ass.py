r"""Advanced SubStation Alpha (ASS) with karaoke tags. Pure.

`{\k23}` before a word says for how many centiseconds the word is current: until the next one starts. Players such as mpv and
VLC show a word in the style's secondary colour until then, and in the primary colour afterwards. libass describes the format
(https://github.com/libass/libass/wiki/ASSv5-Override-Tags). It has no escapes for braces, so they become round brackets, and an
invisible word joiner (U+2060) splits `\N`, `\n` and `\h`, and follows a backslash before a tag or a line's end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fastscribe._system.text_layout import clean_text
from fastscribe.config import SubtitleStyle
from fastscribe.results.formats.given_cues import GivenCues, found_cues
from fastscribe.results.formats.subtitles import DEFAULT_STYLE, Cue, spoken_spans, to_cues
from fastscribe.types import Transcript

_HEADER = """[Script Info]
ScriptType: v4.00+
PlayResX: 1280
PlayResY: 720
WrapStyle: 2
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, \
StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding
"""
_EVENTS = """
[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
# &HAABBGGRR, as ASS writes colours: of words that were spoken, and of words to come. Speakers take the former in turn.
_SPOKEN = ("&H00FFFFFF", "&H0000FFFF", "&H00FFFF00", "&H0000FF80", "&H00FF80FF", "&H0080C0FF")
_TO_COME = "&H00A0A0A0"
_ROUND_BRACKETS = str.maketrans("{}", "()")
_ESCAPE = re.compile(r"\\(?=[nNhH]|$)")
_WORD_JOINER = "\u2060"


def to_ass(transcript: Transcript, style: SubtitleStyle = DEFAULT_STYLE) -> str:
    """Return ASS with a karaoke tag before each word. A speaker's name is in the Name field, and each speaker has a style."""
    given, cues = found_cues(transcript), _cues(transcript, style)
    if given is not None and given.format == "ass":
        return _retimed(given, cues)
    styles = {speaker: f"Speaker {number}" for number, speaker in enumerate(transcript.speakers, start=1)}
    return (
        _HEADER
        + "".join(_style_line(name, number) for number, name in enumerate(styles.values() or ["Default"]))
        + _EVENTS
        + "".join(_dialogue(cue, styles.get(cue.speaker or "", "Default")) for cue in cues)
    )


def _cues(transcript: Transcript, style: SubtitleStyle) -> list[Cue]:
    """Return the cues, within the whole hundredths of a second that the recording has."""
    last_ms = round(round(transcript.audio.duration_s, 3) * 1000) // 10 * 10
    return [
        replace(cue, start_ms=min(cue.start_ms, last_ms), end_ms=min(cue.end_ms, last_ms))
        for cue in to_cues(transcript, style)
    ]


def _retimed(given: GivenCues, cues: Sequence[Cue]) -> str:
    """Return given subtitles with other times, in their own styles."""
    columns = [name.strip().lower() for name in given.header.rpartition("Format:")[2].split(",")]
    lines = []
    for cue in cues:
        assert cue.given is not None
        times = {"start": _clock(_centiseconds(cue.start_ms)), "end": _clock(_centiseconds(cue.end_ms))}
        fields = [times.get(name, field) for name, field in zip(columns, cue.given.fields, strict=False)]
        lines.append(f"Dialogue: {','.join([*fields, cue.given.markup('ass')])}\n")
    return f"{given.header}\n{''.join(lines)}"


def _style_line(name: str, number: int) -> str:
    spoken = _SPOKEN[number % len(_SPOKEN)]
    return f"Style: {name},Arial,48,{spoken},{_TO_COME},&H00000000,&H80000000,0,0,0,0,100,100,0,0,1,2,1,2,60,60,40,1\n"


def _dialogue(cue: Cue, style: str) -> str:
    name = clean_text(cue.speaker or "").replace(",", ";")  # commas separate the fields
    return (
        f"Dialogue: 0,{_clock(_centiseconds(cue.start_ms))},{_clock(_centiseconds(cue.end_ms))},{style},{name},0,0,0,,"
        f"{_karaoke(cue)}\n"
    )


def _karaoke(cue: Cue) -> str:
    """Return the cue's lines with a tag before each word. The tags last as long as the cue, whatever the rounding."""
    timed = spoken_spans(cue)
    if not timed:  # more words than milliseconds
        return r"\N".join(map(_escape, cue.lines))
    lines = [""] * len(cue.lines)
    ends = [0] * len(cue.lines)
    for start_ms, end_ms, span in timed:
        between = cue.lines[span.line][ends[span.line] : span.begin]
        word = cue.lines[span.line][span.begin : span.end]
        tag = f"{{\\k{_centiseconds(end_ms) - _centiseconds(start_ms)}}}"
        lines[span.line] += f"{_escape(between)}{tag}{_escape(word)}"
        ends[span.line] = span.end
    lines = [line + _escape(cue.lines[number][ends[number] :]) for number, line in enumerate(lines)]
    return r"\N".join(lines)


def _escape(text: str) -> str:
    return _ESCAPE.sub("\\\\" + _WORD_JOINER, text.translate(_ROUND_BRACKETS))


def _centiseconds(time_ms: int) -> int:
    return (time_ms + 5) // 10


def _clock(centiseconds: int) -> str:
    seconds, rest = divmod(centiseconds, 100)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:02d}"
