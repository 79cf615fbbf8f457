"""Lists of phrases to boost: their files, the spellings of a phrase, and their tokens.

A list is UTF-8 text with a phrase a line (audio/phrase_lines.py). context_graph.py turns the tokens into an automaton.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from fastscribe._system.standard_streams import log_to_stderr
from fastscribe._system.text_layout import first_of
from fastscribe.audio.phrase_lines import PhraseError, parse_phrases, split_lines
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import LANGUAGE_MODEL, WORD_MARK, Tokenizer, from_sentencepiece
from fastscribe.types import Phrase

MAX_FILE_BYTES = 64 << 20
_MAX_HYPHENATED_WORDS = 3  # longer phrases have no spelling with hyphens for spaces
_MAX_KEPT = 20_000  # encoded phrases, about 3 kB each
# Characters without gain: chosen on one half of the sentences of test speech (docs/log.md, 2026-11-24).
_SHORT_LIST, _WITHOUT_GAIN = 100, 1.15
_MAX_SHOWN = 5  # phrases named in a warning
_FILE_NAME = re.compile(r"[/\\]|\.(?:txt|text|csv|tsv|list|lst|json|jsonl|md|yaml|yml|docx?|rtf)$", re.IGNORECASE)
_HEAVY = (
    5.0  # with it 6 % of the sentences have a phrase that is not spoken, with 6.0 11 % (docs/bench/boost/weights.json)
)
_COLON_WEIGHT = re.compile(r":\s*\d+(?:\.\d+)?$")
_WORD_BEGIN = re.compile(r"(?<!\w)\w")
_HYPHENS = re.compile(r"(?<=\w)[-\u2010\u2011](?=\w)")


def given_phrases(values: Iterable[str], say: Callable[[str], None]) -> tuple[Phrase, ...]:
    """Return the phrases of `--boost`: of files, and phrases that stand there themselves, separated by commas.

    A file counts before a phrase of that name. A value with a slash or the ending of a text file is a file. `say` is told of
    odd lines.

    Raises:
        PhraseError: A file is missing or no list, or a value is no phrase.
    """
    found: dict[str, Phrase] = {}
    for value in values:
        if os.path.exists(value) and not os.path.isdir(value):
            phrases = read_phrases(value, say)
        elif _FILE_NAME.search(value):
            read = "no such file" if not os.path.exists(value) else "a folder"
            raise PhraseError(
                f"--boost {value}: {read}; a phrase has no slash here and does not end as a file's name does"
            )
        else:
            phrases = parse_phrases(value.split(","), "--boost")
            if not phrases:
                raise PhraseError(f"--boost {value!r}: neither a file nor a phrase")
            if colons := [phrase.text for phrase in phrases if _COLON_WEIGHT.search(phrase.text)]:
                say(
                    f"--boost {colons[0]}: the number is part of the phrase: a weight stands behind a tab, as in a file"
                )
        found |= {phrase.text: phrase for phrase in phrases}
    return tuple(found.values())


def read_phrases(path: str, say: Callable[[str], None] = log_to_stderr) -> tuple[Phrase, ...]:
    """Read a list from a file; `say` is told of odd lines. Raises PhraseError if it cannot be read or is no list."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PhraseError(f"{path}: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise PhraseError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise PhraseError(f"{path}: line {number}: not valid UTF-8") from None
    return parse_phrases(split_lines(text), path, say)


def digest(phrases: Iterable[Phrase]) -> str:
    """Return a digest of a list, whatever its order."""
    lines = sorted(f"{phrase.text}\t{phrase.weight!r}\n" for phrase in phrases)
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def spellings(text: str) -> tuple[str, ...]:
    """Return the spellings of a phrase: its cases, with and without hyphens and spaces inside; the given one first.

    Those with composed letters (Unicode's NFC) follow, because few vocabularies have accents of their own.
    """
    composed = unicodedata.normalize("NFC", text)
    return tuple(dict.fromkeys(_spellings(text) + _spellings(composed) if composed != text else _spellings(text)))


def _spellings(text: str) -> tuple[str, ...]:
    spaced = _HYPHENS.sub(" ", text)
    words = spaced.split()
    joints = [text]
    if len(words) > 1:
        joints.append(spaced)
        if len(words) <= _MAX_HYPHENATED_WORDS:
            joints.append("-".join(words))
        if len(words) == 2 and spaced != text:  # e-mail; two words are not one
            joints.append("".join(words))
    found: dict[str, None] = {}
    for joint in joints:
        lower = joint.lower()
        for form in (
            joint,
            lower,
            _capitalised(joint),
            *(() if lower == joint else (_capitalised(lower),)),
            lower[:1].upper() + lower[1:],
            joint.upper(),
        ):
            found.setdefault(form)
    return tuple(found)


def _capitalised(text: str) -> str:
    """Return the text with a capital at the beginning of each word."""
    return _WORD_BEGIN.sub(lambda first: first[0].upper(), text)


class TokenPath(NamedTuple):
    """One way to write a phrase in tokens."""

    ids: tuple[int, ...]
    gains: tuple[float, ...]  # of each token: its characters times the phrase's weight


class PhraseEncoder:
    """Turns phrases into tokens with a model's own tokenizer.

    Args:
        tokenizer: The model's.
        path: The model, for messages.

    Raises:
        CheckpointError: The tokenizer cannot encode text.
    """

    def __init__(self, tokenizer: Tokenizer, path: object) -> None:
        try:
            self._encoders = _encoders(tokenizer)
        except ValueError as error:
            raise CheckpointError(path, f"cannot boost phrases: {error}") from error
        self.num_labels = len(tokenizer.pieces)
        self._ways: dict[str, tuple[tuple[int, ...], ...]] = {}  # of each phrase; lists of rows often share phrases
        # An aggregate's <unk> has text in the whole, so it is found by name.
        unknown = {i for i, piece in enumerate(tokenizer.pieces) if piece == "<unk>"}
        unusable = tokenizer.unknown_ids | tokenizer.silent_ids | unknown
        spaces = self._encoders[0][0].space_ids
        # The token before a text's first one: a space between words, or an id beyond the vocabulary that is never written.
        self.start_id = spaces[-1] if spaces else self.num_labels + 1  # the id between is that of unknown characters
        self._usable = frozenset(i for i in range(self.num_labels) if i not in unusable) | {self.start_id}
        characters = [float(_num_characters(tokenizer, i)) for i in range(self.num_labels)]
        self._characters = dict(enumerate(characters)) | ({} if spaces else {self.start_id: 0.0})

    def paths(self, phrases: Sequence[Phrase]) -> list[list[TokenPath]]:
        """Return the ways to write each phrase of a list; empty if the vocabulary cannot write it.

        In a list of more than _SHORT_LIST phrases the first characters of each gain nothing, because that many phrases begin
        with what is said, or sound like it, by chance.
        """
        texts = [phrase.text for phrase in phrases]
        missing = [text for text in dict.fromkeys(texts) if text not in self._ways]
        self._ways |= zip(missing, self._new_ways(missing), strict=True)
        without = _WITHOUT_GAIN * math.log10(max(1.0, len(phrases) / _SHORT_LIST)) ** 2
        found = [[self._path(ids, phrase.weight, without) for ids in self._ways[phrase.text]] for phrase in phrases]
        if len(self._ways) > _MAX_KEPT:
            self._ways.clear()
        return found

    def _path(self, ids: tuple[int, ...], weight: float, without: float) -> TokenPath:
        gains = tuple(map(self._characters.__getitem__, ids))
        if without:
            totals = [max(0.0, total - without) for total in accumulate(gains, initial=0.0)]
            gains = tuple([after - before for before, after in pairwise(totals)])
        return TokenPath(ids, gains if weight == 1 else tuple([weight * gain for gain in gains]))

    def _new_ways(self, phrases: Sequence[str]) -> Iterator[tuple[tuple[int, ...], ...]]:
        texts = list(map(spellings, phrases))
        encoded = self._encoded([text for some in texts for text in some])
        for some in texts:
            ways = (ids for _ in some for ids in next(encoded))
            yield tuple(dict.fromkeys(ids for ids in ways if self._usable.issuperset(ids)))

    def _encoded(self, texts: Sequence[str]) -> Iterator[tuple[tuple[int, ...], ...]]:
        """Yield the tokens of each text after another word; and, if they differ there, at the beginning of a text."""
        by_encoder = [self._encoded_by(encoder, first_id, texts) for encoder, first_id in self._encoders]
        return (tuple(chain.from_iterable(some)) for some in zip(*by_encoder, strict=True))

    def _encoded_by(
        self, encoder: WordEncoder, first_id: int, texts: Sequence[str]
    ) -> Iterator[tuple[tuple[int, ...], ...]]:
        space = encoder.space_ids
        words = [text.split() if space else [text] for text in texts]
        ids_of = iter(encoder.ids([word for some in words for word in some]))
        for text, some in zip(texts, words, strict=True):
            ids = next(ids_of)
            if space or first_id:
                ids = tuple([first_id + i for one in (ids, *(next(ids_of) for _ in some[1:])) for i in (*space, *one)])
            if encoder.encode_first is None:
                yield (ids,)
            else:
                yield (ids, (self.start_id, *encoder.encode_first(text).ids))


def _encoders(tokenizer: Tokenizer) -> list[tuple[WordEncoder, int]]:
    """Return the vocabulary's encoders, each with the first of its ids: one, or one for each language of an aggregate."""
    found, first_id = [], 0
    for name, content in sorted(tokenizer.files.items()):
        if LANGUAGE_MODEL.fullmatch(name):
            part = from_sentencepiece(content)
            found.append((WordEncoder.of(part), first_id))
            first_id += len(part.pieces)
    return found if found and first_id == len(tokenizer.pieces) else [(WordEncoder.of(tokenizer), 0)]


def _num_characters(tokenizer: Tokenizer, token_id: int) -> int:
    if token_id in tokenizer.byte_ids:
        return 1
    return len(tokenizer.pieces[token_id].replace(WORD_MARK, "").strip())


def without_effect(
    phrases: Sequence[Phrase], encoded: Sequence[Sequence[TokenPath]], encoder: PhraseEncoder, excluded: frozenset[int]
) -> list[str]:
    """Return the phrases that the vocabulary can write, but not without tokens that a language leaves out.

    Args:
        phrases: A list.
        encoded: The ways to write each phrase, from `encoder`.
        encoder: Has the token before a text's first one, which is not written.
        excluded: The tokens.
    """
    excluded = excluded - {encoder.start_id}
    return [
        phrase.text
        for phrase, paths in zip(phrases, encoded, strict=True)
        if paths and not any(excluded.isdisjoint(path.ids) for path in paths)
    ]


def encode_all(phrases: Sequence[Phrase], encoder: PhraseEncoder, say: Callable[[str], None]) -> list[list[TokenPath]]:
    """Encode a list, and name the phrases that the vocabulary cannot write. Raises UsageError if it can write none."""
    encoded = encoder.paths(phrases)
    lines = [f"--boost: {line}" for line in remarks(phrases, encoded, encoder)]
    if phrases and not any(encoded):
        raise UsageError(f"{lines[0]}; no phrase is left: spell them with the model's letters, or leave --boost out")
    for line in lines:
        say(line)
    return encoded


def remarks(phrases: Sequence[Phrase], encoded: Sequence[Sequence[TokenPath]], encoder: PhraseEncoder) -> list[str]:
    """Return the messages about a list: phrases that the vocabulary cannot write, and those that are written too often.

    Args:
        phrases: A list.
        encoded: The ways to write each phrase, from `encoder`.
        encoder: The model's.
    """
    lines, heavy = [], [phrase.text for phrase in phrases if phrase.weight > _HEAVY]
    if unknown := [phrase.text for phrase, paths in zip(phrases, encoded, strict=True) if not paths]:
        letters = dict.fromkeys(unicodedata.normalize("NFC", "".join("".join(unknown).split())))
        ways = encoder.paths([Phrase(letter) for letter in letters])
        lost = [letter for letter, paths in zip(letters, ways, strict=True) if not paths]
        lines.append(f"not used, because the model does not write {named(lost) if lost else 'them'}: {named(unknown)}")
    if heavy:
        lines.append(f"phrases with a weight above {_HEAVY:g} are also written without being spoken: {named(heavy)}")
    return lines


def named(phrases: Sequence[str]) -> str:
    """Return the first phrases, and the number of the others, for a message."""
    return first_of(phrases, _MAX_SHOWN)
