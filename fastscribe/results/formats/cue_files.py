"""Subtitles as files of their own: SubRip and WebVTT, made of cues (subtitles.py). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fastscribe._system.text_layout import clean_text
from fastscribe.config import SubtitleStyle
from fastscribe.results.formats.cue_markup import escape_srt, escape_vtt
from fastscribe.results.formats.given_cues import found_cues
from fastscribe.results.formats.subtitles import DEFAULT_STYLE, Cue, shows_speakers, spoken_spans, to_cues
from fastscribe.types import Transcript


def to_srt(transcript: Transcript, style: SubtitleStyle = DEFAULT_STYLE) -> str:
    """Return SubRip. A speaker's name is before the first word of a turn."""
    texts: list[str] = []
    speaker = None  # of the turn
    for cue in to_cues(transcript, style, names_speakers=True):
        if cue.given is None or cue.given.is_shown("srt"):
            is_turn, speaker = cue.speaker not in (None, speaker), cue.speaker
            name = escape_srt(f"{clean_text(speaker or '')}: ") if is_turn and shows_speakers(transcript) else ""
            text = escape_srt("\n".join(cue.lines)) if cue.given is None else cue.given.markup("srt", speaker, name)
            times = f"{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}"
            texts.append(f"{len(texts) + 1}\n{times}\n{text}\n\n")
    return "".join(texts)


def to_vtt(transcript: Transcript, style: SubtitleStyle = DEFAULT_STYLE) -> str:
    """Return WebVTT. With `style.highlight_words` each cue is repeated for each word, which is underlined, as in whisper.

    Every player shows `<u>`. WebVTT's times inside a cue do nothing in Firefox, mpv and ffmpeg; elsewhere they need a style
    sheet, or words appear one by one. The repeats follow each other without a gap. A speaker's name is in a voice tag, `<v>`.
    """
    given = found_cues(transcript)
    texts = [(given.header if given is not None and given.format == "vtt" else "") or "WEBVTT", "\n\n"]
    for cue in to_cues(transcript, style):
        if cue.given is None or cue.given.is_shown("vtt"):
            name = f"{cue.given.id}\n" if cue.given is not None and cue.given.id else ""
            settings = f" {cue.given.settings}" if cue.given is not None and cue.given.settings else ""
            voice = "" if cue.speaker is None else f"<v {escape_vtt(clean_text(cue.speaker))}>"
            for start_ms, end_ms, text in _karaoke(cue, voice) if style.highlight_words else _plain(cue, voice):
                texts.append(f"{name}{_clock(start_ms, '.')} --> {_clock(end_ms, '.')}{settings}\n{text}\n\n")
    return "".join(texts)


def _clock(time_ms: int, decimal_mark: str) -> str:
    seconds, ms = divmod(time_ms, 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{decimal_mark}{ms:03d}"


def _plain(cue: Cue, voice: str) -> Iterator[tuple[int, int, str]]:
    text = voice + escape_vtt("\n".join(cue.lines))
    yield cue.start_ms, cue.end_ms, text if cue.given is None else cue.given.markup("vtt", cue.speaker, voice)


def _karaoke(cue: Cue, voice: str) -> Iterator[tuple[int, int, str]]:
    """Yield the cue for each word, with the word's times; once and plain if the cue is too short."""
    spans = spoken_spans(cue)
    if not spans:
        yield from _plain(cue, voice)
    for start_ms, end_ms, span in spans:
        line = cue.lines[span.line]
        before, word, after = line[: span.begin], line[span.begin : span.end], line[span.end :]
        marked = f"{escape_vtt(before)}<u>{escape_vtt(word)}</u>{escape_vtt(after)}"
        lines = [marked if number == span.line else escape_vtt(line) for number, line in enumerate(cue.lines)]
        yield start_ms, end_ms, voice + "\n".join(lines)
