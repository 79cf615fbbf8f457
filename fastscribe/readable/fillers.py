"""Remove fillers: "So, um, I think" becomes "So, I think". Pure.

A filler is a sound that is no word of its language, such as "um" in English; in German "um" is a word. So each language has a
list of its own. Words that are fillers at times ("like", "you know"), answers ("mhm", "uh-huh") and repeated words stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fastscribe._system.text_layout import CLAUSE_MARKS, CLOSERS
from fastscribe.readable.words import Parts, ends_sentence, parts_of
from fastscribe.types import Word

# By language: patterns of whole words in small letters. Long forms count: "ummm", "ääähm".
_HUM = "hm+|m{3,}"
_FILLERS = {
    "de": f"ä+h*m+|ä+h+|ö+h*m+|ö+h+|e+hm+|u+hm+|{_HUM}",
    "en": f"u+h*m+|u+h+|e+rm+|er|e{{2,}}r+|ehm+|{_HUM}",
    "es": f"e+hm+|e{{3,}}h*|{_HUM}",
    "fr": f"e+u+h+|h+e+u+h*|h+u+m+|{_HUM}",
    "it": f"e+hm+|u+hm+|e{{3,}}h*|{_HUM}",
    "nl": f"e+h+m*|e+u+hm*|u+h+m*|u+mm+|{_HUM}",
    "pl": f"y{{2,}}|e{{3,}}|e+hm+|{_HUM}",
    "pt": f"ã+hm*|a+hm+|e+hm+|u+hm+|é{{2,}}|{_HUM}",
    "ru": "э{2,}м*|эм+|хм+|м{3,}|э",
    "sv": f"ö+h+m*|e+hm*|ä+hm+|{_HUM}",
}
_PATTERNS: Mapping[str, re.Pattern[str]] = {language: re.compile(text) for language, text in _FILLERS.items()}
FILLER_LANGUAGES = tuple(_PATTERNS)
_CLOSERS = frozenset(CLOSERS)


def is_filler(text: str, language: str) -> bool:
    """Return True if a word without marks is a filler of a language of FILLER_LANGUAGES."""
    return _PATTERNS[language].fullmatch(text.casefold()) is not None


def without_fillers(words: Sequence[Word], language: str) -> tuple[list[Word], list[Word]]:
    """Split the words of a segment into those that stay and the fillers. Marks and capitals of the rest are repaired.

    Args:
        words: The segment's words.
        language: One of FILLER_LANGUAGES.

    Returns:
        The words that stay, and the fillers as they were.
    """
    kept: list[Word] = []
    fillers: list[Word] = []
    opening, takes_capital, is_start = "", False, True
    has_small_letters = any(map(str.islower, (letter for word in words for letter in word.text)))
    for word in words:
        parts = parts_of(word.text)
        is_abbreviation = has_small_letters and len(parts.core) > 1 and parts.core.isupper()  # "the ER"
        if is_abbreviation or not is_filler(parts.core, language):
            kept.append(_begun(word, parts, opening, takes_capital))
            opening, takes_capital, is_start = "", False, ends_sentence(word.text)
            continue
        fillers.append(word)
        takes_capital = takes_capital or (is_start and parts.core[:1].isupper())
        opening += parts.opening
        if ends_sentence(word.text):
            if not is_start:
                kept[-1] = _ended(kept[-1], parts.closing)
            opening, takes_capital, is_start = "", False, True
        elif not _CLOSERS.isdisjoint(parts.closing):
            opening = _closed(kept, parts, opening)
    return kept, fillers


def _begun(word: Word, parts: Parts, opening: str, takes_capital: bool) -> Word:
    """Return the word after fillers, with their opening marks, and with their capital if they began the sentence."""
    core = parts.core[:1].upper() + parts.core[1:] if takes_capital else parts.core
    text = opening + parts.opening + core + parts.closing
    return word if text == word.text else replace(word, text=text)


def _ended(word: Word, closing: str) -> Word:
    """Return the word before a filler that ended the sentence, with the filler's marks instead of its own comma."""
    return replace(word, text=word.text.rstrip("".join(CLAUSE_MARKS)) + closing)


def _closed(kept: list[Word], parts: Parts, opening: str) -> str:
    """Move a filler's closing quotation mark to the word before. Return the opening marks that wait for a word."""
    if opening:  # the filler alone was quoted
        return opening[: -len(parts.opening)] if parts.opening else opening[:-1]
    if kept:
        closers = "".join(mark for mark in parts.closing if mark in _CLOSERS)
        kept[-1] = replace(kept[-1], text=kept[-1].text + closers)
    return ""
