"""Token ids to text: SentencePiece models, aggregates of them, Hugging Face tokenizer.json files and character vocabularies.

Every vocabulary becomes a list of pieces with one rule for joining them. sentencepiece reads its model files but does not
decode, because words and subtitles need the same rule for parts of a hypothesis as for the whole. Tests compare that rule
with sentencepiece's.
"""

from __future__ import annotations

import codecs
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fastscribe._system.file_kinds import safe_read
from fastscribe._system.text_layout import join_texts
from fastscribe.config import MAX_PIECES

MAX_TOKENIZER_BYTES = 16 << 20  # of a tokenizer file; the largest vocabularies take a quarter
WORD_MARK = "▁"  # SentencePiece's leading space of a word
UNKNOWN_TEXT = " ⁇ "  # SentencePiece's text of <unk>
_TOO_MANY = f"more than {MAX_PIECES:,} pieces"
_OTHER_PARTS = 100  # fields of SentencePiece's ModelProto beside the pieces
# SentencePiece's ModelProto: a wire type, field numbers, and a field of the normaliser.
_LENGTH_DELIMITED, _PIECES_AND_TRAINING, _NORMALIZER, _ADD_DUMMY_PREFIX = 2, (1, 2), 3, 3
_TRAINING, _MODEL_TYPE, _UNIGRAM, _BPE = 2, 3, 1, 2  # the trainer's part, its field of the model's type, two types
_FIXED_BYTES = {1: 8, 5: 4}  # sizes of numbers by wire type
_PRECOMPILED_TABLE, _REMOVE_EXTRA_WHITESPACES = 2, 4  # fields of the normaliser
# Tokens about the text: the language of what was said, and the end of an utterance or of a listener's short answer.
_LANGUAGE_TAG, _UTTERANCE_END = re.compile(r"<([a-z]{2,3}-[A-Z]{2})>"), re.compile(r"<EO[UB]>")
_BYTE_PIECE = re.compile(r"(▁?)((?:<0x[0-9A-Fa-f]{2}>)+)")  # several bytes, or a space before them: of a byte-level BPE
# Control, special and marked pieces do not show which punctuation a model writes.
_NOT_TEXT = re.compile(r"^(\[.*\]|<.*>|##.*|▁.*|\s*)$", re.DOTALL)

# Python decodes an invalid sequence to one replacement character, SentencePiece to one per byte.
_REPLACE_EACH_BYTE = "fastscribe-replace-each-byte"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_REPLACE_EACH_BYTE, _replace_each_byte)

# An aggregate is a concatenation of SentencePiece vocabularies (NeMo's multilingual models).
Kind = Literal["subword", "aggregate", "character"]

# The file of one language of an aggregate: its place among them and its name.
LANGUAGE_MODEL = re.compile(r"pieces-([0-9]{2})-([A-Za-z0-9_-]{1,32})\.model")

# Where the space before punctuation is removed: everywhere (NeMo's rule), only in words (attention decoders), or nowhere.
PunctuationAttachment = Literal["sentences and words", "words", "nowhere"]

# Leading word marks to drop: all up to the first other text, the first one, or none.
LeadingMarks = Literal["all", "one", "none"]

# A token's effect on word boundaries, by its text alone.
Role = Literal["inside", "starts word", "space", "punctuation"]


@dataclass(frozen=True)
class Tokenizer:
    """The pieces of a vocabulary in id order, without blank, and the files they came from (name -> content).

    Raises:
        ValueError: a piece is not valid Unicode text.
    """

    pieces: tuple[str, ...]
    kind: Kind
    unknown_ids: frozenset[int] = frozenset()
    silent_ids: frozenset[int] = frozenset()  # control and special tokens: no text
    silent_tokens_start_words: bool = False  # NeMo's rule for control tokens of a SentencePiece model
    attached: PunctuationAttachment = "sentences and words"
    dropped_marks: LeadingMarks = "all"
    byte_errors: str = _REPLACE_EACH_BYTE  # Python's error handler for bytes that are no character
    begins_with_space: bool = False  # the encoding of any text begins with a word mark
    language: str | None = None  # tag of the one language of every text; None: not known
    files: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not all(isinstance(piece, str) for piece in self.pieces):
            raise ValueError("a piece is not text")
        "".join(self.pieces).encode()  # a lone surrogate (JSON and YAML can spell one) raises UnicodeEncodeError

    def parts(self) -> dict[str, Tokenizer]:
        """Return the vocabulary of each language of an aggregate, in order.

        Raises:
            ValueError: `files` does not hold them, or one is damaged.
        """
        found = {}
        for file, content in self.files.items():
            if (match := LANGUAGE_MODEL.fullmatch(file)) is not None:
                try:
                    found[match[2]] = from_sentencepiece(content)
                except (RuntimeError, ValueError) as error:
                    raise ValueError(f"{file} is not a SentencePiece model") from error
        if tuple(piece for part in found.values() for piece in part.pieces) != self.pieces:
            raise ValueError("has no vocabularies to encode text with (pieces-*.model): convert the .nemo file again")
        return found

    @cached_property
    def languages(self) -> dict[int, str]:
        """The language that each tag names, by token; tags have no text."""
        found = {i: _LANGUAGE_TAG.fullmatch(piece) for i, piece in enumerate(self.pieces)}
        return {i: match[1] for i, match in found.items() if match}

    @cached_property
    def utterance_end_ids(self) -> frozenset[int]:
        """Tokens that end an utterance and have no text."""
        return frozenset(i for i, piece in enumerate(self.pieces) if _UTTERANCE_END.fullmatch(piece))

    @cached_property
    def _tag_ids(self) -> frozenset[int]:
        return self.utterance_end_ids.union(self.languages)

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of a token sequence, without a leading space."""
        ids = list(ids)
        if self.kind == "character":
            return "".join(map(self._surface, ids))
        if not self.byte_ids.isdisjoint(ids):
            return self._join(ids)
        for index, first in enumerate(ids):  # the same as _join, by table
            if first in self._text_begins_ids:
                return self._beginnings[first] + "".join([self._spaced[i] for i in ids[index + 1 :]])
        return ""

    def _join(self, ids: Iterable[int]) -> str:
        return _join((self._surface(i) for i in ids), self.dropped_marks, self.byte_errors)

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Tokens of single bytes, whose text depends on their neighbours."""
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
        return "" if token_id in self.silent_ids or token_id in self._tag_ids else self.pieces[token_id]

    @cached_property
    def token_texts(self) -> tuple[str, ...]:
        """Text of each token on its own, which decides whether it starts a word.

        As in NeMo, tokens of an aggregate keep their leading space here: a lone word mark is a space, and punctuation
        with a word mark is not a punctuation mark.
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
        """Punctuation characters that attach to the previous word, with or without a space between."""
        return frozenset() if self.attached == "nowhere" else self.marks

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        return tuple(self._role(i, text) for i, text in enumerate(self.token_texts))

    def _role(self, token_id: int, text: str) -> Role:
        if text in self.punctuation:
            return "punctuation"
        if text == " ":
            return "space"
        if self.attached == "nowhere" and token_id in self.byte_ids:
            return "inside"
        is_marked = self.kind != "character" and self.pieces[token_id] != text
        return "starts word" if is_marked else "inside"

    @cached_property
    def punctuation_ids(self) -> frozenset[int]:
        """Tokens whose whole text is one punctuation mark."""
        return frozenset(i for i, text in enumerate(self.token_texts) if text in self.marks)

    @cached_property
    def has_letters(self) -> tuple[bool, ...]:
        """Whether each token has a letter or a digit."""
        return tuple(any(map(str.isalnum, text)) for text in self.token_texts)

    @cached_property
    def ids_outside_words(self) -> frozenset[int]:
        """Tokens that belong to no word."""
        in_words = self.silent_tokens_start_words and self.attached == "sentences and words"
        return self._tag_ids if in_words else self.silent_ids | self._tag_ids

    @cached_property
    def dropped_in_words_ids(self) -> frozenset[int]:
        """Tokens that a word drops before punctuation: spaces and, as in NeMo, underscores."""
        return frozenset(i for i, piece in enumerate(self.pieces) if piece in (" ", WORD_MARK, "_"))

    @cached_property
    def _space_before_punctuation(self) -> re.Pattern[str] | None:
        if not self.punctuation:
            return None
        return re.compile(r"\s([" + "".join(re.escape(c) for c in sorted(self.punctuation)) + "])")

    def sentence(self, ids: Iterable[int]) -> str:
        """Return the text of a whole hypothesis. The space before a tag goes with it, and an utterance's end ends a word."""
        ids = list(ids)
        if self._tag_ids.isdisjoint(ids):
            return self.remove_spaces_before_punctuation(self.text(ids))
        utterances = (self.text(ids[place]) for place in self.utterances(ids))
        return self.remove_spaces_before_punctuation(join_texts(" ".join(text.split()) for text in utterances))

    def utterances(self, ids: Sequence[int]) -> Iterator[slice]:
        """Split a hypothesis after each tag that ends an utterance, and after the punctuation and tags behind it."""
        start, is_ended = 0, False
        for index, token_id in enumerate(ids):
            if is_ended and self.roles[token_id] != "punctuation" and token_id not in self.languages:
                yield slice(start, index)
                start, is_ended = index, False
            is_ended = is_ended or token_id in self.utterance_end_ids
        yield slice(start, len(ids))

    def remove_spaces_before_punctuation(self, text: str) -> str:
        """Remove one space before each punctuation character, where NeMo does so."""
        pattern = self._space_before_punctuation if self.attached == "sentences and words" else None
        return pattern.sub(r"\1", text) if pattern else text


def _join(surfaces: Iterable[str], dropped_marks: LeadingMarks, byte_errors: str = _REPLACE_EACH_BYTE) -> str:
    """Join pieces by SentencePiece's rule: word marks become spaces, except leading ones; byte pieces become UTF-8."""
    text = ""
    pending = bytearray()
    drops = dropped_marks != "none"
    for surface in surfaces:
        piece = _BYTE_PIECE.fullmatch(surface)
        if piece and not piece[1]:
            pending += _bytes_of(piece[2])
            continue
        text += pending.decode("utf-8", byte_errors)
        pending.clear()
        if piece:
            pending += _bytes_of(piece[2])
            surface = piece[1]
        if drops and not text and surface.startswith(WORD_MARK):
            drops = dropped_marks == "all"
            surface = surface.lstrip(WORD_MARK) if drops else surface.removeprefix(WORD_MARK)
        text += surface.replace(WORD_MARK, " ")
    return text + pending.decode("utf-8", byte_errors)


def _bytes_of(marks: str) -> bytes:
    """Return the bytes of <0x41><0x42>.."""
    return bytes.fromhex(marks.replace("<0x", "").replace(">", ""))


def from_sentencepiece(model: bytes) -> Tokenizer:
    """Read a SentencePiece model.

    Args:
        model: content of the model file.

    Returns:
        The tokenizer.

    Raises:
        RuntimeError: sentencepiece cannot read the model.
        ValueError: the content is damaged.
    """
    adds_space = bool(_value(model, _NORMALIZER, _ADD_DUMMY_PREFIX, True))
    removes_spaces = bool(_value(model, _NORMALIZER, _REMOVE_EXTRA_WHITESPACES, True))
    processor = sentencepiece_processor(model)
    ids = range(processor.GetPieceSize())
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


def sentencepiece_processor(model: bytes) -> Any:
    """Load a SentencePiece model, whose normalisation table the library checks. Raises RuntimeError if it is damaged."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


def strip_normalizer(model: bytes) -> bytes:
    """Return a SentencePiece model that normalises nothing. Raises ValueError if the content is damaged."""
    return b"".join(model[start:end] for part, start, _, end in _parts(model) if part in _PIECES_AND_TRAINING)


def normalization_table(model: bytes) -> bytes:
    """Return the compiled normalisation rules of a SentencePiece model; empty for none. Raises ValueError."""
    table: bytes = _value(model, _NORMALIZER, _PRECOMPILED_TABLE, b"")
    return table


def is_bpe(model: bytes) -> bool:
    """Return True if a SentencePiece model joins pairs (BPE), and False if it is a unigram model, the default."""
    return bool(_value(model, _TRAINING, _MODEL_TYPE, _UNIGRAM) == _BPE)


def _value(model: bytes, part: int, field_number: int, default: Any) -> Any:
    """Return a whole number or bytes in a part of the message. Raises ValueError if the content is damaged."""
    for found, _, begin, end in _parts(model):
        position = begin
        while found == part and position < end:
            tag, position = _varint(model, position)
            if tag == 0:
                raise ValueError("damaged, or something else")
            if tag & 7 in _FIXED_BYTES:
                position += _FIXED_BYTES[tag & 7]
                continue
            number, position = _varint(model, position)
            is_bytes = tag & 7 == _LENGTH_DELIMITED
            if tag >> 3 == field_number:
                return model[position : position + number] if is_bytes else number
            position += number if is_bytes else 0
    return default


def _parts(model: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield field number, start, start of the content and end of each field of the message."""
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
    """Return the varint at this position and the position after it."""
    value = 0
    for index, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("damaged, or something else")


def from_huggingface(tokenizer_json: bytes, num_labels: int) -> Tokenizer:
    """Read a BPE or Unigram vocabulary.

    Args:
        tokenizer_json: content of the file.
        num_labels: ids from this one on (the blank) are dropped.

    Returns:
        The tokenizer.

    Raises:
        ValueError: the file is damaged, or an id has no piece.
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
    added = {token["id"] for token in data.get("added_tokens", [])}
    decoder = (data.get("decoder") or {}).get("type")
    has_bytes = is_byte_level(data)
    return Tokenizer(
        pieces=tuple(piece_of_bytes(by_id[i]) if has_bytes and i not in added else by_id[i] for i in range(num_labels)),
        kind="subword",
        silent_ids=frozenset(i for i in special if i < num_labels),
        dropped_marks="one" if decoder == "Metaspace" else "all",
        byte_errors="replace" if has_bytes else _REPLACE_EACH_BYTE,
        files={"tokenizer.json": tokenizer_json},
    )


def is_byte_level(tokenizer_json: Mapping[str, Any]) -> bool:
    """Return True if the pieces of a tokenizer.json are bytes, each written as a printable character."""
    return (tokenizer_json.get("decoder") or {}).get("type") == "ByteLevel"


def byte_characters(text: str) -> str:
    """Return the characters that a byte-level BPE writes for the bytes of a text."""
    return "".join(_CHARACTERS[byte] for byte in text.encode())


def piece_of_bytes(piece: str) -> str:
    """Return a piece of a byte-level BPE (GPT-2: a printable character for each byte) with word marks for spaces.

    A piece that is no text on its own, such as the first half of a character, becomes <0x..> for each byte.
    """
    content = bytes(_BYTES[character] for character in piece)
    try:
        return content.decode().replace(" ", WORD_MARK)
    except UnicodeDecodeError:
        mark = WORD_MARK if content.startswith(b" ") else ""
        return mark + "".join(f"<0x{byte:02X}>" for byte in content.removeprefix(b" "))


def _bytes_by_character() -> dict[str, int]:
    """Return the byte of each character that a byte-level BPE writes: printable bytes as themselves, others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _bytes_by_character()
_CHARACTERS = {byte: character for character, byte in _BYTES.items()}


def from_characters(labels: Sequence[str]) -> Tokenizer:
    """Make a tokenizer of a character vocabulary. Raises ValueError for more than MAX_PIECES."""
    _check_size(labels)
    listing = json.dumps(list(labels), ensure_ascii=False).encode()
    return Tokenizer(pieces=tuple(labels), kind="character", files={"characters.json": listing})


def from_pieces(pieces: Sequence[str], models: Mapping[str, bytes] | None = None) -> Tokenizer:
    """Make a tokenizer of concatenated SentencePiece vocabularies (NeMo's aggregate); all pieces have text.

    Args:
        pieces: of all languages in order.
        models: each language's SentencePiece model, in the same order. Only training needs them, to encode text. They are
            dropped if a language has a name that no file can have.

    Raises:
        ValueError: more than MAX_PIECES.
    """
    _check_size(pieces)
    listing = json.dumps(list(pieces), ensure_ascii=False).encode()
    files = {f"pieces-{place:02}-{name}.model": model for place, (name, model) in enumerate((models or {}).items())}
    kept = files if all(map(LANGUAGE_MODEL.fullmatch, files)) else {}
    return Tokenizer(pieces=tuple(pieces), kind="aggregate", files={"pieces.json": listing, **kept})


def _check_size(pieces: Sequence[str]) -> None:
    if len(pieces) > MAX_PIECES:
        raise ValueError(_TOO_MANY)


def from_folder(folder: Path, num_labels: int) -> Tokenizer:
    """Read the tokenizer of a fastscribe or Hugging Face folder.

    Args:
        folder: contains one of the four tokenizer files.
        num_labels: vocabulary size without blank.

    Returns:
        The tokenizer.

    Raises:
        FileNotFoundError: the folder has no tokenizer.
        RuntimeError, ValueError: the file is damaged.
    """
    if (folder / "tokenizer.model").is_file():
        return from_sentencepiece(safe_read(folder / "tokenizer.model", MAX_TOKENIZER_BYTES))
    if (folder / "tokenizer.json").is_file():
        return from_huggingface(safe_read(folder / "tokenizer.json", MAX_TOKENIZER_BYTES), num_labels)
    if (folder / "characters.json").is_file():
        return from_characters(json.loads(safe_read(folder / "characters.json", MAX_TOKENIZER_BYTES)))
    if (folder / "pieces.json").is_file():
        return from_pieces(json.loads(safe_read(folder / "pieces.json", MAX_TOKENIZER_BYTES)), _language_models(folder))
    raise FileNotFoundError(f"{folder} holds no tokenizer.model, tokenizer.json, characters.json or pieces.json")


def _language_models(folder: Path) -> dict[str, bytes]:
    """Return the SentencePiece model of each language of an aggregate in order; empty if the folder has none."""
    found = sorted(path.name for path in folder.glob("pieces-*.model") if LANGUAGE_MODEL.fullmatch(path.name))
    return {name[len("pieces-00-") : -len(".model")]: safe_read(folder / name, MAX_TOKENIZER_BYTES) for name in found}
