r"""Read the cues of SubRip, WebVTT, ASS and SSA files with pysubs2.

Players read more than pysubs2 does. So a text is brought into the form that it reads: full clocks, a number before each of
them, no comments of WebVTT, and the usual columns of ASS. What it leaves out of WebVTT (names, settings, styles) is taken out
before; regions are lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from pysubs2 import SSAEvent, SSAFile
from pysubs2.formats.subrip import SubripFormat
from pysubs2.formats.substation import EVENT_FIELDS

from fastscribe.results.formats.cue_markup import TIMES, has_times

_NO_TIMES = (
    r"[^\S\n]*\d+[^\S\n]*:.*-->.*|.*-->[^\S\n]*\d+[^\S\n]*:[^\S\n]*\d.*"  # such as 00:00:0x,000 --> 00:00:03,000
)
_CUE = rf"(?:{TIMES}|{_NO_TIMES})$"
_SUBRIP = re.compile(rf"^(?:[^\S\n]*\d+[^\S\n]*\n)?(){_CUE}", re.ASCII | re.MULTILINE)
_WITHOUT_NUMBERS = re.compile(rf"^(){_CUE}", re.ASCII | re.MULTILINE)
_WEBVTT = re.compile(rf"^(?:(?:(?<=\n\n)(.+)|\d+)\n)?{_CUE}", re.ASCII | re.MULTILINE)  # with the name of a cue
_NUMBERED = re.compile(r"\s*\d+[^\S\n]*\n")
_INSIDE_TIME = re.compile(r"<(?:\d+:)?\d+:\d+\.\d+>")  # of WebVTT: when a word of the cue appears
_REGION = re.compile(r"\bregion:\S+\s*")
_NUMBER = "\n\n0\n"  # before a cue; pysubs2 takes any number that ends a text for the next one's
_LAST_MS = 100 * 3_600_000 - 1
_LAST_CLOCK = SubripFormat.ms_to_timestamp(_LAST_MS)  # of a cue whose times cannot be read
_LINE_BREAK, _MARK = r"\N", "\0"  # pysubs2's; no text has the other
_COLON = "\1"  # of a text, in which pysubs2 would take two times for those of a cue


def read_cues(text: str, format: str) -> tuple[str, list[dict[str, Any]]]:
    """Return what stands before the cues of WebVTT, or ASS itself, and the cues as a row has them.

    Args:
        text: With line feeds alone, and without zero bytes.
        format: "srt", "vtt" or "ass".

    Raises:
        ValueError: A line of ASS cannot be read.
    """
    if format == "ass":
        return _ass(text.split("\n"))
    is_webvtt = format == "vtt"
    pattern = _WEBVTT if is_webvtt else _SUBRIP if _NUMBERED.match(text) else _WITHOUT_NUMBERS
    first = pattern.search(text)
    if first is None or not any(map(has_times, text.split("\n"))):
        return "", []
    header = _header(text[: first.start()]) if is_webvtt else ""
    parts, end = list[str](), 0
    for found in pattern.finditer(text):
        parts += [_standard_text(text[end : found.start()]), _standard_times(found)]
        end = found.end()
    parts += [_standard_text(text[end:]), _NUMBER]
    events = SSAFile.from_string("".join(parts), "srt", keep_html_tags=True)
    cues = list[dict[str, Any]]()
    for event in events:
        extra, *lines = event.text.split(_LINE_BREAK)
        lines = [line.replace(_MARK, _LINE_BREAK).replace(_COLON, ":") for line in lines]
        if is_webvtt:  # what follows an empty line is a comment
            lines = [_INSIDE_TIME.sub("", line) for line in takewhile(bool, lines)]
        named = zip(("id", "settings"), extra.split(_MARK)[1:], strict=True)
        start_s, end_s = event.start / 1000, event.end / 1000
        if event.start == _LAST_MS:
            start_s, end_s = (cues[-1]["start"], cues[-1]["end"]) if cues else (0.0, 0.0)
        cue = {"start": start_s, "end": end_s, "text": "\n".join(line.strip() for line in lines if line.strip())}
        cues.append({**cue, **{name: value for name, value in named if value and is_webvtt}})
    return header, cues


def _standard_text(text: str) -> str:
    """Return a text without what pysubs2 would take for times, or for its own line breaks."""
    return text.replace(_LINE_BREAK, _MARK).replace(":", _COLON)


def _standard_times(found: re.Match[str]) -> str:
    """Return a number, times and a line with the name and the settings of a cue."""
    name, start, end, settings = (part or "" for part in found.groups())
    clocks = [_full_clock(clock) if clock else _LAST_CLOCK for clock in (start, end)]
    return f"{_NUMBER}{' --> '.join(clocks)}\n{_MARK}{name.strip()}{_MARK}{_REGION.sub('', settings).strip()}"


def _full_clock(clock: str) -> str:
    *larger, last = "".join(clock.split()).replace(",", ".").removeprefix("-").split(":")
    hours, minutes = [0, *map(int, larger)][-2:]
    time_ms = round(1000 * (3600 * hours + 60 * minutes + float(last)))
    return SubripFormat.ms_to_timestamp(0 if clock.startswith("-") else min(time_ms, _LAST_MS))


def _header(text: str) -> str:
    """Return the first line of WebVTT, what describes the file, and its styles; not the clock of a stream's segment."""
    first, *others = re.split("\n\n+", text)
    blocks = (block.split("\n") for block in (first, *(block for block in others if block.startswith("STYLE"))))
    kept = ([line.rstrip() for line in block if line and not line.startswith("X-TIMESTAMP-MAP")] for block in blocks)
    return "\n\n".join(map("\n".join, kept))


def _ass(lines: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the file as pysubs2 writes it, without comments and fonts, and the cues: the lines of dialogue."""
    kind = "ssa" if any(line.strip().lower() == "[v4 styles]" for line in lines) else "ass"
    try:
        file = SSAFile.from_string("\n".join(_usual_columns(lines, EVENT_FIELDS[kind])), kind)
    except (IndexError, TypeError) as error:
        raise ValueError(str(error)) from error
    file.events.sort(key=lambda event: event.start)
    cues = [
        {"start": max(0, event.start) / 1000, "end": max(0, event.end) / 1000, "text": event.text.strip()}
        for event in file
    ]
    for left_out in (file.fonts_opaque, file.graphics_opaque):
        left_out.clear()
    return file.to_string("ass", header_notice=""), cues


def _usual_columns(lines: Sequence[str], usual: Sequence[str]) -> Iterator[str]:
    """Yield the lines of ASS without comments, those of dialogue in the columns that pysubs2 reads."""
    columns = usual
    for line in lines:
        kind, _, value = line.partition(":")
        if kind.strip() == "Format" and "text" in value.lower():
            columns = [name.strip().lower() for name in value.split(",")]
        fields = dict(zip(columns, value.lstrip().split(",", len(columns) - 1), strict=False))
        if kind.strip() == "Dialogue" and "text" in fields:
            yield "Dialogue: " + ",".join(fields.get(name) or str(getattr(SSAEvent, name)) for name in usual)
        elif kind.strip() not in ("Dialogue", "Comment"):
            yield line
