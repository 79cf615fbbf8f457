"""Text to tokens with a checkpoint's own tokenizer: SentencePiece with its normalisation rules, tokenizer.json or characters.

Forced alignment and phrases to boost use it: decoding uses text/tokenizer.py, and training normalises text in
training/bpe.py. A SentencePiece model stores its rules as a compiled table. SentencePiece never gets that table, because its
older versions read out of bounds on malicious ones; the lookup here checks every index.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastscribe.text.piece_encoder import ByteLevelEncoder, piece_encoder
from fastscribe.text.tokenizer import UNKNOWN_TEXT, WORD_MARK, Tokenizer, normalization_rules

_UNKNOWN_MARK = UNKNOWN_TEXT.strip()
# Bits of a Darts unit: label (a byte, and a bit that marks a value), "has a value" flag, value.
_LABEL, _HAS_VALUE, _VALUE = 0x8000_00FF, 1 << 8, 0x7FFF_FFFF
_NO_UNIT = 0x8000_0000  # matches no byte


class EncodedWord(NamedTuple):
    ids: tuple[int, ...]
    texts: tuple[str, ...]  # text of each token, with the word mark


@dataclass(frozen=True)
class WordEncoder:
    """Encodes words one by one, as NeMo's aligner does; `space_ids` go between two words.

    A byte-level BPE has other tokens for the first word of a text, before which there is no space: `encode_first` gives them.
    And it has a token for each byte, so `written` are the characters that it has learnt; None: those that have tokens.
    """

    encode: Callable[[str], EncodedWord]
    space_ids: tuple[int, ...]
    encode_first: Callable[[str], EncodedWord] | None = None
    written: frozenset[str] | None = None
    encode_all: Callable[[Sequence[str]], list[tuple[int, ...]]] | None = None  # many at once, without their texts

    def ids(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the tokens of words, each after another one."""
        return [self.encode(word).ids for word in words] if self.encode_all is None else self.encode_all(words)

    def at(self, word: str, is_first: bool) -> EncodedWord:
        """Encode a word at its place in the text."""
        encode = self.encode_first if is_first and self.encode_first is not None else self.encode
        return encode(word)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordEncoder:
        """Build the encoder of a tokenizer. Raises ValueError if the tokenizer cannot encode or is damaged."""
        if tokenizer.kind == "character":
            return _characters(tokenizer)
        if "tokenizer.model" not in tokenizer.files:
            return _pieces(tokenizer)
        encoder = _SentencePieceEncoder(tokenizer)
        return cls(encoder, (), encode_all=encoder.all_ids)


def _pieces(tokenizer: Tokenizer) -> WordEncoder:
    encoder = piece_encoder(tokenizer)

    def encoded(ids: tuple[int, ...]) -> EncodedWord:
        return EncodedWord(ids, tuple((*tokenizer.pieces, "")[token_id] for token_id in ids))

    if isinstance(encoder, ByteLevelEncoder):
        written = _in_merges(tokenizer)
        return WordEncoder(lambda word: encoded(encoder(word)), (), lambda word: encoded(encoder.first(word)), written)
    return WordEncoder(lambda word: encoded(encoder(word)), ())


def _in_merges(tokenizer: Tokenizer) -> frozenset[str]:
    """Return the characters of all pieces of several bytes."""
    no_text = tokenizer.byte_ids | tokenizer.silent_ids
    pieces = [piece for i, piece in enumerate(tokenizer.pieces) if i not in no_text]
    return frozenset("".join(piece for piece in pieces if len(piece.replace(WORD_MARK, " ").encode()) > 1))


def _characters(tokenizer: Tokenizer) -> WordEncoder:
    """Encode by character; a character outside the vocabulary becomes the blank, as in NeMo."""
    ids: Mapping[str, int] = {piece: i for i, piece in reversed(list(enumerate(tokenizer.pieces)))}
    if " " not in ids:
        raise ValueError("its vocabulary of characters has no space")
    blank_id = len(tokenizer.pieces)

    def encode(word: str) -> EncodedWord:
        return EncodedWord(tuple(ids.get(character, blank_id) for character in word), tuple(word))

    return WordEncoder(encode, (ids[" "],))


class _SentencePieceEncoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        import sentencepiece

        table, without_table = normalization_rules(tokenizer.files["tokenizer.model"])
        self._rules = NormalizationTable(table) if table else None
        self._processor: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(without_table)
        except RuntimeError as error:
            raise ValueError("its tokenizer is not a SentencePiece model") from error
        self._unknown_id = self._processor.unk_id()

    def all_ids(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        normalized = [self._rules.normalize(word) for word in words] if self._rules else list(words)
        found = [tuple(ids) for ids in self._processor.Encode(normalized, num_threads=1)]
        return [self(word).ids if _UNKNOWN_MARK in word else ids for word, ids in zip(words, found, strict=True)]

    def __call__(self, word: str) -> EncodedWord:
        ids: list[int] = []
        texts: list[str] = []
        for index, part in enumerate(word.split(_UNKNOWN_MARK)):
            if index:  # the decoder's mark for an unknown token
                ids.append(self._unknown_id)
                texts.append(_UNKNOWN_MARK)
            normalized = self._rules.normalize(part) if self._rules else part
            ids += self._processor.EncodeAsIds(normalized)
            texts += self._processor.EncodeAsPieces(normalized)
        return EncodedWord(tuple(ids), tuple(texts))


class NormalizationTable:
    """SentencePiece's `precompiled_charsmap`: a trie of byte strings (a Darts double array) and their replacements.

    Layout: size of the trie in bytes (uint32), trie (uint32 units), and replacements that each end in a zero byte.
    """

    def __init__(self, table: bytes) -> None:
        """Parse a table. Raises ValueError if it is damaged."""
        if len(table) < 4:
            raise ValueError("its tokenizer's normalisation table is damaged")
        (size,) = struct.unpack_from("<I", table)
        if size % 4 or size > len(table) - 4:
            raise ValueError("its tokenizer's normalisation table is damaged")
        self._units = struct.unpack_from(f"<{size // 4}I", table, 4)
        self._replacements = table[4 + size :]

    def normalize(self, text: str) -> str:
        """Replace the longest matching strings of the table, from left to right."""
        content, done, position = text.encode(), bytearray(), 0
        while position < len(content):
            length, replacement = self._longest(content, position)
            if length == 0:  # one character stays as it is
                length = _utf8_length(content[position])
                replacement = content[position : position + length]
            done += replacement
            position += length
        return done.decode("utf-8", "replace")

    def _longest(self, content: bytes, start: int) -> tuple[int, bytes]:
        """Return length and replacement of the longest match at `start`; (0, b"") without a match."""
        length, found = 0, b""
        unit_index = _offset(self._unit(0))
        for position in range(start, len(content)):
            unit_index ^= content[position]
            unit = self._unit(unit_index)
            if unit & _LABEL != content[position]:
                break
            unit_index ^= _offset(unit)
            if unit & _HAS_VALUE:
                begin = self._unit(unit_index) & _VALUE
                end = self._replacements.find(b"\0", begin)
                length, found = position + 1 - start, self._replacements[begin : None if end < 0 else end]
        return length, found

    def _unit(self, unit_index: int) -> int:
        return self._units[unit_index] if unit_index < len(self._units) else _NO_UNIT


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


def _utf8_length(first_byte: int) -> int:
    return 1 if first_byte < 0xC0 else 2 if first_byte < 0xE0 else 3 if first_byte < 0xF0 else 4
