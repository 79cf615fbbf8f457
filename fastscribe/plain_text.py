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


def clean_text(text: str) -> str:
    """One line that is safe in any text format: no control characters, no arrow of SRT's, no lone surrogates."""
    if not text.isprintable():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        text = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp") else char for char in text)
    while "-->" in text:
        text = text.replace("-->", "->")
    return " ".join(text.split())


def num_columns(text: str) -> int:
    """Width in a fixed-width font, where Chinese, Japanese and Korean characters take two columns."""
    return len(text) if text.isascii() else sum(2 if _is_wide(char) else 1 for char in text)


def split_word(text: str, max_columns: int) -> Iterator[str]:
    """Between wide characters and after hyphens, and wherever a line would overflow."""
    unit, unit_columns = "", 0
    for char in text:
        columns = 2 if _is_wide(char) else 1
        if unit and (unit_columns + columns > max_columns or _may_split(unit[-1], char)):
            yield unit
            unit, unit_columns = "", 0
        unit, unit_columns = unit + char, unit_columns + columns
    yield unit


def is_phrase_start(before: str, after: str) -> bool:
    """True where Japanese most likely begins a new phrase: its endings are hiragana, its stems are not."""
    return _is_hiragana(before) and not _is_hiragana(after) and after not in _NEVER_FIRST


def _is_hiragana(char: str) -> bool:
    return "\u3041" <= char <= "\u309f"


def _may_split(before: str, after: str) -> bool:
    if after in _NEVER_FIRST or before in OPENERS:
        return False
    return before in "-–—/" or ((_is_wide(before) or _is_wide(after)) and not unicodedata.combining(after))


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"
