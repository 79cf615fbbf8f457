"""Text to tokens with a checkpoint's own tokenizer: SentencePiece with its normalisation rules, tokenizer.json or characters.

Forced alignment and phrases to boost use it: decoding uses text/tokenizer.py, and training normalises text in
training/bpe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastscribe.text.piece_encoder import ByteLevelEncoder, piece_encoder
from fastscribe.text.tokenizer import UNKNOWN_TEXT, WORD_MARK, Tokenizer, sentencepiece_processor

_UNKNOWN_MARK = UNKNOWN_TEXT.strip()


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
        no_text = tokenizer.byte_ids | tokenizer.silent_ids
        pieces = [piece for i, piece in enumerate(tokenizer.pieces) if i not in no_text]
        # The characters of all pieces of several bytes.
        written = frozenset("".join(piece for piece in pieces if len(piece.replace(WORD_MARK, " ").encode()) > 1))
        return WordEncoder(lambda word: encoded(encoder(word)), (), lambda word: encoded(encoder.first(word)), written)
    return WordEncoder(lambda word: encoded(encoder(word)), ())


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
        try:
            self._processor = sentencepiece_processor(tokenizer.files["tokenizer.model"])
        except RuntimeError as error:
            raise ValueError("its tokenizer is not a SentencePiece model") from error
        self._unknown_id = self._processor.unk_id()

    def all_ids(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        found = [tuple(ids) for ids in self._processor.Encode(list(words), num_threads=1)]
        return [self(word).ids if _UNKNOWN_MARK in word else ids for word, ids in zip(words, found, strict=True)]

    def __call__(self, word: str) -> EncodedWord:
        ids: list[int] = []
        texts: list[str] = []
        for index, part in enumerate(word.split(_UNKNOWN_MARK)):
            if index:  # the decoder's mark for an unknown token
                ids.append(self._unknown_id)
                texts.append(_UNKNOWN_MARK)
            ids += self._processor.EncodeAsIds(part)
            texts += self._processor.EncodeAsPieces(part)
        return EncodedWord(tuple(ids), tuple(texts))
