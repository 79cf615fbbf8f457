"""Estimate the n-gram model that beam search uses (context/language_model.py).

Probabilities follow Witten and Bell (1991): after a context seen c times before t different tokens, a token seen n times has
(n + t p) / (c + t), where p is its probability after the next shorter context. Entropy pruning (Seymore and Rosenfeld 1996)
keeps those that gain at least `least_gain` nats over all texts against the shorter context, because the file is small.

Contexts are counted from one sorted array: for each token of the texts, the tokens before it, the nearest in the highest bits.
So those of one context follow each other, within those of the next shorter one.

Shapes: M tokens of the texts, C contexts of one length, E pairs of a context and a token that follows it, K kept ones of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fastscribe.context.language_model import MIN_BACKOFF_PROBABILITY, Contexts, Ngrams
from fastscribe.types import AnyArray, BoolArray, Float64Array, Int64Array


def counted(texts: Iterable[Sequence[int]], num_tokens: int, longest: int, least_gain: float) -> Ngrams:
    """Estimate an n-gram model.

    Args:
        texts: token ids below `num_tokens`.
        longest: tokens of the longest context.
        least_gain: nats over all texts that a kept probability gains at least.

    Raises:
        ValueError: `longest` contexts of so many tokens do not fit in 63 bits.
    """
    bits = num_tokens.bit_length()
    if longest * bits > 63:
        raise ValueError(f"contexts of {longest} tokens out of {num_tokens:,}: at most {63 // bits}")
    keys_M, tokens_M = _sorted(texts, num_tokens, longest)
    unigrams_V = (np.bincount(tokens_M, minlength=num_tokens) + 1.0) / (len(tokens_M) + num_tokens)
    followers = _Followers(
        np.zeros(len(tokens_M), np.int64), np.arange(num_tokens), unigrams_V, np.empty(0, np.int64), np.empty(0, bool)
    )
    kept = []
    for length in range(1, longest + 1):
        contexts_M = keys_M >> (bits * (longest - length))
        is_counted_M, contexts_C = _frequent(contexts_M, bits, length, num_tokens, max(2.0, least_gain / 4))
        keys_M, tokens_M, before_M = keys_M[is_counted_M], tokens_M[is_counted_M], followers.contexts_M[is_counted_M]
        numbers_M = np.searchsorted(contexts_C, contexts_M[is_counted_M])
        followers = _followers(followers, before_M, numbers_M, tokens_M, num_tokens, least_gain)
        own_K, is_kept_E = followers.contexts_E[followers.is_kept_E], followers.is_kept_E
        shares_K = np.log(followers.shares_E[is_kept_E]).astype(np.float32)
        kept.append((_turned(contexts_C, bits, length)[own_K], followers.keys_E[is_kept_E] % num_tokens, shares_K))
    return Ngrams(np.log(unigrams_V).astype(np.float32), _by_length(kept, bits))


def _sorted(texts: Iterable[Sequence[int]], sign: int, longest: int) -> tuple[Int64Array, Int64Array]:
    """Return the longest context of each token, in ascending order, and the tokens. The sign begins a text."""
    sequences = [np.array([sign, *text], np.int64) for text in texts]
    tokens_M = np.concatenate([*sequences, np.array([sign])])
    padded = np.concatenate([np.full(longest, sign), tokens_M])
    keys_M = np.zeros(len(tokens_M), np.int64)
    for back in range(1, longest + 1):
        keys_M = (keys_M << sign.bit_length()) | padded[longest - back : longest - back + len(tokens_M)]
    is_token_M = tokens_M != sign
    keys_M, tokens_M = keys_M[is_token_M], tokens_M[is_token_M]
    order_M = np.argsort(keys_M, kind="stable")
    return keys_M[order_M], tokens_M[order_M]


def _frequent(
    contexts_M: Int64Array, bits: int, length: int, sign: int, least_count: float
) -> tuple[BoolArray, Int64Array]:
    """Return which tokens follow a context that is frequent enough to gain something, and those contexts."""
    contexts_C, counts_C = np.unique(contexts_M, return_counts=True)
    is_frequent_C = counts_C >= least_count
    for back in range(1, length):  # tokens before the sign belong to another text
        is_frequent_C &= (contexts_C >> (bits * back)) & ((1 << bits) - 1) != sign
    return np.repeat(is_frequent_C, counts_C), contexts_C[is_frequent_C]


@dataclass(frozen=True)
class _Followers:
    """The tokens that follow the contexts of one length."""

    contexts_M: Int64Array  # number of the context of each token that is still counted
    keys_E: Int64Array  # number of the context times V plus token, in ascending order
    shares_E: Float64Array  # probabilities of the pruned model
    contexts_E: Int64Array
    is_kept_E: BoolArray


def _followers(
    shorter: _Followers,
    before_M: Int64Array,
    contexts_M: Int64Array,
    tokens_M: Int64Array,
    num_tokens: int,
    least_gain: float,
) -> _Followers:
    """Count and prune the contexts of one length; `before_M` has the numbers of the next shorter ones."""
    keys_E, counts_E = np.unique(contexts_M * num_tokens + tokens_M, return_counts=True)
    contexts_E, tokens_E = keys_E // num_tokens, keys_E % num_tokens
    num_contexts = int(contexts_M[-1]) + 1 if len(contexts_M) else 0
    before_C = np.empty(num_contexts, np.int64)
    before_C[contexts_M] = before_M
    before_E = shorter.shares_E[np.searchsorted(shorter.keys_E, before_C[contexts_E] * num_tokens + tokens_E)]
    total_E = np.bincount(contexts_E, counts_E, num_contexts)[contexts_E]
    different_E = np.bincount(contexts_E, minlength=num_contexts)[contexts_E]
    shares_E = (counts_E + different_E * before_E) / (total_E + different_E)
    gains_E = counts_E * np.log(shares_E / before_E)
    losses_E = total_E * before_E * np.log(before_E / shares_E)  # tokens that are rarer than after the shorter context
    is_kept_E = np.maximum(gains_E, losses_E) >= least_gain
    kept_E = contexts_E[is_kept_E]
    left_C = 1 - np.bincount(kept_E, shares_E[is_kept_E], num_contexts)
    shorter_left_C = 1 - np.bincount(kept_E, before_E[is_kept_E], num_contexts)
    scale_C = np.maximum(left_C, MIN_BACKOFF_PROBABILITY) / np.maximum(shorter_left_C, MIN_BACKOFF_PROBABILITY)
    shares_E = np.where(is_kept_E, shares_E, before_E * scale_C[contexts_E])
    return _Followers(contexts_M, keys_E, shares_E, contexts_E, is_kept_E)


def _turned(contexts_C: Int64Array, bits: int, length: int) -> Int64Array:
    """Return contexts with their first token in the highest bits, in place of the nearest."""
    turned_C = np.zeros_like(contexts_C)
    for position in range(length):
        turned_C = (turned_C << bits) | ((contexts_C >> (bits * position)) & ((1 << bits) - 1))
    return turned_C


def _by_length(kept: Sequence[tuple[Int64Array, Int64Array, AnyArray]], bits: int) -> list[Contexts]:
    """Return the contexts that keep a token, and their beginnings."""
    contexts: list[Int64Array] = []
    for own_K, _, _ in reversed(kept):
        beginnings = contexts[-1] >> bits if contexts else np.empty(0, np.int64)
        contexts.append(np.unique(np.concatenate([own_K, beginnings])))
    lengths: list[Contexts] = []
    before_C: Int64Array = np.zeros(1, np.int64)
    for (own_K, tokens_K, logprobs_K), own_C in zip(kept, reversed(contexts), strict=True):
        if not len(own_C):
            break
        order_K = np.lexsort((tokens_K, own_K))
        parents_C, last_C = np.searchsorted(before_C, own_C >> bits), own_C & ((1 << bits) - 1)
        counts_C = np.bincount(np.searchsorted(own_C, own_K), minlength=len(own_C))
        lengths.append(Contexts(parents_C, last_C, counts_C, tokens_K[order_K], logprobs_K[order_K]))
        before_C = own_C
    return lengths
