"""Conversion of a SentencePiece model to a tokenizer.json of Hugging Face's tokenizers library, which is not needed."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from fastscribe.text.tokenizer import WORD_MARK, Tokenizer, is_bpe, normalization_table, sentencepiece_processor

_ALL_SPACES = 1000  # more than a text begins with


def first_special(tokenizer: Tokenizer) -> int | None:
    """Return the first token without a text of its own, such as <unk>; None if there is none."""
    return min(tokenizer.unknown_ids | tokenizer.silent_ids, default=None)


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of a tokenizer.json with the tokenizer's pieces and rules.

    Unknown and control pieces are special tokens, which transformers leaves out of texts.

    Args:
        tokenizer: of a SentencePiece model.
    """
    model = tokenizer.files["tokenizer.model"]
    table, processor = normalization_table(model), sentencepiece_processor(model)
    scores = {piece: float(processor.GetScore(i)) for i, piece in enumerate(tokenizer.pieces)}
    spells_bytes = any(processor.IsByte(i) for i in range(len(tokenizer.pieces)))
    specials = sorted(tokenizer.unknown_ids | tokenizer.silent_ids)
    metaspace = {
        "type": "Metaspace",
        "replacement": WORD_MARK,
        "prepend_scheme": "always" if tokenizer.begins_with_space else "never",
        "split": True,
    }
    rules = [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}] if table else []
    spaces = [
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(i, tokenizer.pieces[i]) for i in specials],
        "normalizer": {"type": "Sequence", "normalizers": [*rules, *spaces]},
        "pre_tokenizer": metaspace,
        "post_processor": None,
        "decoder": _decoder() if tokenizer.dropped_marks == "all" else metaspace,
        "model": (_bpe if is_bpe(model) else _unigram)(tokenizer, scores, spells_bytes),
    }


def with_blank(content: dict[str, Any], blank_id: int, name: str) -> dict[str, Any]:
    """Add the blank as a special token after the vocabulary, unless there is a token of its id."""
    tokens = content.get("added_tokens") or []
    if any(token["id"] == blank_id for token in tokens):
        return content
    taken = {token["content"] for token in tokens}.union(_pieces(content["model"]["vocab"]))
    while name in taken:
        name = f"<{name}>"
    return content | {"added_tokens": [*tokens, _special(blank_id, name)]}


def _pieces(vocabulary: Mapping[str, int] | list[list[Any]]) -> Iterator[str]:
    return (entry[0] for entry in vocabulary) if isinstance(vocabulary, list) else iter(vocabulary)


def _special(token_id: int, piece: str) -> dict[str, Any]:
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": piece, **off, "special": True}


def _decoder() -> dict[str, Any]:
    """Return a decoder that drops all spaces at the beginning, as SentencePiece does."""
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": WORD_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": _ALL_SPACES, "stop": 0},
    ]
    return {"type": "Sequence", "decoders": steps}


def _unigram(tokenizer: Tokenizer, scores: Mapping[str, float], spells_bytes: bool) -> dict[str, Any]:
    return {
        "type": "Unigram",
        "unk_id": min(tokenizer.unknown_ids, default=None),
        "vocab": [[piece, scores[piece]] for piece in tokenizer.pieces],
        "byte_fallback": spells_bytes,
    }


def _bpe(tokenizer: Tokenizer, scores: Mapping[str, float], spells_bytes: bool) -> dict[str, Any]:
    unknown = min(tokenizer.unknown_ids, default=None)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if unknown is None else tokenizer.pieces[unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": spells_bytes,
        "ignore_merges": False,
        "vocab": {piece: i for i, piece in enumerate(tokenizer.pieces)},
        "merges": _merges(tokenizer, scores),
    }


def _merges(tokenizer: Tokenizer, scores: Mapping[str, float]) -> list[list[str]]:
    """Return each pair of pieces that joins to a third, in the order of the third's scores.

    SentencePiece joins the pair of neighbours whose sum has the highest score, so all pairs of a sum are equal.
    """
    special = {tokenizer.pieces[i] for i in tokenizer.unknown_ids | tokenizer.silent_ids}
    pieces = sorted((piece for piece in scores if piece not in special), key=lambda piece: -scores[piece])
    known = set(pieces)
    splits = ([piece[:cut], piece[cut:]] for piece in pieces for cut in range(1, len(piece)))
    return [split for split in splits if known.issuperset(split)]
