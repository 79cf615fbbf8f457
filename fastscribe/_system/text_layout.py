"""Text as it is printed: what must not be in it, how wide it is, and where a word may be divided. Pure.

Knows characters only, neither times nor formats. Widths are columns of a fixed-width font, which subtitles count in.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

SENTENCE_MARKS = frozenset(".?!…。．！？｡؟۔।")
CLAUSE_MARKS = frozenset(",;:—–，、；：､،؛·")
CLOSERS = "\"'”’»›)]}」』】〉》）］｝"
OPENERS = "\"'“‘«‹([{「『【〈《（［｛¿¡"
_SMALL_KANA = frozenset("ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々")
_NEVER_FIRST = frozenset(CLOSERS) | SENTENCE_MARKS | CLAUSE_MARKS | _SMALL_KANA
_ZERO_WIDTH_JOINER = "\u200d"
_MARKS_CALLED_LETTERS = frozenset("\u0e33\u0eb3\uff9e\uff9f")  # Thai and Lao am, half-width sound marks
# Invisible: what turns the rest of a line around wherever it is shown, and the byte order mark.
_DROPPED = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF])


def escaped(text: str, keep: str = "") -> str:
    r"""`text` in which each character that cannot be printed is named, but for those in `keep`: fit for a terminal or a log.

    Escape sequences, line breaks, characters that turn the line around, and lone surrogates do nothing then.

    >>> escaped("a\n\x1b[31mb")
    'a\\n\\x1b[31mb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def clean_text(text: str) -> str:
    """One line that is safe in any text format: no control characters, no arrow of SRT's, no lone surrogates.

    Nor invisible characters that override which way text runs; those that only mark it for one place (U+200F) stay.
    """
    if not text.isprintable():
        text = text.translate(_DROPPED).encode("utf-8", "backslashreplace").decode("utf-8")
        text = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp") else char for char in text)
    while "-->" in text:
        text = text.replace("-->", "->")
    return " ".join(text.split())


def num_columns(text: str) -> int:
    """Width in a fixed-width font, where Chinese, Japanese and Korean characters take two columns."""
    return len(text) if text.isascii() else sum(2 if _is_wide(char) else 1 for char in text)


def split_word(text: str, max_columns: int) -> Iterator[str]:
    """Between wide characters and after hyphens, and wherever a line would overflow; never inside what is drawn as one."""
    unit, unit_columns, before = "", 0, ""
    for cluster in _clusters(text, max_columns):
        columns = num_columns(cluster)
        if unit and (unit_columns + columns > max_columns or _may_split(before, cluster[0])):
            yield unit
            unit, unit_columns = "", 0
        unit, unit_columns, before = unit + cluster, unit_columns + columns, cluster[:1]
    yield unit


def is_phrase_start(before: str, after: str) -> bool:
    """True where Japanese most likely begins a new phrase: its endings are hiragana, its stems are not."""
    return _is_hiragana(before) and not _is_hiragana(after) and after not in _NEVER_FIRST


def _is_hiragana(char: str) -> bool:
    return "\u3041" <= char <= "\u309f"


def _clusters(text: str, max_columns: int) -> Iterator[str]:
    """What is drawn as one character: a letter and its marks, a syllable of jamo, an emoji of several; no wider than that."""
    cluster, columns = "", 0
    for char in text:
        char_columns = num_columns(char)
        if cluster and (columns + char_columns > max_columns or not _is_one_with(cluster[-1], char)):
            yield cluster
            cluster, columns = "", 0
        cluster, columns = cluster + char, columns + char_columns
    yield cluster


def _is_one_with(before: str, after: str) -> bool:
    """Whether `after` is drawn onto `before`: a mark, a format character, later jamo, a tone of skin; all after a joiner."""
    is_mark = unicodedata.category(after) in ("Mn", "Mc", "Me", "Cf") or after in _MARKS_CALLED_LETTERS
    is_part = "\u1160" <= after <= "\u11ff" or "\U0001f3fb" <= after <= "\U0001f3ff"
    return before == _ZERO_WIDTH_JOINER or is_mark or is_part


def _may_split(before: str, after: str) -> bool:
    if after in _NEVER_FIRST or before in OPENERS:
        return False
    return before in "-–—/" or _is_wide(before) or _is_wide(after)


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"
