"""The text that forced alignment times: its words and lines, and the tokens of each word. Pure.

A model writes some of a text's characters only: perhaps no capitals, no digits, no punctuation. Each character becomes one
that the model writes: itself, its small letter, or its letter without accent; else it has no token. A word of which no letter
or digit is left has no tokens at all, so a dash between words is not expected to be heard, and neither are sounds in brackets.
The words stay as the user wrote them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, groupby
from operator import itemgetter

from fastscribe._system.text_layout import clock, count_of
from fastscribe.alignment.spoken import without_sounds
from fastscribe.alignment.texts import unused_names_lines
from fastscribe.results.formats.given_cues import words_inside
from fastscribe.text.encoder import EncodedWord, WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import Word

_MAX_SHOWN, _MAX_NAMED = 12, 8  # characters, and rows of words or lines, in a message
_ROW_WORDS = 4  # of such a row
_QUOTES = str.maketrans("‘’ʼ´`“”„«»‐‑–—", "'''''\"\"\"\"\"----")


@dataclass(frozen=True)
class Script:
    """The words of a text and their tokens."""

    words: tuple[str, ...]
    lines: tuple[range, ...]  # the words of each line; empty for a line without words
    token_ids: tuple[int, ...]
    word_tokens: tuple[range, ...]  # for each word the indices of its tokens; empty if the model writes none of it
    unwritten: Counter[str]  # letters and digits that the model does not write
    num_untimed: int = 0  # words of such characters alone

    def tokens_of(self, words: range) -> range:
        """Return the indices of the tokens of consecutive words, with the spaces between these."""
        spoken = [self.word_tokens[index] for index in words if self.word_tokens[index]]
        return range(spoken[0].start, spoken[-1].stop) if spoken else range(0)

    @cached_property
    def has_letters(self) -> bool:
        """True if the model writes a letter or a digit of the text."""
        return any(self.word_tokens)


class Speller:
    """Makes the Script of a text with a model's vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Prepare the vocabulary. Raises ValueError if the tokenizer cannot encode."""
        self._tokenizer = tokenizer
        self._encoder = WordEncoder.of(tokenizer)
        self._replacements: dict[str, str] = {}

    def script(self, text: str, num_lines: int = 0) -> Script:
        """Return the words and tokens of a text. Words are separated by white space, lines by line breaks.

        Args:
            text: The text.
            num_lines: Lines of the script at the least: empty ones follow those of the text.
        """
        lines = [line.split() for line in text.splitlines()]
        lines += [[]] * (num_lines - len(lines))
        words = [word for line in lines for word in line]
        is_shouted = not any(map(str.islower, text)) and self._replacement("a") == "a"
        ids: list[int] = []
        word_tokens, unwritten, num_untimed = [], Counter[str](), 0
        for word in without_sounds(text).split():
            encoded, lost = self._encode(word.lower() if is_shouted else word, is_first=not ids)
            unwritten.update(lost)
            num_untimed += bool(lost and not encoded)
            if encoded and ids:
                ids += self._encoder.space_ids
            word_tokens.append(range(len(ids), len(ids) + len(encoded)))
            ids += encoded
        return Script(tuple(words), _line_ranges(lines), tuple(ids), tuple(word_tokens), unwritten, num_untimed)

    def encoder(self) -> WordEncoder:
        """Return an encoder of words that spells them with the characters that the model writes."""

        def encode(word: str, is_first: bool = False) -> EncodedWord:
            spelled = self._spelled(word)
            return self._encoder.at(spelled, is_first) if spelled else EncodedWord((), ())

        return WordEncoder(encode, self._encoder.space_ids, partial(encode, is_first=True))

    def _spelled(self, word: str) -> str:
        return " ".join("".join(map(self._replacement, _composed(word))).split())

    def _encode(self, word: str, is_first: bool) -> tuple[tuple[int, ...], list[str]]:
        """Return the tokens of a word, and its letters and digits that have none."""
        spelled = self._spelled(word)
        lost = [character for character in _composed(word) if character.isalnum() and not self._replacement(character)]
        return (self._encoder.at(spelled, is_first).ids if any(map(str.isalnum, spelled)) else ()), lost

    def _replacement(self, character: str) -> str:
        """Return what stands for a character in the tokens; empty if nothing does."""
        if character not in self._replacements:
            plain = character.translate(_QUOTES)
            letters = "".join(filter(str.isalpha, unicodedata.normalize("NFKD", character)))
            forms = (character, character.lower(), plain, letters, letters.lower(), character.upper())
            between = " " if unicodedata.category(character) == "Pd" or character == "/" else ""  # forty-two, and/or
            self._replacements[character] = next((form for form in forms if self._is_written(form)), between)
        return self._replacements[character]

    def _is_written(self, text: str) -> bool:
        """Return True if the vocabulary has tokens for a text, other than unknown ones and bytes."""
        written = self._encoder.written
        if written is not None and not written.issuperset(text):
            return False
        ids = self._encoder.encode(text).ids if text else ()
        return bool(ids) and not any(token_id in self._without_text for token_id in ids)

    @cached_property
    def _without_text(self) -> frozenset[int]:
        tokenizer = self._tokenizer
        return tokenizer.unknown_ids | tokenizer.silent_ids | tokenizer.byte_ids | {len(tokenizer.pieces)}


@dataclass
class Counts:
    """What was not as the texts say, in all recordings so far.

    Attributes:
        unwritten: Letters and digits that the model does not write, by how often they came.
        num_untimed: Words that the model writes nothing of.
        num_words: Words of all texts.
        num_missing: Words that were not heard.
        missing: The first of these in a row, with their path, and where they were expected.
        num_unheard: Lines of texts, not of subtitles, that were not heard.
        unheard: The first of these, each as its recording and number.
        unsearched_s: Seconds in which missing words and other speech were not looked for, because there was no anchor; by
            whether the text has three words in a row that were heard there.
        unnamed: The recordings whose texts have a name of a speaker that is not used.
    """

    unwritten: Counter[str] = field(default_factory=Counter)
    num_untimed: int = 0
    num_words: int = 0
    num_missing: int = 0
    missing: list[tuple[str, str]] = field(default_factory=list)
    num_unheard: int = 0
    unheard: list[str] = field(default_factory=list)
    unsearched_s: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    unnamed: list[str] = field(default_factory=list)

    def add_words(self, path: str, words: Sequence[Word]) -> None:
        """Count the words of a recording, and name those that were not heard."""
        inside, end = words_inside(words), 0
        for is_missing, own in groupby(words, lambda word: word.missing):
            row = list(own)
            end += len(row)
            if is_missing:
                self.num_missing += len(row)
                is_first, is_last = end - len(row) < inside.start, end > inside.stop
                self.missing.append((path, _missing_row(row, is_first, is_last)))
        del self.missing[_MAX_NAMED + 1 :]
        self.num_words += len(words)

    def add_unheard(self, lines: Sequence[str]) -> None:
        self.num_unheard += len(lines)
        self.unheard += lines[: _MAX_NAMED - len(self.unheard)]

    @property
    def lines(self) -> list[str]:
        """The messages for the user."""
        found = unused_names_lines(self.unnamed)
        if self.unwritten:
            characters = [character for character, _ in self.unwritten.most_common()]
            shown = " ".join(characters[:_MAX_SHOWN]) + (" .." if len(characters) > _MAX_SHOWN else "")
            times = "once" if self.unwritten.total() == 1 else f"{self.unwritten.total():,} times"
            are = "1 word is" if self.num_untimed == 1 else f"{self.num_untimed:,} words are"
            words = f"; {are} of such characters alone, timed by the words around" if self.num_untimed else ""
            found.append(
                f"the model does not write {shown}, which the texts have {times}: left out of the alignment{words}"
            )
        if self.num_missing:
            rows = groupby(self.missing[:_MAX_NAMED], itemgetter(0))
            named = (f"{path}: {', '.join(row for _, row in own)}" for path, own in rows)
            shown = _first("; ".join(named), len(self.missing))
            were = _not_heard(self.num_missing, "word")
            are = "it is" if self.num_missing == 1 else "they are"
            found.append(f"{were}, of {self.num_words:,}: {shown}; {are} marked missing in JSON")
        if self.num_unheard:
            shown, them = _first(", ".join(self.unheard), self.num_unheard), "it" if self.num_unheard == 1 else "them"
            found.append(f"{_not_heard(self.num_unheard, 'line')}, and subtitles leave {them} out: {shown}")
        for is_common, seconds in self.unsearched_s.items():
            if seconds:
                found.append(
                    f"{seconds / 60:,.0f} minutes of recordings have no three words in a row {_WHY[is_common]}"
                )
        return found


_UNSEARCHED = "missing words and other speech were not looked for there"
_WHY = {  # by whether three words in a row of the text were heard, but more than once
    True: f"that occur once in the text and were heard once, as where a line is repeated: {_UNSEARCHED}",
    False: f"in common with their texts: {_UNSEARCHED}, and the times mean little if it is another text or language",
}


def _missing_row(words: Sequence[Word], is_first: bool, is_last: bool) -> str:
    """Return the begin of a row of words that were not heard, and where it was expected; of the first or the last, why."""
    texts, number = [word.text for word in words], count_of(len(words), "word")
    if is_first:
        return f'the first {number}, up to "{" ".join(texts[-_ROW_WORDS:])}": the recording begins later'
    if is_last:
        return f'the last {number}, from "{" ".join(texts[:_ROW_WORDS])}" on: the recording ends at {clock(words[-1].end_s)}'
    shown = " ".join(texts[:_ROW_WORDS]).rstrip(",.;:")
    rest = f" .. ({number}, " if len(texts) > _ROW_WORDS else " ("
    return f"{shown}{rest}near {clock(words[0].start_s)})"


def _first(named: str, num_all: int) -> str:
    return named + (" .." if num_all > _MAX_NAMED else "")


def _not_heard(count: int, what: str) -> str:
    return f"{count_of(count, what)} of the texts {'was' if count == 1 else 'were'} not heard"


def _line_ranges(lines: Sequence[Sequence[str]]) -> tuple[range, ...]:
    ends = list(accumulate(map(len, lines)))
    return tuple(range(end - len(line), end) for line, end in zip(lines, ends, strict=True))


def _composed(word: str) -> str:
    """Return a word whose letters have their accents: some systems write them apart. What is one character stays as it is."""
    if word.isascii():
        return word
    text = ""
    for character in word:
        joined = unicodedata.normalize("NFC", text[-1:] + character)
        text = text[:-1] + joined if len(joined) == 1 else text + character
    return text
