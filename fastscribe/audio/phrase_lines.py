"""Parse phrases to boost: the lines of a list, and the field `boost` of a manifest's row. Pure.

A list has a phrase a line. A tab and a number after the phrase are its weight: 1 is the usual one, 2 counts twice. Blank lines
and lines that begin with # are ignored. context/phrases.py reads lists from files and turns phrases into tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from fastscribe._system.text_layout import count_of
from fastscribe.config import MAX_BOOST_WEIGHT
from fastscribe.errors import UsageError
from fastscribe.types import Phrase

MAX_CHARACTERS = 200  # of a phrase
MAX_PHRASES = 100_000  # of a list: about 5 GB while they are prepared
_LINE_END = re.compile(r"\r\n|\r|\n")
_SPACED_WEIGHT = re.compile(r"^[^\t]*\S(?: +|: *)(?:[1-9]|10|[0-9]\.[0-9]+)\s*$")
_JOINERS = re.compile("[\u200c\u200d]")  # letters of Persian and of India's languages are written with them


class PhraseError(UsageError):
    """A line of a list that is no phrase."""


def parse_phrases(lines: Iterable[str], where: str, say: Callable[[str], None] | None = None) -> tuple[Phrase, ...]:
    """Parse the lines of a list.

    Args:
        lines: The lines, with or without their ends.
        where: What holds them, for messages.
        say: Told of lines without a letter and a digit (an emoji, ---), which are left out, and of weights behind a space;
            None: the former are no phrases.

    Returns:
        The phrases in order. A phrase that stands twice has its last weight.

    Raises:
        PhraseError: A line is not a phrase with an optional weight; the message names it.
    """
    found: dict[str, Phrase] = {}
    odd: list[str] = []
    spaced: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        text = " ".join(line.partition("\t")[0].split())
        if say is not None and text and not _has_letters(text):
            odd.append(f"line {number}, {text:.20}")
            continue
        if _SPACED_WEIGHT.search(line):
            spaced.append(f"line {number}, {text:.40}")
        try:
            phrase = _parse(line)
        except ValueError as error:
            raise PhraseError(f"{where}: line {number}: {error}") from None
        found[phrase.text] = phrase
        if len(found) > MAX_PHRASES:
            raise PhraseError(f"{where}: more than {MAX_PHRASES:,} phrases")
    if say is not None and odd:
        say(f"{where}: {count_of(len(odd), 'line')} without a letter or a digit left out: {odd[0]}")
    if say is not None and spaced:
        lines_end = "1 line ends" if len(spaced) == 1 else f"{len(spaced):,} lines end"
        say(f"{where}: {lines_end} in a number that is part of the phrase ({spaced[0]}): a weight stands behind a tab")
    return tuple(found.values())


def _has_letters(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _parse(line: str) -> Phrase:
    text, tab, given = line.rstrip("\r\n").partition("\t")
    text = " ".join(text.split())
    if not text:
        raise ValueError("a weight without a phrase before it")
    if not _JOINERS.sub("", text).isprintable():
        raise ValueError("a phrase has characters that cannot be printed")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"a phrase of {len(text)} characters; at most {MAX_CHARACTERS}")
    if not _has_letters(text):
        raise ValueError(f"{text!r} has no letter and no digit")
    if not tab:
        return Phrase(text)
    try:
        weight = float(given)
    except ValueError:
        weight = math.nan
    if not 0 < weight <= MAX_BOOST_WEIGHT:
        why = ": heavier ones are written where they are not spoken" if weight > MAX_BOOST_WEIGHT else ""
        raise ValueError(f"weight {given.strip()!r:.40}: not a number above 0, up to {MAX_BOOST_WEIGHT:g}{why}")
    return Phrase(text, weight)


def split_lines(text: str) -> list[str]:
    """Return the lines of a list."""
    return _LINE_END.split(text)


def phrases_of_row(value: object) -> tuple[Phrase, ...]:
    """Return the phrases in the `boost` field of a manifest's row.

    Args:
        value: A string with a phrase a line, a list of such lines, or None.

    Raises:
        PhraseError: It is none of these, or a line is no phrase.
    """
    if value is None:
        return ()
    lines = split_lines(value) if isinstance(value, str) else value
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        raise PhraseError("boost is not a string with a phrase a line, nor a list of phrases")
    return parse_phrases(lines, "boost")
