"""Keeps a model that writes several languages with one vocabulary to one of them: which tokens are left out, and of which
recordings. Pure; context/vocabulary_mask.py has the tokens as tensors.

A token is left out if it has a letter that the language does not have (alphabets.py). The parts of an aggregate's vocabulary
belong to languages, so there the other languages' parts are left out. What is no text always stays: the blank, <unk>, tags and
other control tokens. Of byte pieces, those stay with which a character of the language can begin; so the other letters that
begin with the same byte can still be written.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from threading import Lock

from fastscribe.audio.failures import to_failure
from fastscribe.context.alphabets import Alphabet, find_alphabet
from fastscribe.context.phrases import PhraseEncoder, without_effect
from fastscribe.errors import AudioError, CheckpointError, UsageError
from fastscribe.languages import AUTO, find_language, language_tag, list_languages, names_language
from fastscribe.text.tokenizer import LANGUAGE_MODEL, Tokenizer, from_sentencepiece
from fastscribe.types import Failure, Phrase, Source

# Fields of a manifest's row that name the spoken language; the first that is there counts.
ROW_KEYS = ("language", "source_lang", "lang")
_CONTROL = re.compile(r"<[^<>]+>")
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_FIRST_LEAD = 0xC2  # of the bytes that begin a character of several bytes
_MAX_SHOWN = 8  # languages in a message
_MAX_PHRASES_SHOWN = 5
_MAX_CHECKED_PHRASES = 1000  # of the run's list, against the language of each row: a third of a second
_MAX_KEPT_PHRASES = 100_000  # of lists that are checked; a list counts as ten more
_COMMON_LEADS = frozenset((0xC2, 0xE2, 0xF0))  # of signs such as « — € and of emoji


def excluded_tokens(tokenizer: Tokenizer, tag: str) -> frozenset[int] | None:
    """Return the tokens that texts in a language do not have; None if the letters of the language are not known."""
    parts = _parts(tokenizer)
    if (name := find_language(tag, tuple(parts))) is not None:
        return frozenset(range(len(tokenizer.pieces))).difference(parts[name])
    alphabet = find_alphabet(tag)
    if alphabet is None:
        return None
    bytes_ = tokenizer.byte_ids
    without_text = tokenizer.unknown_ids | tokenizer.silent_ids
    return frozenset(
        i
        for i, piece in enumerate(tokenizer.pieces)
        if i not in without_text and not (_has_bytes if i in bytes_ else _has_piece)(alphabet, piece)
    )


def has_letters(tokenizer: Tokenizer, excluded: frozenset[int]) -> bool:
    """Return True if a token with a letter stays."""
    return any(
        i not in excluded
        and (i in tokenizer.byte_ids or (any(map(str.isalpha, piece)) and not _CONTROL.fullmatch(piece)))
        for i, piece in enumerate(tokenizer.pieces)
    )


def _has_piece(alphabet: Alphabet, piece: str) -> bool:
    return alphabet.has_all(piece) or _CONTROL.fullmatch(piece) is not None


def _parts(tokenizer: Tokenizer) -> Mapping[str, range]:
    """Return the tokens of each language of an aggregate; none for other vocabularies."""
    found, first = {}, 0
    for name, content in sorted(tokenizer.files.items()):
        if match := LANGUAGE_MODEL.fullmatch(name):
            size = len(from_sentencepiece(content).pieces)
            found[language_tag(match[2]) or match[2]] = range(first, first + size)
            first += size
    return found if first == len(tokenizer.pieces) else {}


def _has_bytes(alphabet: Alphabet, piece: str) -> bool:
    """Return False if a byte of the piece begins characters that are all letters of other languages."""
    values = [int(byte, 16) for byte in _BYTE.findall(piece)]
    return all(value < _FIRST_LEAD or value in _leads(alphabet) for value in values)


@cache
def _leads(alphabet: Alphabet) -> frozenset[int]:
    """Return the bytes that begin the UTF-8 of a language's letters and of signs that every language has."""
    letters: Iterable[str] = alphabet.letters or filter(
        lambda one: one.isalpha() and alphabet.has(one), map(chr, range(sys.maxunicode + 1))
    )
    return _COMMON_LEADS.union(letter.encode()[0] for letter in letters)


class LanguageFilter:
    """Decides which recordings of a run are kept to a language.

    Attributes:
        language: Tag of the language that the run is kept to; None: of none, or its texts can have all tokens.
        num_excluded: Number of tokens that it leaves out; None: there is no language, or its letters are not known.
        rows: How many rows are kept to a language that they name, by its tag.
        num_unusable: How many rows of a run without a language name something that is none.
        num_boosted_in_vain: How many recordings have phrases to boost whose tokens their language leaves out. The run's list is
            not counted where the run's own language counts, of which the Booster warns.
    """

    def __init__(
        self, tokenizer: Tokenizer, known: Sequence[str], language: str | None, boost: tuple[Phrase, ...] = ()
    ) -> None:
        """Prepare the run's language.

        Args:
            tokenizer: The model's.
            known: Tags of the model's languages; empty if it does not state them.
            language: Tag of the run's language; AUTO is the same as None.
            boost: The run's phrases to boost.

        Raises:
            UsageError: No token of the model has letters of the language.
        """
        self._tokenizer, self._known = tokenizer, known
        self._lock = Lock()
        self._parts = tuple(_parts(tokenizer))
        self._found: dict[str | Alphabet | None, frozenset[int] | None] = {}
        self.rows: Counter[str] = Counter()
        self.num_unusable, self._first_unusable = 0, ""
        self._boost = boost[:_MAX_CHECKED_PHRASES]
        self.num_boosted_in_vain, self._in_vain = 0, dict[str, None]()
        self._encoder: PhraseEncoder | None = None
        self._checked: dict[tuple[tuple[Phrase, ...], frozenset[int]], list[str]] = {}
        self._num_kept = 0
        given = None if language == AUTO else language
        excluded = None if given is None else self.excluded(given)
        if excluded and not has_letters(tokenizer, excluded):
            raise UsageError(f"--language {given}: this model writes no letter of {given}")
        self.num_excluded = None if excluded is None else len(excluded)
        self.language = given if excluded else None
        self._reads_rows = self.language is not None or len(known) > 1

    def excluded(self, tag: str) -> frozenset[int] | None:
        """Return excluded_tokens() of a language: the same object for all tags of one alphabet."""
        key = find_language(tag, self._parts) or find_alphabet(tag)
        if key not in self._found:
            self._found[key] = excluded_tokens(self._tokenizer, tag)
        return self._found[key]

    def apply(self, source: Source) -> Source | Failure:
        """Return the source with the language that it is kept to, or the Failure of a row whose language is unusable.

        May be called from several threads.

        Rows name their languages where the model states several, or where the run has one that leaves out tokens. A run
        without such a language keeps no row from its text: its user may not know that the field counts.
        """
        if self.language is None and not names_language(source.row):
            return source
        with self._lock:
            try:
                source = replace(source, language=self._language_of(source))
                self._check_phrases(source)
                return source
            except AudioError as error:
                if self.language is not None:
                    return to_failure(source, "input", error)
                self.num_unusable += 1
                self._first_unusable = self._first_unusable or str(error)
                return source

    def take_lines(self) -> list[str]:
        """Return `lines`, and count from zero again."""
        lines = self.lines
        self.rows.clear()
        self.num_unusable, self._first_unusable = 0, ""
        self.num_boosted_in_vain = 0
        self._in_vain.clear()
        return lines

    def _check_phrases(self, source: Source) -> None:
        """Count a recording with phrases that have no effect."""
        lists = (source.boost, () if source.language == self.language else self._boost)
        if source.language is None or not any(lists):
            return
        excluded = self.excluded(source.language) or frozenset()
        found = [text for phrases in lists if phrases for text in self._without_effect(phrases, excluded)]
        self.num_boosted_in_vain += bool(found)
        if len(self._in_vain) <= _MAX_PHRASES_SHOWN:
            self._in_vain |= dict.fromkeys(found[: _MAX_PHRASES_SHOWN + 1])

    def _without_effect(self, phrases: tuple[Phrase, ...], excluded: frozenset[int]) -> list[str]:
        if (phrases, excluded) not in self._checked:
            if self._encoder is None:
                try:
                    self._encoder = PhraseEncoder(self._tokenizer, "")
                except CheckpointError:  # the decoder says so of each recording with phrases
                    return []
            if self._num_kept + len(phrases) > _MAX_KEPT_PHRASES:
                self._checked.clear()
                self._num_kept = 0
            self._num_kept += len(phrases) + 10
            encoded = self._encoder.paths(phrases)
            self._checked[phrases, excluded] = without_effect(phrases, encoded, self._encoder, excluded)
        return self._checked[phrases, excluded]

    def _language_of(self, source: Source) -> str | None:
        row = source.row if self._reads_rows else None
        key = next((key for key in ROW_KEYS if (row or {}).get(key) not in (None, "")), None)
        if row is None or key is None:
            return self.language
        tag = _tag(row[key])
        if tag == AUTO:
            return None
        if tag is None:
            raise AudioError(source.path, f"{key} is {row[key]!r:.40}, not a language: a code such as en, or {AUTO}")
        if self._known and find_language(tag, self._known) is None:
            raise AudioError(source.path, f"{key} is {tag}, and this model knows {list_languages(self._known)} only")
        excluded = self.excluded(tag)
        if excluded is None:
            raise AudioError(source.path, f"{key} is {tag}, whose letters are not known here: {AUTO} is no language")
        if not excluded:
            return None
        if not has_letters(self._tokenizer, excluded):
            raise AudioError(source.path, f"{key} is {tag}, and this model writes no letter of it")
        self.rows[tag] += 1
        return tag

    @property
    def lines(self) -> list[str]:
        """Lines for the user about rows that named a language and phrases without effect, if there were any."""
        found = []
        if self.num_unusable:
            rows = f"{self.num_unusable:,} row{'s name' if self.num_unusable > 1 else ' names'}"
            found.append(
                f"{rows} no language to keep to, so no token was left out there; the first is {self._first_unusable}"
            )
        if self.num_boosted_in_vain:
            names = list(self._in_vain)
            more = " .." if len(names) > _MAX_PHRASES_SHOWN else ""
            recordings = "1 recording" if self.num_boosted_in_vain == 1 else f"{self.num_boosted_in_vain:,} recordings"
            found.append(
                f"boost: phrases had no effect in {recordings}, because the language there leaves out tokens that they need: "
                f"{', '.join(names[:_MAX_PHRASES_SHOWN])}{more}"
            )
        if not self.rows:
            return found
        shown = ", ".join(f"{tag} {num:,}" for tag, num in self.rows.most_common(_MAX_SHOWN))
        more = " .." if len(self.rows) > _MAX_SHOWN else ""
        return [
            *found,
            f"rows name their language ({shown}{more}): the tokens that its texts do not have were left out there",
        ]


def _tag(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return AUTO if value.strip().lower() == AUTO else language_tag(value)
