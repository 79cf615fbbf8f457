r"""The markup of subtitles: lines of times, SubRip's and WebVTT's tags, ASS's override blocks. Pure.

Text becomes plain text, or that of SubRip or WebVTT, which keep italics, bold and underline. Colours, positions and karaoke
are left out.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import NamedTuple

from fastscribe._system.text_layout import clean_text

_COLON = r"[^\S\n]*:[^\S\n]*"
_CLOCK = rf"-?(?:\d{{1,9}}{_COLON})?\d{{1,9}}{_COLON}\d{{1,9}}(?:[^\S\n]*[.,][^\S\n]*\d+)?"
TIMES = rf"[^\S\n]*({_CLOCK})[^\S\n]*(?:--?|[–—])>[^\S\n]*({_CLOCK})(.*)"  # the line before a cue of SubRip or WebVTT
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z]*)[^<>]*>|\{(?P<block>[^{}]*)\}|\\(?P<escape>[Nnh])")
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")
_OVERRIDE = re.compile(r"\\(?P<name>[ibup])(?P<value>\d+)")
_MICRODVD = re.compile(r"[A-Za-z]:")  # {y:i}, which players hide in SubRip too
_MARKS = frozenset("ibu")
# What is shown but not spoken: sounds, and what stands before a line.
SQUARE_BRACKETS = r"\[[^\[\]]*\]"
OTHER_BRACKETS = r"\([^()]*\)|\{[^{}]*\}|（[^（）]*）|【[^【】]*】|［[^［］]*］|〔[^〔〕]*〕"
SOUNDS = re.compile(rf"{SQUARE_BRACKETS}|{OTHER_BRACKETS}|\*[^*\n]+\*")
DASHES, MUSIC = "‐‑‒–—―−-", "♩♪♫♬#"
LEADING_MARKS = re.escape(f">*•{DASHES}{MUSIC}")
_WORD_JOINER = "\u2060"
_ROUND_BRACKETS = str.maketrans("{}", "()")
_ASS_ESCAPE = re.compile(r"\\(?=[nNhH])")


class Mark(NamedTuple):
    """The begin or the end of italics (i), bold (b) or underline (u)."""

    name: str
    is_on: bool


def has_times(line: str) -> bool:
    """Return True for the line before a cue of SubRip or WebVTT."""
    return re.match(TIMES, line, re.ASCII) is not None


def plain_text(text: str, format: str) -> str:
    """Return a cue's text without markup, with its line breaks.

    Args:
        text: As a file has it.
        format: "srt", "vtt" or "ass".
    """
    shown = "".join(part for part in _parts(text, format) if isinstance(part, str))
    lines = (clean_text(line) for line in shown.split("\n"))
    return "\n".join(line for line in lines if line)


def spaced_text(text: str, format: str) -> str:
    """Return a cue's text with spaces in place of its markup, of the same length and with its line breaks."""

    def spaced(found: re.Match[str]) -> str:
        if not _is_markup(found, format):
            return found[0]
        return " \n" if found["escape"] in ("N", "n") else re.sub(r"[^\n]", " ", found[0])

    return _TAG.sub(spaced, text)


def convert(text: str, given: str, wanted: str) -> str:
    """Return a cue's text in the markup of "srt" or "vtt". Line breaks stay."""
    escape = escape_srt if wanted == "srt" else escape_vtt
    written = "".join(
        escape(part) if isinstance(part, str) else f"<{'' if part.is_on else '/'}{part.name}>"
        for part in _parts(text, given)
    )
    lines = (" ".join(line.split()) for line in written.split("\n"))
    return "\n".join(line for line in lines if line)


def _parts(text: str, format: str) -> Iterator[str | Mark]:
    """Yield the shown text and the marks."""
    at, is_drawing = 0, False
    for found in _TAG.finditer(text):
        if not _is_markup(found, format):
            continue
        if not is_drawing:
            yield _unescaped(text[at : found.start()], format)
        at = found.end()
        if found["escape"]:
            yield " " if found["escape"] == "h" else "\n"
        elif found["block"] is None:
            if (name := found["name"].lower()) in _MARKS:
                yield Mark(name, not found["end"])
        else:
            for override in _OVERRIDE.finditer(found["block"]):
                if override["name"] == "p":
                    is_drawing = int(override["value"]) > 0
                else:
                    yield Mark(override["name"], int(override["value"]) > 0)
    if not is_drawing:
        yield _unescaped(text[at:], format)


def _is_markup(found: re.Match[str], format: str) -> bool:
    """Return True for what players of a format take for markup."""
    if found["escape"]:
        return format == "ass" or (format == "srt" and found["escape"] != "n")
    if found["block"] is not None:
        is_tag = found["block"].startswith("\\") or _MICRODVD.match(found["block"]) is not None
        return format == "ass" or (format == "srt" and is_tag)
    return format == "vtt" or (format == "srt" and bool(found["name"]))


def _unescaped(text: str, format: str) -> str:
    return text if format == "ass" else _ENTITY.sub(lambda found: html.unescape(found[0]), text)


def escape_srt(text: str) -> str:
    r"""Escape text for SubRip, which has markup (`<i>`, `{\an8}`, `\N`) but no escapes, and whose players know no entities.

    So an invisible word joiner (U+2060) follows each `<` and splits `\n` and `\h`; VLC, ffmpeg and mpv then see no markup.
    Braces become round brackets, because mpv hides them and their content. `&` stays.
    """
    text = text.translate(_ROUND_BRACKETS).replace("<", "<" + _WORD_JOINER)
    return _ASS_ESCAPE.sub("\\\\" + _WORD_JOINER, text)


def escape_vtt(text: str) -> str:
    """Escape text for WebVTT."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
