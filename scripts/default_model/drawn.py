"""Sentences drawn from a word trigram model of CMU Sphinx, such as en-us.lm.bin in PyPI's pocketsphinx.

Such a model was counted in far more text than comes with a package. Text drawn from it has its words and pairs of words as
often as they are said, and ngrams.py counts them as it counts a book. The words have no capitals: WordNet tells names.

A file (sphinxbase, lm_trie.c): a header, the number of n-grams of each length, 3 x 65,536 values (of pairs: probabilities and
weights of backing off; of triples: probabilities), 12 bytes for each word, bits for each pair and triple, the words. N-grams
are stored by their last word: a word has the words before it, and each of these pairs has the words before it.

Shapes: W words, P pairs, T triples, N sentences that are drawn at the same time, L words of a sentence.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import sentences

from fastscribe.types import AnyArray, BoolArray, Float64Array, Int64Array

MAGIC = b"Trie Language Model"
_VALUES = 1 << 16
_LOG_BASE = np.log(1.0001)
_AT_ONCE, _MAX_WORDS = 20_000, 40
_WORD = re.compile(r"[a-z]+('[a-z]+)*'?|'[a-z]+")
_MIN_NAME = 4  # letters
_MOST = 1 - 1e-6


@dataclass(frozen=True)
class Trigrams:
    words: list[str]
    word_probabilities_W: Float64Array
    pairs_P2: Int64Array  # each n-gram in reading order
    pair_probabilities_P: Float64Array
    triples_T3: Int64Array
    triple_probabilities_T: Float64Array


def read(path: Path) -> Trigrams:
    """Raise ValueError if the file is not of this kind."""
    content = path.read_bytes()
    offset = len(MAGIC)
    if not content.startswith(MAGIC) or content[offset : offset + 1] != b"\3":
        raise ValueError(f"{path}: no trigram model in the binary format of CMU Sphinx")
    num_words, num_pairs, num_triples, kind = struct.unpack_from("<3Ii", content, offset + 1)
    if kind != 1:
        raise ValueError(f"{path}: values of kind {kind}, where only 16 bits are read")
    offset += 17
    values = np.exp(np.frombuffer(content, np.float32, 3 * _VALUES, offset).astype(np.float64) * _LOG_BASE)
    offset += values.size * 4
    fields = np.dtype([("logprob", "<f4"), ("backoff", "<f4"), ("first", "<u4")])
    word_fields = np.frombuffer(content, fields, num_words + 1, offset)
    offset += word_fields.nbytes
    word_bits, place_bits = num_words.bit_length(), num_triples.bit_length()
    pair_bits, triple_bits = word_bits + 32 + place_bits, word_bits + 16
    pairs = np.frombuffer(content, np.uint8, ((1 + num_pairs) * pair_bits + 7) // 8 + 8, offset)
    offset += pairs.size
    triples = np.frombuffer(content, np.uint8, ((1 + num_triples) * triple_bits + 7) // 8 + 8, offset)
    offset += triples.size + 4
    firsts_W1 = word_fields["first"].astype(np.int64)
    num_pairs = int(firsts_W1[-1])  # a few may be counted that are not there
    last_P = np.repeat(np.arange(num_words), np.diff(firsts_W1))
    before_P = _numbers(pairs, num_pairs, pair_bits, 0, word_bits)
    firsts_P1 = _numbers(pairs, num_pairs + 1, pair_bits, word_bits + 32, place_bits)
    pair_T = np.repeat(np.arange(num_pairs), np.diff(firsts_P1))
    triple_T3 = np.stack(
        [_numbers(triples, num_triples, triple_bits, 0, word_bits), before_P[pair_T], last_P[pair_T]], 1
    )
    return Trigrams(
        content[offset:].decode().split("\0")[:num_words],
        np.exp(word_fields["logprob"][:num_words].astype(np.float64) * _LOG_BASE),
        np.stack([before_P, last_P], 1),
        values[_numbers(pairs, num_pairs, pair_bits, word_bits + 16, 16)],
        triple_T3,
        values[2 * _VALUES + _numbers(triples, num_triples, triple_bits, word_bits, 16)],
    )


def _numbers(packed: AnyArray, count: int, stride: int, offset: int, width: int) -> Int64Array:
    """Return numbers of `width` bits that stand `stride` bits apart."""
    bits = np.arange(count, dtype=np.int64) * stride + offset
    found = np.zeros(count, np.uint64)
    for byte in range(5):
        found |= packed[(bits >> 3) + byte].astype(np.uint64) << np.uint64(8 * byte)
    return ((found >> (bits & 7).astype(np.uint64)) & np.uint64((1 << width) - 1)).astype(np.int64)


class _Table:
    """What follows contexts, to draw from: cumulative probabilities, where those of context c lie between c and c + 1."""

    def __init__(self, contexts_A: Int64Array, words_A: Int64Array, probabilities_A: Float64Array) -> None:
        order_A = np.argsort(contexts_A, kind="stable")
        probabilities_A, self.words_A = probabilities_A[order_A], words_A[order_A]
        self.contexts_C, first_C, counts_C = np.unique(contexts_A[order_A], return_index=True, return_counts=True)
        sums_A = np.cumsum(probabilities_A)
        before_C = np.concatenate([[0.0], sums_A])[first_C]
        within_A = np.minimum(sums_A - np.repeat(before_C, counts_C), _MOST)
        self.ends_A = np.repeat(np.arange(len(counts_C)), counts_C) + within_A
        self.sums_C = np.minimum(np.add.reduceat(probabilities_A, first_C), _MOST)

    def draw(self, contexts_N: Int64Array, rng: np.random.Generator) -> tuple[BoolArray, Int64Array]:
        """Return a word for each context, and for which of them: the rest backs off."""
        share_N = rng.random(len(contexts_N))
        place_N = np.searchsorted(self.contexts_C, contexts_N).clip(max=len(self.contexts_C) - 1)
        is_drawn_N = (self.contexts_C[place_N] == contexts_N) & (share_N < self.sums_C[place_N])
        word_N = self.words_A[np.searchsorted(self.ends_A, place_N + share_N, "right").clip(max=len(self.ends_A) - 1)]
        return is_drawn_N, word_N


def drawn(path: Path, num_words: int, seed: int = 0) -> Iterator[str]:
    """Draw sentences of two words or more, `num_words` words or a few more, in the packaged model's spelling."""
    model, rng = read(path), np.random.default_rng(seed)
    size, begin, end = len(model.words), model.words.index("<s>"), model.words.index("</s>")
    is_word_W = np.array([bool(_WORD.fullmatch(word)) for word in model.words])
    is_word_W[end] = True
    alone_W = np.cumsum(np.where(is_word_W, model.word_probabilities_W, 0.0))
    pairs, triples = model.pairs_P2, model.triples_T3
    after_one = _Table(pairs[:, 0], pairs[:, 1], model.pair_probabilities_P * is_word_W[pairs[:, 1]])
    contexts_T = triples[:, 0] * size + triples[:, 1]
    after_two = _Table(contexts_T, triples[:, 2], model.triple_probabilities_T * is_word_W[triples[:, 2]])
    spelled, found = _spelled(model.words), 0
    while found < num_words:
        words_NL = np.full((_AT_ONCE, _MAX_WORDS), end)
        rows, before, last = np.arange(_AT_ONCE), np.full(_AT_ONCE, -1), np.full(_AT_ONCE, begin)
        for place in range(_MAX_WORDS):
            chosen = np.searchsorted(alone_W, rng.random(len(rows)) * alone_W[-1], "right")
            for table, contexts in ((after_one, last), (after_two, np.where(before < 0, -1, before * size + last))):
                is_drawn, word = table.draw(contexts, rng)
                chosen = np.where(is_drawn, word, chosen)
            words_NL[rows, place] = chosen
            goes_on = chosen != end
            rows, before, last = rows[goes_on], last[goes_on], chosen[goes_on]
        for row in words_NL.tolist():
            words = [spelled[word] for word in row if word != end]
            if len(words) > 1 and found < num_words:
                found += len(words)
                yield sentences.sentence(" ".join(words).replace(" '", "'"))


def _spelled(words: list[str]) -> list[str]:
    """Return words with a capital where WordNet knows them as names only, and in I."""
    names, others = set[str](), set[str]()
    for name in ("noun", "verb", "adj", "adv"):
        for line in (sentences.WORDNET / f"data.{name}").read_text(encoding="utf-8").splitlines():
            if not line.startswith("  "):  # the licence
                _, _, _, count, *fields = line.split()
                for word in fields[: 2 * int(count, 16) : 2]:
                    (names if word.istitle() and len(word) >= _MIN_NAME else others).add(word)
    names = names - {word.title() for word in others} | {"I"}
    return [word[:1].upper() + word[1:] if word.split("'")[0].title() in names else word for word in words]
