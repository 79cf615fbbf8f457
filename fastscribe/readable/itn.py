"""Inverse text normalization: spoken numbers become written ones, "twenty three dollars" becomes "$23". Extra `itn`.

wetext has the grammars of WeTextProcessing as compiled transducers, and says which part of its input became which part of its
output. Only these parts change, so no other word loses its capitals, its marks or its time. A written word keeps the words
that were said (Word.original), and lies within their time; several written words of one expression share it by their widths.

The grammars know neither capitals nor marks, so they see small letters, without the marks at the ends of words, and never
across such a mark. Some of what they would write stays as it was said: numbers up to twelve with a unit ("five minutes"),
ordinals up to twelfth, titles ("doctor"), letters beside numbers, and addresses, which the English grammar joins with the
words before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from fastscribe.errors import MissingExtra
from fastscribe.readable.words import join_words, parts_of
from fastscribe.types import Word

if TYPE_CHECKING:
    from wetext import Normalizer

ITN_LANGUAGES = ("en", "ja", "zh")
_KINDS = frozenset(("cardinal", "date", "decimal", "fraction", "measure", "money", "ordinal", "telephone", "time"))
_KINDS_OF_SMALL_NUMBERS = frozenset(("measure", "ordinal"))
_LARGEST_WORD = 12  # larger numbers are written in figures
_SMALL = re.compile(r"([0-9]+)(?!\.?[0-9])(st|nd|rd|th)?( [^%]+)?")
_UNIT_APART = re.compile(r"(?<=[0-9]) %")
# English words without which no grammar of _KINDS writes anything.
_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth
sixteenth seventeenth eighteenth nineteenth twentieth thirtieth hundredth thousandth half quarter twenties thirties
forties fifties sixties seventies eighties nineties
"""
_NUMBER_WORDS = frozenset(_NUMBERS.split())
_MAGNITUDES = frozenset(("hundred", "thousand", "million", "billion"))
_CONTEXT_WORDS = 4  # around number words: the units and months that belong to them


@dataclass(frozen=True)
class _Unit:
    """A word of the grammar's input."""

    text: str
    word: int  # its number among the words


class Itn:
    """Writes numbers in one language. Not thread-safe."""

    def __init__(self, language: str) -> None:
        """Load the grammars of one of ITN_LANGUAGES. Raises MissingExtra."""
        if find_spec("wetext") is None or find_spec("kaldifst") is None:
            raise MissingExtra("--itn", "wetext 0.1.8", "itn")
        from wetext import Normalizer

        self._has_spaces = language == "en"
        self._normalizer: Normalizer = Normalizer(lang=language, operator="itn")

    def written(self, words: Sequence[Word]) -> list[Word]:
        """Return the words of a segment with numbers in figures.

        Args:
            words: The segment's words, in order.

        Returns:
            The words. One that was written has the spoken ones as `original`, with their times; all others are the same.
        """
        found: list[Word] = []
        first_left = 0
        for first, end, text in self._expressions(words):
            found += words[first_left:first]
            found += _written(words[first:end], text)
            first_left = end
        return [*found, *words[first_left:]]

    def _expressions(self, words: Sequence[Word]) -> Iterator[tuple[int, int, str]]:
        """Yield (first, end, text) of the words to replace, in order."""
        runs = _english_runs(words) if self._has_spaces else ([_Unit(word.text, at)] for at, word in enumerate(words))
        for run in runs:
            yield from self._in_run(run, [word.text for word in words])

    def _in_run(self, run: Sequence[_Unit], texts: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        spoken = " ".join(unit.text for unit in run)
        try:
            if self._normalizer.normalize(spoken) == spoken:  # seven times as fast as with the parts
                return
            result = self._normalizer.normalize_with_mapping(spoken)
        except RuntimeError:  # no grammar reads these characters: they stay as they are
            return
        if not self._has_spaces:
            if any(one.token_type in _KINDS for one in result.mappings):
                yield run[0].word, run[0].word + 1, result.output_text
            return
        starts = list(accumulate((len(unit.text) + 1 for unit in run), initial=0))
        for one in result.mappings:
            if one.token_type not in _KINDS or _stays(one.token_type, one.output_text):
                continue
            if one.input_start not in starts or one.input_end + 1 not in starts:
                continue
            if _is_rest(run[: starts.index(one.input_start)]):
                continue
            inside = run[starts.index(one.input_start) : starts.index(one.input_end + 1)]
            if _is_list(inside):
                continue
            first, end = inside[0].word, inside[-1].word + 1
            is_whole = [unit for unit in run if first <= unit.word < end] == list(inside)
            if is_whole:
                yield first, end, _with_capitals(_UNIT_APART.sub("%", one.output_text), texts[first:end])


def _stays(kind: str, text: str) -> bool:
    """Return True for a small number that reads better as it was said, and for letters beside a number: "I twenty"."""
    if kind == "telephone" and any(map(str.isalpha, text)):
        return True
    number = _SMALL.fullmatch(text) if kind in _KINDS_OF_SMALL_NUMBERS else None
    return number is not None and int(number[1]) <= _LARGEST_WORD


def _is_rest(before: Sequence[_Unit]) -> bool:
    """Return True if the words before make the number the rest of one that is not written: "a hundred and twenty"."""
    return len(before) > 1 and before[-1].text == "and" and before[-2].text in _MAGNITUDES


def _is_list(inside: Sequence[_Unit]) -> bool:
    """Return True for two numbers, which the grammar joins: "eleven and thirteen". "A hundred and twenty" is one."""
    pairs = pairwise(unit.text for unit in inside)
    return any(word == "and" and before in _NUMBER_WORDS - _MAGNITUDES for before, word in pairs)


def _english_runs(words: Sequence[Word]) -> Iterator[list[_Unit]]:
    """Yield the words near number words, between marks: the grammars take milliseconds for each word that they read."""
    for clause in _clauses(words):
        first = end = 0
        for at, unit in enumerate(clause):
            if _NUMBER_WORDS.isdisjoint(unit.text.split("-")):
                continue
            if at - _CONTEXT_WORDS > end:
                if end:
                    yield clause[first:end]
                first = at - _CONTEXT_WORDS
            end = at + 1 + _CONTEXT_WORDS
        if end:
            yield clause[first:end]


def _clauses(words: Sequence[Word]) -> Iterator[list[_Unit]]:
    """Yield the words between marks, in small letters. "Twenty-three" is two, of the same word."""
    clause: list[_Unit] = []
    for at, word in enumerate(words):
        opening, core, closing = parts_of(word.text)
        if opening or not core:
            yield clause
            clause = []
        texts = core.lower().split("-")
        clause += [_Unit(text, at) for text in (texts if _NUMBER_WORDS.issuperset(texts) else [core.lower()]) if text]
        if closing:
            yield clause
            clause = []
    yield clause


def _with_capitals(text: str, spoken: Sequence[str]) -> str:
    """Return the written text with the capitals of the words that were said: "june 3" as "June 3"."""
    cores = {core.lower(): core for core in (parts_of(word).core for word in spoken)}
    written = [cores.get(word, word) for word in text.split()]
    if parts_of(spoken[0]).core[:1].isupper() and written[0][:1].islower():
        written[0] = written[0][:1].upper() + written[0][1:]
    return " ".join(written)


def _written(spoken: Sequence[Word], text: str) -> list[Word]:
    """Return the written words in place of spoken ones, whose time they share by their widths."""
    texts = text.split()
    texts[0] = parts_of(spoken[0].text).opening + texts[0]
    if texts[-1][-1:] != parts_of(spoken[-1].text).closing[:1]:
        texts[-1] += parts_of(spoken[-1].text).closing
    start_s, end_s = spoken[0].start_s, max(word.end_s for word in spoken)
    confidence = sum(word.confidence for word in spoken) / len(spoken)
    edges = list(accumulate(map(len, texts), initial=0))
    times_s = [start_s + (end_s - start_s) * edge / edges[-1] for edge in edges]
    times_s[-1] = end_s
    missing = any(word.missing for word in spoken)
    return [
        Word(one, times_s[at], times_s[at + 1], confidence, missing, spoken[0].speaker, join_words(spoken))
        for at, one in enumerate(texts)
    ]
