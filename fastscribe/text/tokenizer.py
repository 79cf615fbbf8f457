"""Token ids to text: SentencePiece models, rows of these, Hugging Face tokenizer.json files and plain character vocabularies.

Decoding only needs the pieces, so all become one list of pieces and one rule for joining them. sentencepiece reads
its own model files; it is not asked to decode, because words and subtitles need the text of parts of a hypothesis by
the same rule as the whole. tests compare that rule with sentencepiece's own.
"""

from __future__ import annotations

import codecs
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from fastscribe._system.safe_open import safe_read

MAX_TOKENIZER_BYTES = 16 << 20  # of a tokenizer's file; those of the largest vocabularies take a quarter
# Of a vocabulary; NeMo's have up to 16,384. Logits of a batch take as much memory for each piece.
MAX_PIECES = 1 << 16
WORD_MARK = "▁"  # SentencePiece writes a word's leading space so
UNKNOWN_TEXT = " ⁇ "  # what SentencePiece shows for <unk>
_TOO_MANY = f"more than {MAX_PIECES:,} pieces"
_OTHER_PARTS = 100  # of SentencePiece's ModelProto, beside the pieces
# Of SentencePiece's ModelProto: a wire type, fields, and a field of the third.
_LENGTH_DELIMITED, _PIECES_AND_TRAINING, _NORMALIZER, _ADD_DUMMY_PREFIX = 2, (1, 2), 3, 3
_PRECOMPILED_TABLE, _REMOVE_EXTRA_WHITESPACES = 2, 4  # fields of the normaliser
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Pieces of these kinds say nothing about which punctuation a model writes.
_NOT_TEXT = re.compile(r"^(\[.*\]|<.*>|##.*|▁.*|\s*)$", re.DOTALL)

# Python shows a broken sequence as one replacement character, SentencePiece as one for each of its bytes.
_ONE_A_BYTE = "fastscribe-one-replacement-a-byte"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_ONE_A_BYTE, _replace_each_byte)

# An aggregate is several SentencePiece vocabularies in a row (NeMo's multilingual models).
Kind = Literal["subword", "aggregate", "character"]

# Where punctuation loses the space before it: by NeMo's rule, in an attention decoder's words alone, or nowhere.
Attached = Literal["sentences and words", "words", "nowhere"]

# Word marks that a text loses at its beginning: of every piece up to the first with other text, of one, or of none.
LeadingMarks = Literal["all", "one", "none"]

# What a token does to words, going by its text alone.
Role = Literal["inside", "starts word", "space", "punctuation"]


@dataclass(frozen=True)
class Tokenizer:
    """The pieces of a vocabulary in id order, blank not among them, and the files they came from (name -> content).

    Raises ValueError where a piece is not text that can be written.
    """

    pieces: tuple[str, ...]
    kind: Kind
    unknown_ids: frozenset[int] = frozenset()
    silent_ids: frozenset[int] = frozenset()  # control and special tokens: no text
    silent_tokens_start_words: bool = False  # as NeMo has it for the control tokens of a SentencePiece model
    attached: Attached = "sentences and words"
    dropped_marks: LeadingMarks = "all"
    begins_with_space: bool = False  # the encoding of any text begins with a word mark
    files: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not all(isinstance(piece, str) for piece in self.pieces):
            raise ValueError("a piece is not text")
        "".join(self.pieces).encode()  # a lone surrogate (JSON and YAML can spell one) raises UnicodeEncodeError

    def text(self, ids: Iterable[int]) -> str:
        """The text of a token sequence, without a leading space."""
        ids = list(ids)
        if self.kind == "character":
            return "".join([self.pieces[i] for i in ids])
        if not self._byte_ids.isdisjoint(ids):
            return self._join(ids)
        for index, first in enumerate(ids):  # as _join, by table
            if first in self._text_begins_ids:
                return self._beginnings[first] + "".join([self._spaced[i] for i in ids[index + 1 :]])
        return ""

    def _join(self, ids: Iterable[int]) -> str:
        return _join((self._surface(i) for i in ids), self.dropped_marks)

    @cached_property
    def _byte_ids(self) -> frozenset[int]:
        """Tokens whose text depends on their neighbours."""
        return frozenset(i for i in range(len(self.pieces)) if _BYTE_PIECE.fullmatch(self._surface(i)))

    @cached_property
    def _spaced(self) -> tuple[str, ...]:
        return tuple(self._surface(i).replace(WORD_MARK, " ") for i in range(len(self.pieces)))

    @cached_property
    def _beginnings(self) -> tuple[str, ...]:
        return tuple(self._join([i]) for i in range(len(self.pieces)))

    @cached_property
    def _text_begins_ids(self) -> frozenset[int]:
        """Tokens after which no word mark is dropped."""
        drops_one = self.dropped_marks == "one"
        marked = {i for i in range(len(self.pieces)) if drops_one and self._surface(i).startswith(WORD_MARK)}
        return frozenset(marked.union(i for i, text in enumerate(self._beginnings) if text))

    def _surface(self, token_id: int) -> str:
        if token_id in self.unknown_ids:
            return UNKNOWN_TEXT
        return "" if token_id in self.silent_ids else self.pieces[token_id]

    @cached_property
    def token_texts(self) -> tuple[str, ...]:
        """Each token's text on its own: what it is compared with to see whether it starts a word.

        As in NeMo, a token of an aggregate keeps its leading space here: a lone word mark is a space, and punctuation
        with a word mark is not one punctuation mark.
        """
        if self.kind == "aggregate" and self.attached == "sentences and words":
            return self._spaced
        return tuple(self.text([i]) for i in range(len(self.pieces)))

    @cached_property
    def marks(self) -> frozenset[str]:
        """Punctuation characters (Unicode category P) that the vocabulary can write without a word mark."""
        text_pieces = (piece for piece in self.pieces if not _NOT_TEXT.match(piece))
        return frozenset(c for piece in text_pieces for c in piece if unicodedata.category(c).startswith("P"))

    @property
    def punctuation(self) -> frozenset[str]:
        """Those that belong to the word before them, whether or not there is a space between."""
        return frozenset() if self.attached == "nowhere" else self.marks

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        return tuple(self._role(i, text) for i, text in enumerate(self.token_texts))

    def _role(self, token_id: int, text: str) -> Role:
        if text in self.punctuation:
            return "punctuation"
        if text == " ":
            return "space"
        if self.attached == "nowhere" and token_id in self._byte_ids:
            return "inside"
        is_marked = self.kind != "character" and self.pieces[token_id] != text
        return "starts word" if is_marked else "inside"

    @cached_property
    def mark_ids(self) -> frozenset[int]:
        """Tokens whose whole text is one punctuation mark."""
        return frozenset(i for i, text in enumerate(self.token_texts) if text in self.marks)

    @cached_property
    def wordless_ids(self) -> frozenset[int]:
        """Tokens that no word holds."""
        in_words = self.silent_tokens_start_words and self.attached == "sentences and words"
        return frozenset() if in_words else self.silent_ids

    @cached_property
    def dropped_in_words_ids(self) -> frozenset[int]:
        """Tokens that a word leaves out where punctuation follows: spaces and, as in NeMo, underscores."""
        return frozenset(i for i, piece in enumerate(self.pieces) if piece in (" ", WORD_MARK, "_"))

    @cached_property
    def _space_before_punctuation(self) -> re.Pattern[str] | None:
        if not self.punctuation:
            return None
        return re.compile(r"\s([" + "".join(re.escape(c) for c in sorted(self.punctuation)) + "])")

    def sentence(self, ids: Iterable[int]) -> str:
        """Text of a whole hypothesis."""
        return self.tidied(self.text(ids))

    def tidied(self, text: str) -> str:
        """One space before each punctuation character is taken out where NeMo does so."""
        pattern = self._space_before_punctuation if self.attached == "sentences and words" else None
        return pattern.sub(r"\1", text) if pattern else text


def _join(surfaces: Iterable[str], dropped_marks: LeadingMarks) -> str:
    """SentencePiece's rule: word marks become spaces, but for leading ones; runs of byte pieces become UTF-8."""
    text = ""
    pending = bytearray()
    drops = dropped_marks != "none"
    for surface in surfaces:
        byte = _BYTE_PIECE.fullmatch(surface)
        if byte:
            pending.append(int(byte[1], 16))
            continue
        text += pending.decode("utf-8", _ONE_A_BYTE)
        pending.clear()
        if drops and not text and surface.startswith(WORD_MARK):
            surface = surface.removeprefix(WORD_MARK)
            drops = dropped_marks == "all"
        text += surface.replace(WORD_MARK, " ")
    return text + pending.decode("utf-8", _ONE_A_BYTE)


def from_sentencepiece(model: bytes) -> Tokenizer:
    """Raises RuntimeError (sentencepiece's own) or ValueError when the bytes are not a model."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(pieces_alone(model))
    ids = range(processor.GetPieceSize())
    adds_space = _normalizer_flag(model, _ADD_DUMMY_PREFIX)
    removes_spaces = _normalizer_flag(model, _REMOVE_EXTRA_WHITESPACES)
    return Tokenizer(
        pieces=tuple(processor.IdToPiece(i) for i in ids),
        kind="subword",
        unknown_ids=frozenset(i for i in ids if processor.IsUnknown(i)),
        silent_ids=frozenset(i for i in ids if processor.IsControl(i)),
        silent_tokens_start_words=True,
        dropped_marks="all" if removes_spaces else "one" if adds_space else "none",
        begins_with_space=adds_space,
        files={"tokenizer.model": model},
    )


def pieces_alone(model: bytes) -> bytes:
    """The model (a protobuf message) without its tables for normalising text and its self-tests.

    Both only matter for encoding, but sentencepiece runs the tests on the tables when it loads a model, and its older
    versions read out of bounds where the tables are made up. Raises ValueError where the bytes are no such message.
    """
    return b"".join(model[start:end] for part, start, _, end in _parts(model) if part in _PIECES_AND_TRAINING)


def normalization_rules(model: bytes) -> tuple[bytes, bytes]:
    """-> the model's table of normalisation rules (empty for none), and a model that encodes the same without it.

    Its flags, on spaces, stay. Raises ValueError where the bytes are no such message.
    """
    table, without = b"", pieces_alone(model)
    for part, _, begin, end in _parts(model):
        if part != _NORMALIZER:
            continue
        flags, position = b"", begin
        while position < end:
            start = position
            tag, position = _varint(model, position)
            value, position = _varint(model, position)
            if tag & 7 == _LENGTH_DELIMITED:
                content = model[position : position + value]
                position += value
                table = content if tag >> 3 == _PRECOMPILED_TABLE else table
            elif tag & 7 == 0:
                flags += model[start:position]
            else:
                raise ValueError("damaged, or something else")
        without += bytes([_NORMALIZER << 3 | _LENGTH_DELIMITED, len(flags)]) + flags if len(flags) < 0x80 else b""
    return table, without


def _normalizer_flag(model: bytes, flag: int) -> bool:
    """A switch among its rules for normalising text. It is on unless they say otherwise."""
    for part, _, begin, end in _parts(model):
        position = begin
        while part == _NORMALIZER and position < end:
            tag, position = _varint(model, position)
            if tag == 0:
                raise ValueError("damaged, or something else")
            value, position = _varint(model, position)
            if tag == flag << 3:
                return bool(value)
            position += value if tag & 7 == _LENGTH_DELIMITED else 0
    return True


def _parts(model: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(field, start, start of its content, end) of each part of the message."""
    position = num_parts = 0
    while position < len(model):
        num_parts += 1
        if num_parts > MAX_PIECES + _OTHER_PARTS:
            raise ValueError(_TOO_MANY)
        start = position
        tag, position = _varint(model, position)
        length, begin = _varint(model, position)
        position = begin + length
        if tag & 7 != _LENGTH_DELIMITED or position > len(model):
            raise ValueError("damaged, or something else")
        yield tag >> 3, start, begin, position


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Protobuf's number at this position, and the position after it."""
    value = 0
    for index, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("damaged, or something else")


def from_huggingface(tokenizer_json: bytes, num_labels: int) -> Tokenizer:
    """Reads BPE and Unigram vocabularies; ids from `num_labels` on (the blank) are left out.

    Raises ValueError where the file is something else or leaves ids without a piece.
    """
    data = json.loads(tokenizer_json)
    vocabulary = data["model"]["vocab"]
    if len(vocabulary) + len(data.get("added_tokens", [])) > 2 * MAX_PIECES:
        raise ValueError(_TOO_MANY)
    by_id = {i: piece for i, (piece, _) in enumerate(vocabulary)} if isinstance(vocabulary, list) else {}
    if isinstance(vocabulary, dict):
        by_id = {i: piece for piece, i in vocabulary.items()}
    special = set()
    for token in data.get("added_tokens", []):
        by_id[token["id"]] = token["content"]
        if token.get("special"):
            special.add(token["id"])
    missing = [i for i in range(num_labels) if i not in by_id]
    if missing:
        raise ValueError(f"no piece for ids {missing[:5]} of {num_labels}")
    return Tokenizer(
        pieces=tuple(by_id[i] for i in range(num_labels)),
        kind="subword",
        silent_ids=frozenset(i for i in special if i < num_labels),
        dropped_marks="one" if (data.get("decoder") or {}).get("type") == "Metaspace" else "all",
        files={"tokenizer.json": tokenizer_json},
    )


def from_characters(labels: Sequence[str]) -> Tokenizer:
    """Raises ValueError for too many."""
    _check_number(labels)
    listing = json.dumps(list(labels), ensure_ascii=False).encode()
    return Tokenizer(pieces=tuple(labels), kind="character", files={"characters.json": listing})


def from_pieces(pieces: Sequence[str]) -> Tokenizer:
    """Several SentencePiece vocabularies one after the other (NeMo's aggregate): control and unknown ones are shown too.

    Raises ValueError for too many.
    """
    _check_number(pieces)
    listing = json.dumps(list(pieces), ensure_ascii=False).encode()
    return Tokenizer(pieces=tuple(pieces), kind="aggregate", files={"pieces.json": listing})


def _check_number(pieces: Sequence[str]) -> None:
    if len(pieces) > MAX_PIECES:
        raise ValueError(_TOO_MANY)


def from_folder(folder: Path, num_labels: int) -> Tokenizer:
    """Whichever of the four files a fastscribe or Hugging Face folder holds. Raises FileNotFoundError for none."""
    if (folder / "tokenizer.model").is_file():
        return from_sentencepiece(safe_read(folder / "tokenizer.model", MAX_TOKENIZER_BYTES))
    if (folder / "tokenizer.json").is_file():
        return from_huggingface(safe_read(folder / "tokenizer.json", MAX_TOKENIZER_BYTES), num_labels)
    if (folder / "characters.json").is_file():
        return from_characters(json.loads(safe_read(folder / "characters.json", MAX_TOKENIZER_BYTES)))
    if (folder / "pieces.json").is_file():
        return from_pieces(json.loads(safe_read(folder / "pieces.json", MAX_TOKENIZER_BYTES)))
    raise FileNotFoundError(f"{folder} holds no tokenizer.model, tokenizer.json, characters.json or pieces.json")
