"""Turn text into tokens for training: cleaning, training a vocabulary, and an encoder for any checkpoint's tokenizer.

text/tokenizer.py turns ids back into text. A vocabulary is a SentencePiece model in the bytes that text/tokenizer.py reads
and a checkpoint keeps (`Tokenizer.files`). Its only special piece is <unk>, which no training text may contain: text is
mapped to the vocabulary's characters, and if that would lose a letter or a digit, it gets no tokens. All normalisation
happens here, none inside SentencePiece, so the model can write everything that it is trained on.
"""

from __future__ import annotations

import io
import json
import re
import struct
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fastscribe._system.text_layout import first_of
from fastscribe.errors import UsageError, first_line
from fastscribe.text.tokenizer import WORD_MARK, Tokenizer, strip_normalizer

VocabularyKind = Literal["bpe", "unigram"]
_QUOTES = {**dict.fromkeys("‘’‚‛`´′", "'"), **dict.fromkeys("“”„‟«»″", '"')}
_DASHES = {**dict.fromkeys("‐‑‒−", "-"), **dict.fromkeys("–—―", " - ")}
_UNIFIED = str.maketrans({**_QUOTES, **_DASHES})
_SPACE_BEFORE_MARK = re.compile(r"\s+([,.;:?!]+)(?=\s|$|[\"')\]])")
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # SentencePiece's piece types
_MAX_NAMED = 8  # characters in a message
_UNIGRAM, _BPE = 1, 2  # SentencePiece's model types
_TOO_MANY_PIECES = re.compile(r"size too high .*<= (\d+)")
_TOO_FEW_PIECES = re.compile(r"smaller than required_chars.* vs (\d+)")


class VocabularyTooLarge(UsageError):
    """The texts yield fewer pieces than asked for: `max_size`."""

    def __init__(self, what: str, max_size: int) -> None:
        super().__init__(f"{what}: these texts yield {max_size} at most: set {max_size} or fewer, or give more text")
        self.max_size = max_size


def clean_text(text: str) -> str:
    """Normalise a transcript to the form that a model learns: NFKC, one kind of quotes and dashes, single spaces.

    Removes invisible format characters and spaces before punctuation marks.
    """
    text = unicodedata.normalize("NFKC", text.translate(_UNIFIED)).translate(_UNIFIED)
    if not text.isprintable():  # slow
        text = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Cs", "Co", "Cn"))
        text = "".join(" " if unicodedata.category(char) == "Cc" else char for char in text)
    return " ".join(_SPACE_BEFORE_MARK.sub(r"\1", text).split())


def train_vocabulary(texts: Iterable[str], vocab_size: int, kind: VocabularyKind = "bpe") -> bytes:
    """Train a SentencePiece model. Equal texts give equal bytes.

    Args:
        texts: transcripts, which are cleaned first.
        vocab_size: exact number of pieces, including <unk> (id 0).

    Raises:
        VocabularyTooLarge: the texts yield fewer pieces.
        UsageError: the texts yield no such vocabulary for another reason.
    """
    import sentencepiece

    cleaned = [text for text in map(clean_text, texts) if text]
    if not cleaned:
        raise UsageError("no text to learn a vocabulary from")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(cleaned),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            character_coverage=1.0,  # all characters
            max_sentence_length=1 << 20,  # bytes; longer ones would be skipped
            normalization_rule_name="identity",
            byte_fallback=False,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # the order of sums decides ties
            shuffle_input_sentence=False,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        raise _impossible(f"no {kind} vocabulary of {vocab_size} pieces", error) from error
    return model.getvalue()


def _impossible(what: str, error: Exception) -> UsageError:
    """Return the error for SentencePiece's message, which alone knows how many pieces the texts yield."""
    reason = first_line(error).rsplit("] ", 1)[-1]  # without its source line
    if (found := _TOO_MANY_PIECES.search(reason)) is not None:
        return VocabularyTooLarge(what, int(found[1]))
    if (found := _TOO_FEW_PIECES.search(reason)) is not None:
        return UsageError(f"{what}: the characters of these texts alone take {found[1]}: set {found[1]} or more")
    return UsageError(f"{what}: {reason}")


@dataclass
class TextChanges:
    """The texts that a vocabulary cannot write as they are, and that are learnt in other characters or not at all.

    Attributes:
        characters: what stands for each character; nothing for one that is dropped.
        example: the first text, and what is learnt in its place.
        lacking: the letters and digits that have nothing in their place, by the texts that have them.
    """

    num_texts: int = 0
    characters: dict[str, str] = field(default_factory=dict)
    example: tuple[str, str] = "", ""
    lacking: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name the characters, those that only lose their case last."""
        named = sorted(self.characters.items(), key=lambda pair: pair[0].lower() == pair[1])
        replaced = [f"{char} as {nearest}" for char, nearest in named if nearest]
        dropped = [char for char, nearest in named if not nearest]
        parts = [f"learns {first_of(replaced, _MAX_NAMED)}"] if replaced else []
        parts += [f"drops {first_of(dropped, _MAX_NAMED)}"] if dropped else []
        return f"{' and '.join(parts)}: {self.example[0]!r:.80} becomes {self.example[1]!r:.80}"


class TextEncoder:
    """Inverse of a tokenizer's decoder. Raises UsageError for a vocabulary that cannot encode.

    Attributes:
        changes: what it has changed of the texts so far.
    """

    def __init__(self, tokenizer: Tokenizer, changes: TextChanges | None = None) -> None:
        self.changes = TextChanges() if changes is None else changes
        wordless = tokenizer.unknown_ids | tokenizer.silent_ids
        pieces = [piece for i, piece in enumerate(tokenizer.pieces) if i not in wordless]
        self._spells_bytes = any(_BYTE_PIECE.fullmatch(piece) for piece in pieces)
        self._characters = frozenset("".join(pieces).replace(WORD_MARK, " ")) | {" "}
        self._ids = {piece: i for i, piece in enumerate(tokenizer.pieces)} if tokenizer.kind == "character" else {}
        self._processor = None if self._ids else _processor(tokenizer)

    def __call__(self, text: str, request: object = None) -> tuple[int, ...] | None:
        """Return the ids of a cleaned text; None if it has letters or digits that the vocabulary lacks.

        `request` is for attention decoders (prompts.PromptedEncoder) and does not count here.
        """
        writable = self.writable(text)
        ids = None if writable is None else self._encoded(writable)
        if writable is None or ids is None:
            lacking = (char for char in text if (near := self.writable(char)) is None or self._encoded(near) is None)
            self.changes.lacking[text] = " ".join(dict.fromkeys(lacking))
        elif writable != text:
            self._count_change(text, writable)
        return ids

    def _encoded(self, writable: str) -> tuple[int, ...] | None:
        if self._processor is None:
            return tuple(self._ids[char] for char in writable if char in self._ids)
        ids = tuple(self._processor.EncodeAsIds(writable))
        return None if self._processor.unk_id() in ids else ids

    def writable(self, text: str) -> str | None:
        """Map the text to the vocabulary's characters: lower case or no accents if need be; other marks are dropped.

        None if a letter or a digit would be lost.
        """
        if self._spells_bytes or self._characters.issuperset(text):
            return text
        parts = [self._nearest(char) for char in text]
        return None if None in parts else " ".join("".join(part or "" for part in parts).split())

    def _count_change(self, text: str, writable: str) -> None:
        changes = self.changes
        if not changes.num_texts:
            changes.example = text, writable
        changes.num_texts += 1
        for char in dict.fromkeys(text):
            if char not in self._characters and char not in changes.characters:
                changes.characters[char] = self._nearest(char) or ""

    def _nearest(self, char: str) -> str | None:
        plain = "".join(c for c in unicodedata.normalize("NFKD", char) if not unicodedata.combining(c))
        for candidate in (char, plain, char.lower(), plain.lower()):
            if candidate and self._characters.issuperset(candidate):
                return candidate
        return None if unicodedata.category(char)[0] in "LN" else ""


def _processor(tokenizer: Tokenizer) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    model = tokenizer.files.get("tokenizer.model")
    try:
        converted = strip_normalizer(model) if model else _as_sentencepiece(tokenizer)
        processor.LoadFromSerializedProto(converted)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot encode with this checkpoint's tokenizer: {first_line(error)}") from error
    return processor


def _as_sentencepiece(tokenizer: Tokenizer) -> bytes:
    """Convert a tokenizer.json's BPE or Unigram vocabulary to a SentencePiece model (the ModelProto fields for encoding).

    BPE's scores give the order of merges, as does the order of a tokenizer.json's merges.
    """
    vocabulary = json.loads(tokenizer.files["tokenizer.json"])["model"]
    unigram = isinstance(vocabulary["vocab"], list)
    scores = dict(vocabulary["vocab"]) if unigram else _merge_scores(vocabulary["merges"])
    pieces = [
        _field(
            1,
            _field(1, piece.encode())
            + b"\x15"
            + struct.pack("<f", scores.get(piece, -1e6))
            + _type_field(tokenizer, i),
        )
        for i, piece in enumerate(tokenizer.pieces)
    ]
    return b"".join(pieces) + _field(2, bytes([3 << 3, _UNIGRAM if unigram else _BPE]))


def _merge_scores(merges: Iterable[str | list[str]]) -> Mapping[str, float]:
    scores: dict[str, float] = {}
    for rank, merge in enumerate(merges):
        scores.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), -float(rank))
    return scores


def _type_field(tokenizer: Tokenizer, token_id: int) -> bytes:
    piece = tokenizer.pieces[token_id]
    if piece == "<unk>":
        kind = _UNKNOWN
    elif token_id in tokenizer.silent_ids:
        kind = _CONTROL
    else:
        kind = _BYTE if _BYTE_PIECE.fullmatch(piece) else _NORMAL
    return bytes([3 << 3, kind])


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    length, encoded = len(content), bytearray()
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2]) + bytes([*encoded, length]) + content
