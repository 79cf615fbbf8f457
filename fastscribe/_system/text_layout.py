"""Lay text out for printing: characters to remove, widths, where a word may be split and texts are joined by a space. Pure.

Widths are columns of a fixed-width font, which subtitles count in.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

SENTENCE_MARKS = frozenset(".?!…。．！？｡؟۔।")
CLAUSE_MARKS = frozenset(",;:—–，、；：､،؛·")
CLOSERS = "\"'”’»›)]}」』】〉》）］｝"
OPENERS = "\"'“‘«‹([{「『【〈《（［｛¿¡"
_SMALL_KANA = frozenset("ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々")
_NO_LINE_START = frozenset(CLOSERS) | SENTENCE_MARKS | CLAUSE_MARKS | _SMALL_KANA
_ZERO_WIDTH_JOINER = "\u200d"
_MARKS_OF_LETTER_CATEGORY = frozenset("\u0e33\u0eb3\uff9e\uff9f")  # Thai and Lao am, half-width sound marks
# Invisible characters that reverse the rest of a line wherever it is shown, and the byte order mark.
_DROPPED = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF])


def escaped(text: str, keep: str = "") -> str:
    r"""Escape every unprintable character that is not in `keep`, for a terminal or a log.

    These are escape sequences, line breaks, characters that reverse the line, and lone surrogates.

    >>> escaped("a\n\x1b[31mb")
    'a\\n\\x1b[31mb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def count_of(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_of(1, "recording"), count_of(2000, "recording"), count_of(2, "batch"), count_of(2, "epoch")
    ('1 recording', '2,000 recordings', '2 batches', '2 epochs')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("tch") else "s")


def first_of(names: Sequence[str], most: int, number: int | None = None) -> str:
    """Return the first names, and how many others there are, for a message. `number`: of all, where not all names are given."""
    others = (len(names) if number is None else number) - min(most, len(names))
    return ", ".join(names[:most]) + (f" and {others:,} more" if others > 0 else "")


def clock(time_s: float) -> str:
    """Return a time to read.

    >>> clock(192.9), clock(3661)
    ('03:12', '1:01:01')
    """
    minutes, seconds = divmod(int(time_s), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes:02d}:{seconds:02d}"


def clean_text(text: str) -> str:
    """Return one line that is safe in any text format: no control characters, no SRT arrow, no lone surrogates.

    Invisible characters that override the text direction go too; those that only mark it for one place (U+200F) stay.
    """
    if not text.isprintable():
        text = text.translate(_DROPPED).encode("utf-8", "backslashreplace").decode("utf-8")
        text = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp") else char for char in text)
    while "-->" in text:
        text = text.replace("-->", "->")
    return " ".join(text.split())


def num_columns(text: str) -> int:
    """Return the width in a fixed-width font, in which Chinese, Japanese and Korean characters take two columns."""
    return len(text) if text.isascii() else sum(2 if _is_wide(char) else 1 for char in text)


def split_word(text: str, max_columns: int) -> Iterator[str]:
    """Split between wide characters, after hyphens, between syllables of scripts without spaces (syllables.py), and wherever
    a line would overflow; never inside a drawn character."""
    for part in _syllables(text):
        yield from _split(part, max_columns)


def _split(text: str, max_columns: int) -> Iterator[str]:
    unit, unit_columns, before = "", 0, ""
    for cluster in _clusters(text, max_columns):
        columns = num_columns(cluster)
        if unit and (unit_columns + columns > max_columns or _may_split(before, cluster[0])):
            yield unit
            unit, unit_columns = "", 0
        unit, unit_columns, before = unit + cluster, unit_columns + columns, cluster[:1]
    yield unit


def _syllables(text: str) -> list[str]:
    """Return the text, cut where syllables begin if its script writes no spaces between words."""
    if not any(_may_lack_spaces(char) for char in text):
        return [text]
    places = [
        place
        for place in (found.start() for found in _BOUNDARY.finditer(text))
        if 0 < place < len(text)
        and not _joins(text[place - 1], text[place])
        and text[place] not in _NO_LINE_START
        and text[place - 1] not in OPENERS
    ]
    return [text[start:end] for start, end in pairwise([0, *places, len(text)])]


def _may_lack_spaces(char: str) -> bool:
    """Return True for characters from Thai to New Tai Lue, which syllables.py knows."""
    return "\u0e00" <= char <= "\u19ff"


def is_phrase_start(before: str, after: str) -> bool:
    """Return True if Japanese most likely begins a phrase here: its endings are hiragana, its stems are not."""
    return _is_hiragana(before) and not _is_hiragana(after) and after not in _NO_LINE_START


def _is_hiragana(char: str) -> bool:
    return "\u3041" <= char <= "\u309f"


def _clusters(text: str, max_columns: int) -> Iterator[str]:
    """Groups that are drawn as one: a letter and its marks, a syllable of jamo, an emoji of several; limited in width."""
    cluster, columns = "", 0
    for char in text:
        char_columns = num_columns(char)
        if cluster and (columns + char_columns > max_columns or not _joins(cluster[-1], char)):
            yield cluster
            cluster, columns = "", 0
        cluster, columns = cluster + char, columns + char_columns
    yield cluster


def _joins(before: str, after: str) -> bool:
    """True if `after` is drawn onto `before`: a mark, format character, later jamo, skin tone, or anything after a joiner.
    Vowels before or after their consonant count too."""
    is_mark = unicodedata.category(after) in ("Mn", "Mc", "Me", "Cf") or after in _MARKS_OF_LETTER_CATEGORY
    is_part = "\u1160" <= after <= "\u11ff" or "\U0001f3fb" <= after <= "\U0001f3ff"
    if before == _ZERO_WIDTH_JOINER or is_mark or is_part:
        return True
    return _may_lack_spaces(before) and is_inseparable(before, after)


def _may_split(before: str, after: str) -> bool:
    if after in _NO_LINE_START or before in OPENERS:
        return False
    return before in "-–—/" or _is_wide(before) or _is_wide(after)


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"


# Syllables of scripts that write no spaces between words: Thai, Lao, New Tai Lue, Khmer and Burmese. Pure.
#
# Where a word ends needs a dictionary; where some syllables begin does not. Here are the places that are certain by the letters
# alone, and what never stands apart.

# Vowels that are written before the consonant that they follow in speech: Unicode's Logical_Order_Exception.
LEADING_VOWELS = "\u0e40-\u0e44\u0ec0-\u0ec4\u19b5-\u19b7\u19ba"
# Vowels and signs behind their consonant that Unicode counts as letters: a, aa, am, long lakkhangyao; repetition, abbreviation.
_FOLLOWING = "\u0e2f\u0e30\u0e32\u0e33\u0e45\u0e46\u0eaf\u0eb0\u0eb2\u0eb3\u0ebd\u0ec6"
_LAST = "\u0e30\u0e33\u0e46\u0eb0\u0eb3\u0ec6"  # nothing of the same syllable follows
_STACKERS = "\u17d2\u1039"  # put the next consonant below: Khmer's coeng, Burmese's virama

_BOUNDARY = re.compile(  # where one syllable certainly ends and another begins
    f"(?=[{LEADING_VOWELS}])|(?<=[{_LAST}])"
    "|(?<!\u17d2)(?=[\u1780-\u17a2][\u17c9\u17ca]?[\u17b6-\u17c5])|(?=[\u17a3-\u17b3])"  # Khmer: an initial has a vowel sign
    "|(?<!\u1039)(?=[\u1000-\u102a\u103f](?!\u1037?[\u1039\u103a]))"  # Burmese: a final has asat, or the next one below it
)
_INSEPARABLE = re.compile(f"[{LEADING_VOWELS}{_STACKERS}].|.[{_FOLLOWING}]", re.DOTALL)


def is_inseparable(before: str, after: str) -> bool:
    """Return True for two characters of one syllable that no line break may part, besides marks (category M)."""
    return _INSEPARABLE.fullmatch(before + after) is not None


def join_texts(texts: Iterable[str]) -> str:
    """Join texts with spaces, but without one between two characters of a script that has none."""
    parts: list[str] = []
    for text in filter(None, texts):
        if parts:
            parts.append("" if has_no_spaces(parts[-1][-1]) and has_no_spaces(text[0]) else " ")
        parts.append(text)
    return "".join(parts)


def has_no_spaces(character: str) -> bool:
    """Return True for Chinese and Japanese letters and their punctuation. Korean has spaces."""
    is_wide = unicodedata.east_asian_width(character) in "WF" and unicodedata.category(character)[0] in "LP"
    return is_wide and "HANGUL" not in unicodedata.name(character, "")
