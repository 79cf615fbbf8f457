r"""Read the cues of SubRip, WebVTT, ASS and SSA files with pysubs2.

Players read more than pysubs2 does. So the lines are brought into the form that it reads: full clocks, a number after each
text, no comments, and the usual columns of ASS. Names and settings of WebVTT, which it does not know, are taken out before;
regions are lost.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pysubs2 import SSAFile
from pysubs2.formats.subrip import SubripFormat
from pysubs2.formats.substation import EVENT_FIELDS, STYLE_FIELDS

from fastscribe.results.formats.cue_markup import TIMES

_TIMES = re.compile(TIMES, re.ASCII)
_DAMAGED_TIMES = re.compile(r"\s*\d+\s*:.*-->|.*-->\s*\d+\s*:\s*\d")  # such as 00:00:0x,000 --> 00:00:03,000
_NUMBER = re.compile(r"\s*\d{1,9}\s*")
_INSIDE_TIME = re.compile(r"<(?:\d+:)?\d+:\d+\.\d+>")  # of WebVTT: when a word of the cue appears
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+([^\s<>][^<>]*)>")  # of WebVTT: who speaks
_REGION = re.compile(r"\bregion:\S+\s*")
_LAST_MS = 100 * 3_600_000 - 1  # that pysubs2 reads
_LINE_BREAK, _MARK = r"\N", "\0"  # pysubs2's; no text has the other
_SECTION = re.compile(r"\[(.+)\]")  # of ASS
_LEFT_OUT_SECTIONS = frozenset(("fonts", "graphics", "aegisub extradata"))


def read_cues(text: str, format: str) -> tuple[str, list[dict[str, Any]]]:
    """Return what stands before the cues of WebVTT, or ASS itself, and the cues as a row has them, with `names` of speakers.

    Args:
        text: With line feeds alone, and without zero bytes.
        format: "srt", "vtt" or "ass".
    """
    lines = text.split("\n")
    return _ass(lines) if format == "ass" else _timed(lines, is_webvtt=format == "vtt")


def _timed(lines: Sequence[str], is_webvtt: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return the header of WebVTT, and the cues of SubRip or WebVTT: what follows each line with two times.

    A cue whose times cannot be read has those of the one before: the text decides where it is spoken.
    """
    places = [place for place, line in enumerate(lines) if _TIMES.match(line) or _DAMAGED_TIMES.match(line)]
    times = [_TIMES.match(lines[place]) for place in places]
    if not any(times):
        return "", []
    parts, clocks = list[str](), ["00:00:00.000"] * 2
    for number, (found, (place, end)) in enumerate(zip(times, pairwise([*places, len(lines)]), strict=True), start=1):
        clocks = _clocks(found) if found else clocks
        content = list(lines[place + 1 : end])
        if is_webvtt and "" in content:
            content = content[: content.index("")]  # what follows is a comment, or the next cue's name
        elif end < len(lines):
            _drop_number(content, number)
        # pysubs2 takes a line with two clocks for the times of a cue, and a number that ends a text for the next one's.
        standard = "\n".join(content).replace(":", ":" + _MARK).replace(_LINE_BREAK, "\\" + _MARK + "N")
        parts.append(f"{' --> '.join(clocks)}\n{standard}\n\n{number + 1}\n")
    events = SSAFile.from_string("".join(parts), "srt", keep_html_tags=True)
    cues = list[dict[str, Any]]()
    for event, place, found in zip(events, places, times, strict=True):
        shown = event.text.replace(_LINE_BREAK, "\n").replace(_MARK, "")
        shown = _INSIDE_TIME.sub("", shown) if is_webvtt else shown
        text = "\n".join(line.strip() for line in shown.split("\n") if line.strip())
        extra = {**_name_and_settings(lines, place, found), "names": _VOICE.findall(text)} if is_webvtt else {}
        cues.append({"start": event.start / 1000, "end": event.end / 1000, "text": text, **extra})
    return (_header(list(lines[: places[0]])) if is_webvtt else ""), cues


def _drop_number(content: list[str], number: int) -> None:
    """Remove from a cue's lines the number of the next one, which stands before its times."""
    is_alone = len(content) == 1
    while content and not content[-1].strip():
        content.pop()
    if content and _NUMBER.fullmatch(content[-1]):
        is_after_blank = len(content) > 1 and not content[-2].strip()
        if is_alone or is_after_blank or int(content[-1]) == number + 1:
            content.pop()


def _clocks(times: re.Match[str]) -> list[str]:
    """Return begin and end with hours and milliseconds."""
    found = list[str]()
    for clock in (times[1], times[2]):
        *larger, last = "".join(clock.split()).replace(",", ".").removeprefix("-").split(":")
        hours, minutes = [0, *map(int, larger)][-2:]
        time_ms = 0 if clock.startswith("-") else round(1000 * (3600 * hours + 60 * minutes + float(last)))
        found.append(SubripFormat.ms_to_timestamp(min(time_ms, _LAST_MS)).replace(",", "."))
    return found


def _name_and_settings(lines: Sequence[str], place: int, times: re.Match[str] | None) -> dict[str, Any]:
    before = lines[place - 1].strip() if place > 1 and not lines[place - 2].strip() else ""
    extra = {"id": "" if "-->" in before else before, "settings": _REGION.sub("", times[3]).strip() if times else ""}
    return {name: value for name, value in extra.items() if value}


def _header(lines: list[str]) -> str:
    """Return the first line of WebVTT, what describes the file, and its styles; not the clock of a stream's segment."""
    _drop_number(lines, 0)
    first, *others = re.split("\n\n+", "\n".join(lines))
    blocks = (block.split("\n") for block in (first, *(block for block in others if block.startswith("STYLE"))))
    kept = ([line.rstrip() for line in block if line and not line.startswith("X-TIMESTAMP-MAP")] for block in blocks)
    return "\n\n".join(map("\n".join, kept))


def _ass(lines: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the file as pysubs2 writes it, without comments and fonts, and the cues: the lines of dialogue."""
    kind = "ssa" if any(line.strip().lower() == "[v4 styles]" for line in lines) else "ass"
    with warnings.catch_warnings():  # of a number that it replaces by the usual one, and of cues beyond ten hours
        warnings.simplefilter("ignore", RuntimeWarning)
        file = SSAFile.from_string("\n".join(_usual_lines(lines, kind)), kind)
        file.events.sort(key=lambda event: event.start)
        cues = [
            {"start": one.start / 1000, "end": one.end / 1000, "text": one.text.strip(), "names": [one.name]}
            for one in file
        ]
        return file.to_string("ass", header_notice=""), cues


def _usual_lines(lines: Sequence[str], format: str) -> Iterator[str]:
    """Yield the lines of ASS that pysubs2 can read, without comments, with the columns that it takes for given."""
    default_style = SSAFile().to_string(format).partition("\nStyle: ")[2].partition("\n")[0].split(",")
    usual = {
        "Style": dict(zip(["name", *STYLE_FIELDS[format]], default_style, strict=True)),
        "Dialogue": dict.fromkeys(EVENT_FIELDS[format], "") | {"style": "Default"},
    }
    columns = {kind: list(fields) for kind, fields in usual.items()}
    section = ""
    for line in lines:
        kind, _, value = (part.strip() for part in line.partition(":"))
        if heading := _SECTION.fullmatch(line.strip()):
            section = heading[1].lower()
            yield line.strip().title()
        elif section in _LEFT_OUT_SECTIONS or kind == "Comment":
            continue
        elif kind == "Format":
            names = [name.strip().lower().replace("colour", "color") for name in value.split(",")]
            columns["Dialogue" if "text" in names else "Style"] = names
        elif kind in usual:
            values = map(str.strip, value.split(",", len(columns[kind]) - 1))
            fields = _standard_fields(dict(zip(columns[kind], values, strict=False)), kind)
            standard = f"{kind}: " + ",".join(fields.get(name) or field for name, field in usual[kind].items())
            try:
                SSAFile.from_string(standard, format)
            except (IndexError, ValueError):  # such as a damaged colour, or a line without times
                continue
            yield standard
        else:
            yield line


def _standard_fields(fields: dict[str, str], kind: str) -> dict[str, str]:
    """Return the fields of a line with full clocks, and colours without & at the end; none if it has no times or no text."""
    if kind == "Style":
        return {name: field.removesuffix("&") if "color" in name else field for name, field in fields.items()}
    times = _TIMES.fullmatch(f"{fields.get('start')}-->{fields.get('end')}")
    if times is None or times[3] or "text" not in fields:
        return {}
    return fields | dict(zip(("start", "end"), _clocks(times), strict=True))
