"""The text that forced alignment times: its words and lines, and the tokens of each word. Pure.

A model writes some of a text's characters only: perhaps no capitals, no digits, no punctuation. Each character becomes one
that the model writes: itself, its small letter, or its letter without accent; else it has no token. A word of which no letter
or digit is left has no tokens at all, so a dash between words is not expected to be heard. The words stay as the user wrote
them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

from fastscribe.text.encoder import EncodedWord, WordEncoder
from fastscribe.text.tokenizer import Tokenizer

_MAX_SHOWN = 12  # characters in a message
_QUOTES = str.maketrans("‘’ʼ´`“”„«»‐‑–—", "'''''\"\"\"\"\"----")


@dataclass(frozen=True)
class Script:
    """The words of a text and their tokens."""

    words: tuple[str, ...]
    lines: tuple[range, ...]  # the words of each line; empty for a line without words
    token_ids: tuple[int, ...]
    word_tokens: tuple[range, ...]  # for each word the indices of its tokens; empty if the model writes none of it
    unwritten: Counter[str]  # letters and digits that the model does not write

    def tokens_of(self, words: range) -> range:
        """Return the indices of the tokens of consecutive words, with the spaces between these."""
        spoken = [self.word_tokens[index] for index in words if self.word_tokens[index]]
        return range(spoken[0].start, spoken[-1].stop) if spoken else range(0)

    @cached_property
    def has_letters(self) -> bool:
        """True if the model writes a letter or a digit of the text."""
        return any(self.word_tokens)

    @cached_property
    def has_no_tokens(self) -> tuple[bool, ...]:
        """For each word True if it has letters or digits, and the model writes none of them."""
        return tuple(
            not tokens and any(map(str.isalnum, word))
            for word, tokens in zip(self.words, self.word_tokens, strict=True)
        )


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
        word_tokens, unwritten = [], Counter[str]()
        for word in words:
            encoded, lost = self._encode(word.lower() if is_shouted else word, is_first=not ids)
            unwritten.update(lost)
            if encoded and ids:
                ids += self._encoder.space_ids
            word_tokens.append(range(len(ids), len(ids) + len(encoded)))
            ids += encoded
        return Script(tuple(words), _line_ranges(lines), tuple(ids), tuple(word_tokens), unwritten)

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


def unwritten_line(unwritten: Counter[str], num_words: int) -> str:
    """Return the message about characters that a model does not write.

    Args:
        unwritten: How often each occurs.
        num_words: Words that have no other letters.
    """
    characters = [character for character, _ in unwritten.most_common()]
    shown = " ".join(characters[:_MAX_SHOWN]) + (" .." if len(characters) > _MAX_SHOWN else "")
    times = "once" if unwritten.total() == 1 else f"{unwritten.total():,} times"
    words = f"; {_count(num_words)} of such characters alone, timed by the words around" if num_words else ""
    return f"the model does not write {shown}, which the texts have {times}: left out of the alignment{words}"


def missing_line(first: Sequence[str], num_missing: int, num_words: int) -> str:
    """Return the message about words that were not heard.

    Args:
        first: The first of them.
        num_missing: How many they are.
        num_words: Words of all texts.
    """
    shown = ", ".join(first) + (" .." if len(first) < num_missing else "")
    were = "1 word of the texts was" if num_missing == 1 else f"{num_missing:,} words of the texts were"
    return f"{were} not heard, of {num_words:,}: {shown}; they are marked missing in JSON"


def unheard_line(first: Sequence[str], num_unheard: int) -> str:
    """Return the message about lines that were not heard.

    Args:
        first: The first of them, each as its recording and number.
        num_unheard: How many they are.
    """
    were = "1 line of the texts was" if num_unheard == 1 else f"{num_unheard:,} lines of the texts were"
    shown = ", ".join(first) + (" .." if len(first) < num_unheard else "")
    return f"{were} not heard, and subtitles leave {'it' if num_unheard == 1 else 'them'} out: {shown}"


def unsearched_line(seconds: float, have_common_run: bool) -> str:
    """Return the message about stretches of recordings in which missing words and other speech were not looked for.

    Args:
        seconds: How long they are.
        have_common_run: Three words in a row of their texts were heard there, but more than once.
    """
    unsearched = "missing words and other speech were not looked for there"
    if have_common_run:
        return (
            f"{seconds / 60:,.0f} minutes of recordings have no three words in a row that occur once in the text and were "
            f"heard once, as where a line is repeated: {unsearched}"
        )
    return (
        f"{seconds / 60:,.0f} minutes of recordings have no three words in a row in common with their texts: {unsearched}, and "
        "the times mean little if it is another text or language"
    )


def _count(num_words: int) -> str:
    return "1 word is" if num_words == 1 else f"{num_words:,} words are"


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
