r"""Read subtitles (SubRip, WebVTT, ASS and SSA) as cues, each with the words to be spoken in it. Pure.

Files are read as players read them: with or without numbers, hours and milliseconds, with any line ends, in UTF-8, UTF-16, or
else Windows-1252. What is shown but not spoken is left out of the words, not of the cue: markup, the dash and the name before
a speaker's line, sounds in brackets, music signs, and the lines that a rolling caption repeats.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fastscribe.results.formats.cue_markup import plain_text

SUBTITLE_EXTENSIONS = (".srt", ".vtt", ".ass", ".ssa")
OTHER_SUBTITLES = frozenset((".dfxp", ".itt", ".lrc", ".sami", ".sbv", ".scc", ".smi", ".stl", ".sub", ".ttml", ".usf"))
_CLOCK = r"-?(?:(?:\d+\s*:\s*)?\d+\s*:\s*)\d+(?:\s*[.,]\s*\d+)?"
_TIMING = re.compile(rf"\s*({_CLOCK})\s*(?:--?|[–—])>\s*({_CLOCK})(.*)", re.ASCII)
_DAMAGED_TIMING = re.compile(r"\s*\d+\s*:.*-->|.*-->\s*\d+\s*:\s*\d")
_SNIFFED_LINES = 20  # without a timing line among them, a file is a text
_ASS_SECTION = re.compile(r"\[(.+)\]\s*")
_LEFT_OUT_SECTIONS = frozenset(("fonts", "graphics"))  # of ASS: encoded files
_STYLE_BLOCKS = ("STYLE", "REGION")  # of WebVTT
_INSIDE_TIME = re.compile(r"<(?:\d+:)?\d+:\d+\.\d+>")  # of WebVTT: when a word of the cue appears
_SOUNDS = re.compile(
    r"\[[^\[\]]*\]|\([^()]*\)|\{[^{}]*\}|（[^（）]*）|【[^【】]*】|［[^［］]*］|〔[^〔〕]*〕|\*[^*\n]+\*"
)
_DASHES, _MUSIC = "‐‑‒–—―−-", "♩♪♫♬#"
_MARKS = frozenset(_DASHES + _MUSIC + "*~_•…<>|/\\.,:;!?\"'")
_LEADING = re.compile(f"[{re.escape(f'>*•{_DASHES}{_MUSIC}')}\\s]+")
_LABEL = re.compile(r"([^:\n]{1,40}?)\s*:(?=\s|$)")
_MAX_LABEL_WORDS = 4


class NoCues(ValueError):
    """A file of subtitles without a cue, or with one that cannot be read; the message says what is wrong."""


class _Cue(NamedTuple):
    start_s: float
    end_s: float
    text: str  # with markup
    extra: dict[str, Any]  # id and settings of WebVTT, fields of ASS


def decode(content: bytes) -> tuple[str, str | None]:
    """Return a file's text, and its encoding if that is a guess: without a mark at its begin, it is not UTF-8."""
    for mark, encoding in ((b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if content.startswith(mark):
            return content.decode(encoding, "replace"), None
    guess = "windows-1252"
    if zeros := content[:4096].count(b"\0"):
        is_little = content[1:4096:2].count(b"\0") * 2 > zeros
        guess = "utf-16-le" if is_little else "utf-16-be"
    else:
        try:
            return content.decode("utf-8-sig"), None
        except UnicodeDecodeError:
            pass
    return content.decode(guess, "replace"), guess


def format_of(text: str, extension: str) -> str | None:
    """Return "srt", "vtt" or "ass", by a file's content and then by its extension; None: a text without cues."""
    head = text.lstrip()[:10_000]
    if re.match(r"WEBVTT(\s|$)", head):
        return "vtt"
    if re.match(r"(?i)\[script info\]|\[v4\+? styles\]|\[events\]", head):
        return "ass"
    if extension in SUBTITLE_EXTENSIONS:
        return "ass" if extension == ".ssa" else extension[1:]
    lines = [line for line in head.splitlines() if line.strip()][:_SNIFFED_LINES]
    return "srt" if any(map(_TIMING.match, lines)) else None


def read_subtitles(text: str, format: str, encoding: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the words to be spoken, a line for each cue, and the subtitles as a row has them (results/formats/given_cues.py).

    Args:
        text: A file's content.
        format: From format_of().
        encoding: From decode().

    Raises:
        NoCues: It has no cue.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").split("\n")
    header, cues = _ass(lines) if format == "ass" else _timed(lines, format)
    if not cues:
        raise NoCues("it has no cue with a time")
    cues = sorted(cues, key=lambda cue: cue.start_s)
    shown = [plain_text(cue.text, format).split("\n") for cue in cues]
    given = {
        "format": format,
        **({"encoding": encoding} if encoding else {}),
        **({"header": header} if header else {}),
        "cues": [{"start": cue.start_s, "end": cue.end_s, "text": cue.text, **cue.extra} for cue in cues],
    }
    return "\n".join(_spoken(_without_repeats(shown))), given


def _timed(lines: Sequence[str], format: str) -> tuple[str, list[_Cue]]:
    """Return the header of WebVTT, and the cues of SubRip or WebVTT: what follows each line with two times.

    A cue whose times cannot be read keeps its place: the text decides where it is spoken.
    """
    places = [place for place, line in enumerate(lines) if _TIMING.match(line) or _DAMAGED_TIMING.match(line)]
    cues: list[_Cue] = []
    for number, (place, end) in enumerate(pairwise([*places, len(lines)]), start=1):
        timing = _TIMING.match(lines[place])
        content = list(lines[place + 1 : end])
        if format == "vtt" and "" in content:
            content = content[: content.index("")]  # what follows is a comment, or the next cue's name
        elif end < len(lines):
            _drop_number(content, number)
        text = "\n".join(line.strip() for line in content if line.strip())
        extra: dict[str, Any] = {}
        if format == "vtt":
            text = _INSIDE_TIME.sub("", text)
            name = lines[place - 1].strip() if place > 1 and not lines[place - 2].strip() else ""
            settings = timing[3].strip() if timing else ""
            extra = {name: value for name, value in (("id", name), ("settings", settings)) if value}
        before = (cues[-1].start_s, cues[-1].end_s) if cues else (0.0, 0.0)
        cues.append(_Cue(*((_seconds(timing[1]), _seconds(timing[2])) if timing else before), text, extra))
    if not any(map(_TIMING.match, lines)):
        return "", []
    return (_vtt_header(lines[: places[0]]) if format == "vtt" else ""), cues


def _drop_number(content: list[str], number: int) -> None:
    """Remove from a cue's lines the number of the next one, which stands before its times."""
    while content and not content[-1].strip():
        content.pop()
    if not content or not content[-1].strip().isdecimal():
        return
    if len(content) == 1 or not content[-2].strip() or int(content[-1]) == number + 1:
        content.pop()


def _vtt_header(lines: Sequence[str]) -> str:
    """Return the first line, what describes the file, and its styles; not comments, nor the clock of a stream's segment."""
    blocks = "\n".join(line.rstrip() for line in lines).split("\n\n")
    kept = [block for number, block in enumerate(blocks) if not number or block.startswith(_STYLE_BLOCKS)]
    return "\n\n".join(
        "\n".join(line for line in block.split("\n") if line and not line.startswith("X-TIMESTAMP-MAP"))
        for block in kept
    )


def _ass(lines: Sequence[str]) -> tuple[str, list[_Cue]]:
    """Return all up to the events, and the cues: the lines of dialogue, without comments."""
    header: list[str] = []
    cues: list[_Cue] = []
    columns = ["Layer", "Start", "End", "Style", "Name", "MarginL", "MarginR", "MarginV", "Effect", "Text"]
    section = ""
    for line in lines:
        if found := _ASS_SECTION.fullmatch(line.strip()):
            section = found[1].lower()
        kind, _, value = line.partition(":")
        if section != "events":
            header += [] if section in _LEFT_OUT_SECTIONS else [line.rstrip()]
        elif kind.strip() == "Format":
            columns = [name.strip() for name in value.split(",")]
        elif kind.strip() == "Dialogue":
            cues += _dialogue(value, columns)
    events = ["[Events]", f"Format: {', '.join(columns)}"]
    return "\n".join([*header, *events]), cues


def _dialogue(value: str, columns: Sequence[str]) -> Iterator[_Cue]:
    fields = value.lstrip().split(",", len(columns) - 1)
    by_name = {name.lower(): field.strip() for name, field in zip(columns, fields, strict=False)}
    if len(fields) == len(columns) and columns[-1].lower() == "text":
        times = [re.fullmatch(_CLOCK, by_name.get(name, ""), re.ASCII) for name in ("start", "end")]
        if times[0] and times[1]:
            yield _Cue(_seconds(times[0][0]), _seconds(times[1][0]), fields[-1].strip(), {"fields": fields[:-1]})


def _seconds(clock: str) -> float:
    *larger, last = "".join(clock.split()).replace(",", ".").removeprefix("-").split(":")
    minutes = 0
    for part in larger:
        minutes = minutes * 60 + int(part)
    return 0.0 if clock.startswith("-") else round(minutes * 60 + float(last), 3)


def _without_repeats(cues: Sequence[list[str]]) -> list[list[str]]:
    """Return the lines of each cue without those that rolling captions, such as YouTube's, repeat from the cue before."""
    repeated = [0, *(_num_repeated(before, after) for before, after in pairwise(cues))]
    is_rolling = sum(map(bool, repeated)) >= max(2, (len(cues) - 1) / 2)
    return [lines[count:] for lines, count in zip(cues, repeated, strict=True)] if is_rolling else list(cues)


def _num_repeated(before: Sequence[str], after: Sequence[str]) -> int:
    counts = range(min(len(before), len(after)), 0, -1)
    return next((count for count in counts if any(after[:count]) and before[-count:] == after[:count]), 0)


def _spoken(cues: Sequence[Sequence[str]]) -> list[str]:
    """Return the words of each cue, separated by single spaces; of a cue without words an empty text."""
    texts = [_SOUNDS.sub(" ", _SOUNDS.sub(" ", "\n".join(lines))) for lines in cues]  # twice: ([music])
    lines = [
        [_LEADING.sub("", line, count=1) if _LEADING.match(line) else line for line in one.split("\n")] for one in texts
    ]
    counts = Counter(label[1] for one in lines for line in one if (label := _LABEL.match(line)))
    is_named = counts.total() * 2 > len(cues)  # the minutes of a call, say, with a name before each cue
    labels = {label for label, count in counts.items() if _is_label(label, is_named or count > 1)}
    return [" ".join(word for line in one for word in _words(line, labels)) for one in lines]


def _is_label(label: str, is_usual: bool) -> bool:
    """Return True for a speaker's name: in capitals, or each word with a capital where that is usual."""
    words = label.split()
    if len(words) > _MAX_LABEL_WORDS or not any(map(str.isalpha, label)):
        return False
    return label.isupper() or (is_usual and all(word[0].isupper() or word[0].isdigit() for word in words))


def _words(line: str, labels: set[str]) -> Iterator[str]:
    label = _LABEL.match(line)
    if label and label[1] in labels:
        line = line[label.end() :]
    for word in line.split():
        if not _MARKS.issuperset(word):
            yield word.strip(_MUSIC[:-1])
