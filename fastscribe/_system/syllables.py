"""Syllables of scripts that write no spaces between words: Thai, Lao, New Tai Lue, Khmer and Burmese. Pure.

Where a word ends needs a dictionary; where some syllables begin does not. Here are the places that are certain by the letters
alone, and what never stands apart. text_layout.py imports this module for a text that has such letters.
"""

from __future__ import annotations

import re

# Vowels that are written before the consonant that they follow in speech: Unicode's Logical_Order_Exception.
LEADING_VOWELS = "\u0e40-\u0e44\u0ec0-\u0ec4\u19b5-\u19b7\u19ba"
# Vowels and signs behind their consonant that Unicode counts as letters: a, aa, am, long lakkhangyao; repetition, abbreviation.
_FOLLOWING = "\u0e2f\u0e30\u0e32\u0e33\u0e45\u0e46\u0eaf\u0eb0\u0eb2\u0eb3\u0ebd\u0ec6"
_LAST = "\u0e30\u0e33\u0e46\u0eb0\u0eb3\u0ec6"  # nothing of the same syllable follows
_STACKERS = "\u17d2\u1039"  # put the next consonant below: Khmer's coeng, Burmese's virama

_BOUNDARY = re.compile(
    f"(?=[{LEADING_VOWELS}])|(?<=[{_LAST}])"
    "|(?<!\u17d2)(?=[\u1780-\u17a2][\u17c9\u17ca]?[\u17b6-\u17c5])|(?=[\u17a3-\u17b3])"  # Khmer: an initial has a vowel sign
    "|(?<!\u1039)(?=[\u1000-\u102a\u103f](?!\u1037?[\u1039\u103a]))"  # Burmese: a final has asat, or the next one below it
)
_INSEPARABLE = re.compile(f"[{LEADING_VOWELS}{_STACKERS}].|.[{_FOLLOWING}]", re.DOTALL)


def boundaries(text: str) -> list[int]:
    """Return the places inside a text, in characters, where one syllable certainly ends and another begins."""
    return [found.start() for found in _BOUNDARY.finditer(text) if 0 < found.start() < len(text)]


def is_inseparable(before: str, after: str) -> bool:
    """Return True for two characters of one syllable that no line break may part, besides marks (category M)."""
    return _INSEPARABLE.fullmatch(before + after) is not None
