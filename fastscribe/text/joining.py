"""Join texts of utterances or segments. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def join_texts(texts: Iterable[str]) -> str:
    """Join texts with spaces, but without one between two characters of a script that has none."""
    parts: list[str] = []
    for text in filter(None, texts):
        if parts:
            parts.append("" if _has_no_spaces(parts[-1][-1]) and _has_no_spaces(text[0]) else " ")
        parts.append(text)
    return "".join(parts)


def _has_no_spaces(character: str) -> bool:
    """Return True for Chinese and Japanese letters and their punctuation. Korean has spaces."""
    is_wide = unicodedata.east_asian_width(character) in "WF" and unicodedata.category(character)[0] in "LP"
    return is_wide and "HANGUL" not in unicodedata.name(character, "")
