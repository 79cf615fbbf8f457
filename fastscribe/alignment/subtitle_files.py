r"""Find the words to be spoken in the cues of subtitles (SubRip, WebVTT, ASS and SSA), which cue_reader.py reads. Pure.

Files are read as players read them: with or without numbers, hours and milliseconds, with any line ends, in UTF-8, UTF-16, or
else Windows-1252. What is shown but not spoken is left out of the words, not of the cue: markup, the dash and the name before
a speaker's line, sounds in brackets, music signs, and the lines that a rolling caption repeats.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from fastscribe.results.formats.cue_markup import has_times, plain_text

SUBTITLE_EXTENSIONS = (".srt", ".vtt", ".ass", ".ssa")
OTHER_SUBTITLES = frozenset((".dfxp", ".itt", ".lrc", ".sami", ".sbv", ".scc", ".smi", ".stl", ".sub", ".ttml", ".usf"))
_SNIFFED_LINES = 20  # without a timing line among them, a file is a text
_SOUNDS = re.compile(
    r"\[[^\[\]]*\]|\([^()]*\)|\{[^{}]*\}|（[^（）]*）|【[^【】]*】|［[^［］]*］|〔[^〔〕]*〕|\*[^*\n]+\*"
)
_DASHES, _MUSIC = "‐‑‒–—―−-", "♩♪♫♬#"
_MARKS = frozenset(_DASHES + _MUSIC + "*~_•…<>|/\\.,:;!?\"'")
_LEADING = re.compile(f"[{re.escape(f'>*•{_DASHES}{_MUSIC}')}\\s]+")
_LABEL = re.compile(r"([^:\n]{1,40}?)\s*:(?=\s|$)")
_MAX_LABEL_WORDS = 4


class NoCues(ValueError):
    """A file of subtitles without a cue; the message says what is wrong."""


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
    return "srt" if any(map(has_times, lines)) else None


def read_subtitles(text: str, format: str, encoding: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the words to be spoken, a line for each cue, and the subtitles as a row has them (results/formats/given_cues.py).

    Args:
        text: A file's content.
        format: From format_of().
        encoding: From decode().

    Raises:
        NoCues: It has no cue.
    """
    from fastscribe.alignment.cue_reader import read_cues

    header, cues = read_cues(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", ""), format)
    if not cues:
        raise NoCues("it has no cue with a time")
    cues = sorted(cues, key=lambda cue: float(cue["start"]))
    shown = [plain_text(cue["text"], format).split("\n") for cue in cues]
    given = {
        "format": format,
        **({"encoding": encoding} if encoding else {}),
        **({"header": header} if header else {}),
        "cues": cues,
    }
    return "\n".join(_spoken(_without_repeats(shown))), given


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
