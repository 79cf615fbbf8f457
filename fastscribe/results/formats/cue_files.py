"""Subtitles as files of their own: SubRip and WebVTT, made of cues (subtitles.py). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fastscribe._system.text_layout import clean_text
from fastscribe.config import SubtitleStyle
from fastscribe.results.formats.subtitles import DEFAULT_STYLE, Cue, spoken_spans, to_cues
from fastscribe.types import Transcript

_WORD_JOINER = "\u2060"
_ROUND_BRACKETS = str.maketrans("{}", "()")
_ASS_ESCAPE = re.compile(r"\\(?=[nNhH])")


def to_srt(transcript: Transcript, style: SubtitleStyle = DEFAULT_STYLE) -> str:
    """Return SubRip. It has markup (`<i>`, `{\\an8}`, `\\N`) but no escapes for it, and players know no entities.

    So an invisible word joiner (U+2060) follows each `<` and splits `\\n` and `\\h`; VLC, ffmpeg and mpv then see no markup.
    Braces become round brackets, because mpv hides them and their content. `&` stays. A speaker's name is before the first word
    of a turn.
    """
    return "".join(
        f"{number}\n{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}\n{_escape_srt(cue.lines)}\n\n"
        for number, cue in enumerate(to_cues(transcript, style, names_speakers=True), start=1)
    )


def to_vtt(transcript: Transcript, style: SubtitleStyle = DEFAULT_STYLE) -> str:
    """Return WebVTT. With `style.highlight_words` each cue is repeated for each word, which is underlined, as in whisper.

    Every player shows `<u>`. WebVTT's times inside a cue do nothing in Firefox, mpv and ffmpeg; elsewhere they need a style
    sheet, or words appear one by one. The repeats follow each other without a gap. A speaker's name is in a voice tag, `<v>`.
    """
    cues = to_cues(transcript, style)
    timed_texts = ((cue, text) for cue in cues for text in (_karaoke(cue) if style.highlight_words else _plain(cue)))
    return "WEBVTT\n\n" + "".join(
        f"{_clock(start_ms, '.')} --> {_clock(end_ms, '.')}\n{_voice(cue)}{text}\n\n"
        for cue, (start_ms, end_ms, text) in timed_texts
    )


def _clock(time_ms: int, decimal_mark: str) -> str:
    seconds, ms = divmod(time_ms, 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{decimal_mark}{ms:03d}"


def _escape_srt(lines: tuple[str, ...]) -> str:
    text = "\n".join(lines).translate(_ROUND_BRACKETS).replace("<", "<" + _WORD_JOINER)
    return _ASS_ESCAPE.sub("\\\\" + _WORD_JOINER, text)


def _voice(cue: Cue) -> str:
    return "" if cue.speaker is None else f"<v {_escape_markup(clean_text(cue.speaker))}>"


def _plain(cue: Cue) -> Iterator[tuple[int, int, str]]:
    yield cue.start_ms, cue.end_ms, _escape_markup("\n".join(cue.lines))


def _karaoke(cue: Cue) -> Iterator[tuple[int, int, str]]:
    """Yield the cue for each word, with the word's times; once and plain if the cue is too short."""
    spans = spoken_spans(cue)
    if not spans:
        yield from _plain(cue)
    for start_ms, end_ms, span in spans:
        line = cue.lines[span.line]
        before, word, after = line[: span.begin], line[span.begin : span.end], line[span.end :]
        marked = f"{_escape_markup(before)}<u>{_escape_markup(word)}</u>{_escape_markup(after)}"
        lines = [marked if number == span.line else _escape_markup(line) for number, line in enumerate(cue.lines)]
        yield start_ms, end_ms, "\n".join(lines)


def _escape_markup(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
