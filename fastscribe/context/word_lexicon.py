"""The words of a language model as a tree of their beginnings, which a recognizer's tokens walk along.

A node is the beginning of a word, by its characters, however the model divides the word into tokens: an arc is a token whose
text leads from one beginning to a longer one. Node 0 is the empty beginning, and node 1 stands for all that begins no word.

A token that begins with a space ends the word before it. Punctuation that no word of the model has inside is passed over.
Where the language model has small letters only, capitals of the recognizer count as these; and so with capitals only.

Shapes: P nodes, A arcs, V tokens, W words, E beginnings of words, L characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fastscribe.text.tokenizer import WORD_MARK, Tokenizer
from fastscribe.types import BoolArray, Float32Array, Int32Array, Int64Array, UInt64Array

ROOT, NO_WORD = 0, 1
_MAX_LETTERS = 48  # longer words count as unknown ones
_HASH = np.uint64(0x9E37_79B9_7F4A_7C15)


@dataclass(frozen=True)
class WordLexicon:
    first_P: Int64Array  # index of the node's first arc; one more than nodes
    tokens_A: Int32Array
    children_A: Int32Array
    word_P: Int32Array  # the word that ends here; -1: none
    best_P: Float32Array  # of the words that begin so: the largest score
    begins_V: BoolArray  # the token ends a word and begins another
    keeps_V: BoolArray  # the token has no text that counts
    child_V: Int32Array  # the node after the token where it begins a word


@dataclass(frozen=True)
class _Texts:
    """What counts of each token's text."""

    begins: list[bool]
    keeps: list[bool]
    letters: list[str | None]  # None: it fits no word


def build_lexicon(words: Sequence[str], scores_W: Float32Array, tokenizer: Tokenizer) -> WordLexicon:
    """Build the tree.

    Args:
        words: The language model's, without those in angle brackets that stand for others.
        scores_W: Their log-probabilities without context.
        tokenizer: The recognizer's.

    Raises:
        ValueError: The tokens can write none of the words.
    """
    fold_token, fold_word = _case_rules(words, tokenizer)
    texts = _token_texts(tokenizer, fold_token, _inner_marks(words))
    numbers: dict[str, int] = {}  # of each spelling: the likeliest word
    for number in np.argsort(-scores_W, kind="stable").tolist():
        spelling = unicodedata.normalize("NFC", fold_word(words[number]))
        if 0 < len(spelling) <= _MAX_LETTERS:
            numbers.setdefault(spelling, number)
    spellings = sorted(numbers)
    nodes_WL, codes_WL, is_new_WL = _beginnings(spellings)
    num_nodes = 2 + int(is_new_WL.sum())
    lengths_W = np.array([len(spelling) for spelling in spellings])
    words_W = np.array([numbers[spelling] for spelling in spellings], np.int32)
    del numbers  # objects of a million words, which are not needed any more
    word_P = np.full(num_nodes, -1, np.int32)
    word_P[nodes_WL[np.arange(len(spellings)), lengths_W]] = words_W
    del spellings
    best_P = np.full(num_nodes, -np.inf, np.float32)
    for length in range(1, nodes_WL.shape[1]):
        has_W = lengths_W >= length
        np.maximum.at(best_P, nodes_WL[has_W, length], scores_W[words_W[has_W]])
    parents_A, tokens_A, children_A = _arcs(nodes_WL, codes_WL, is_new_WL, texts.letters)
    begins_V, keeps_V = np.array(texts.begins, bool), np.array(texts.keeps, bool)
    child_V = np.full(len(texts.letters), NO_WORD, np.int32)
    child_V[np.array([letters == "" for letters in texts.letters], bool)] = ROOT
    is_first_A = parents_A == ROOT
    child_V[tokens_A[is_first_A]] = children_A[is_first_A]
    is_inside_A = ~begins_V[tokens_A]
    if not _can_write_any(child_V[begins_V], parents_A[is_inside_A], children_A[is_inside_A], word_P):
        raise ValueError("the model's tokens can write none of its words")
    order_A = np.lexsort((tokens_A, parents_A))
    parents_A, tokens_A, children_A = (
        array[order_A[is_inside_A[order_A]]] for array in (parents_A, tokens_A, children_A)
    )
    return WordLexicon(
        first_P=np.searchsorted(parents_A, np.arange(num_nodes + 1)),
        tokens_A=tokens_A,
        children_A=children_A,
        word_P=word_P,
        best_P=best_P,
        begins_V=begins_V,
        keeps_V=keeps_V,
        child_V=child_V,
    )


def _case_rules(words: Sequence[str], tokenizer: Tokenizer) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return what is done to the tokens' text and to the words, so that their case agrees."""
    has_small = any(word != word.upper() for word in words)
    has_capitals = any(word != word.lower() for word in words)
    if not has_capitals:
        return str.lower, str
    if not has_small:
        return str.upper, str
    shown = (piece for piece in tokenizer.pieces if not piece.startswith("<"))
    return (str, str) if any(piece != piece.lower() for piece in shown) else (str, str.lower)


def _inner_marks(words: Sequence[str]) -> frozenset[str]:
    """Return the punctuation that stands beside other characters in words."""
    return frozenset(c for word in words if len(word) > 1 for c in word if not c.isalnum())


def _token_texts(tokenizer: Tokenizer, fold: Callable[[str], str], inner_marks: frozenset[str]) -> _Texts:
    found = _Texts([], [], [])
    for token, piece in enumerate(tokenizer.pieces):
        is_silent = token in tokenizer.ids_outside_words or token in tokenizer.silent_ids
        is_known = token not in tokenizer.byte_ids and token not in tokenizer.unknown_ids
        surface = piece if tokenizer.kind == "character" else piece.replace(WORD_MARK, " ")
        *_, after = ("" if is_silent else surface).split(" ")
        begins = " " in surface and not is_silent
        letters = "".join(c for c in fold(after) if c in inner_marks or not unicodedata.category(c).startswith("P"))
        found.begins.append(begins)
        found.keeps.append(is_silent or (is_known and not letters and not begins))
        found.letters.append(unicodedata.normalize("NFC", letters) if is_known else None)
    return found


def _beginnings(spellings: Sequence[str]) -> tuple[Int32Array, Int32Array, BoolArray]:
    """Return the node [W, L + 1] and the codes [W, L] of each beginning of each word, and where [W, L + 1] a node is new."""
    longest = max(map(len, spellings), default=0)
    width = max(1, longest)
    text = np.array(spellings, f"<U{width}") if spellings else np.empty(0, "<U1")
    codes_WL = text.view(np.int32).reshape(len(spellings), width)
    lengths_W = np.array([len(spelling) for spelling in spellings], np.int64)
    shared_WL = np.zeros_like(codes_WL, dtype=bool)
    shared_WL[1:] = codes_WL[1:] == codes_WL[:-1]
    shared_W = np.logical_and.accumulate(shared_WL, axis=1).sum(1)  # characters that the word before begins with, too
    places_L = np.arange(width + 1)
    is_new_WL = (places_L > shared_W[:, None]) & (places_L <= lengths_W[:, None])
    nodes_WL = np.cumsum(is_new_WL.reshape(-1), dtype=np.int32).reshape(is_new_WL.shape)
    nodes_WL += NO_WORD
    rows_W = np.arange(len(spellings))
    for column_W, is_new_W in zip(nodes_WL.T, is_new_WL.T, strict=True):  # one at a time: all take gigabytes
        first_W = np.maximum.accumulate(np.where(is_new_W, rows_W, 0))  # the word that had this beginning first
        column_W[:] = column_W[first_W]
    nodes_WL[:, 0] = ROOT
    return nodes_WL, codes_WL, is_new_WL


def _arcs(
    nodes_WL: Int32Array, codes_WL: Int32Array, is_new_WL: BoolArray, letters: Sequence[str | None]
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Return parent, token and child of each arc: the tokens whose letters end a beginning of a word."""
    by_length: dict[int, dict[str, list[int]]] = {}
    for token, text in enumerate(letters):
        if text:
            by_length.setdefault(len(text), {}).setdefault(text, []).append(token)
    found: list[tuple[Int32Array, Int32Array, Int32Array]] = []
    words_E, ends_E = (places.astype(np.int32) for places in np.nonzero(is_new_WL))
    for length, tokens in by_length.items():
        texts = sorted(tokens)
        places = np.flatnonzero(ends_E >= length)
        if not len(places):
            continue
        words, ends = words_E[places], ends_E[places]
        hashes = _hashed([codes_WL[words, ends - length + place] for place in range(length)])
        codes = np.array(texts, f"<U{length}").view(np.uint32).reshape(len(texts), length).astype(np.int64)
        wanted = _hashed([codes[:, place] for place in range(length)])
        order = np.argsort(wanted)
        index = order[np.searchsorted(wanted[order], hashes).clip(max=len(texts) - 1)]
        is_equal = np.ones(len(places), bool)
        for place in range(length):
            is_equal &= codes_WL[words, ends - length + place] == codes[index, place]
        words, ends, index = words[is_equal], ends[is_equal], index[is_equal]
        parents, children = nodes_WL[words, ends - length], nodes_WL[words, ends]
        for rank in range(max(map(len, tokens.values()))):  # tokens with equal letters: with and without a space
            token_T = np.array([(tokens[text] + [-1] * (rank + 1))[rank] for text in texts])
            is_token = token_T[index] >= 0
            found.append((parents[is_token], token_T[index][is_token].astype(np.int32), children[is_token]))
    if not found:
        empty = np.empty(0, np.int32)
        return empty, empty, empty
    parents_A, tokens_A, children_A = map(np.concatenate, zip(*found, strict=True))
    return parents_A, tokens_A, children_A


def _hashed(columns: Sequence[Int32Array | Int64Array]) -> UInt64Array:
    total: UInt64Array = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        total = (total + column.astype(np.uint64) + np.uint64(1)) * _HASH
        total ^= total >> np.uint64(29)
    return total


def _can_write_any(first: Int32Array, parents_A: Int32Array, children_A: Int32Array, word_P: Int32Array) -> bool:
    """Return True if tokens lead from the root, or from a first token's node, to the end of a word."""
    is_reached_P = np.zeros(len(word_P), bool)
    more = np.append(first, ROOT)
    while len(more):
        is_reached_P[more] = True
        if (word_P[more] >= 0).any():
            return True
        more = children_A[is_reached_P[parents_A] & ~is_reached_P[children_A]]
    return False
