r"""Advanced SubStation Alpha (ASS) with karaoke tags, written by pysubs2. Pure.

`{\k23}` before a word says for how many centiseconds the word is current: until the next one starts. Players such as mpv and
VLC show a word in the style's secondary colour until then, and in the primary colour afterwards. libass describes the format
(https://github.com/libass/libass/wiki/ASSv5-Override-Tags). It has no escapes for braces, so they become round brackets, and an
invisible word joiner (U+2060) splits `\N`, `\n` and `\h`, and follows a backslash before a tag or a line's end.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from io import StringIO
from itertools import compress

from pysubs2 import Color, SSAEvent, SSAFile, SSAStyle
from pysubs2.formats.substation import SubstationFormat

from fastscribe._system.text_layout import clean_text
from fastscribe.config import SubtitleStyle
from fastscribe.results.formats.given_cues import cues_inside, found_cues
from fastscribe.results.formats.subtitles import DEFAULT_STYLE, Cue, spoken_spans, to_cues
from fastscribe.types import Transcript

_INFO = {
    "ScriptType": "v4.00+",
    "PlayResX": "1280",
    "PlayResY": "720",
    "WrapStyle": "2",
    "ScaledBorderAndShadow": "yes",
}
# Of words that were spoken, and of words to come. Speakers take the former in turn.
_SPOKEN = (
    Color(255, 255, 255),
    Color(255, 255, 0),
    Color(0, 255, 255),
    Color(128, 255, 0),
    Color(255, 128, 255),
    Color(255, 192, 128),
)
_STYLE = SSAStyle(
    fontsize=48, secondarycolor=Color(160, 160, 160), backcolor=Color(0, 0, 0, 128), outline=2, shadow=1,
    marginl=60, marginr=60, marginv=40,
)  # fmt: skip
_ROUND_BRACKETS = str.maketrans("{}", "()")
_ESCAPE = re.compile(r"\\(?=[nNhH]|$)")
_WORD_JOINER = "\u2060"


class _Ass(SubstationFormat):
    """ASS without pysubs2's limit of ten hours."""

    @staticmethod
    def ms_to_timestamp(requested_ms: int) -> str:
        seconds, rest = divmod(_centiseconds(requested_ms), 100)
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:02d}"


def to_ass(transcript: Transcript, style: SubtitleStyle = DEFAULT_STYLE) -> str:
    """Return ASS with a karaoke tag before each word. A speaker's name is in the Name field, and each speaker has a style.

    Given subtitles get other times, in their own styles.
    """
    last_ms = round(round(transcript.audio.duration_s, 3) * 1000) // 10 * 10  # the whole hundredths of a second
    cues = [
        replace(cue, start_ms=min(cue.start_ms, last_ms), end_ms=min(cue.end_ms, last_ms))
        for cue in to_cues(transcript, style)
    ]
    names = {cue.speaker: clean_text(cue.speaker or "").replace(",", ";") for cue in cues}  # commas separate the fields
    file = _given_file(transcript)
    if file is not None:
        for event, cue in zip(file, cues, strict=True):
            event.start, event.end = cue.start_ms, cue.end_ms
            event.name = event.name and (names[cue.speaker] or event.name)
            if cue.speaker and cue.given and cue.given.speaker != cue.speaker:
                event.text = cue.given.renamed(_escape(clean_text(cue.speaker))) or event.text
    else:
        file = SSAFile()
        file.info = dict(_INFO)
        styles = {speaker: f"Speaker {number}" for number, speaker in enumerate(transcript.speakers, start=1)}
        file.styles = {
            name: replace(_STYLE, primarycolor=_SPOKEN[number % len(_SPOKEN)])
            for number, name in enumerate(styles.values() or ["Default"])
        }
        for cue in cues:
            event_style = styles.get(cue.speaker or "", "Default")
            file.events.append(
                SSAEvent(cue.start_ms, cue.end_ms, _karaoke(cue), style=event_style, name=names[cue.speaker])
            )
    text = StringIO()
    _Ass.to_file(file, text, "ass", header_notice="")
    return text.getvalue()


def _given_file(transcript: Transcript) -> SSAFile | None:
    """Return the cues of to_cues() of the ASS that was given; None if other subtitles were, or what a row has is none."""
    given = found_cues(transcript)
    if given is None or given.format != "ass":
        return None
    try:
        with warnings.catch_warnings():  # of a number that it replaces by the usual one
            warnings.simplefilter("ignore", RuntimeWarning)
            file = SSAFile.from_string(given.header, "ass")
    except (IndexError, TypeError, ValueError):
        return None
    if len(file) != len(given.cues):
        return None
    file.events = list(compress(file, cues_inside(transcript.segments)))
    return file


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
