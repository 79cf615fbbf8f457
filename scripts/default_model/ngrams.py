"""Estimate the n-gram model that beam search uses (text/language_model.py).

Probabilities follow Witten and Bell (1991): after a context seen c times before t different tokens, a token seen n times has
(n + t p) / (c + t), where p is its probability after the next shorter context. Entropy pruning (Seymore and Rosenfeld 1996)
keeps those that gain at least `least_gain` nats over all texts against the shorter context, because the file is small.

Contexts are counted from one sorted array: for each token of the texts, the tokens before it, the nearest in the highest bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fastscribe.text.language_model import MIN_BACKOFF_PROBABILITY, Contexts, Ngrams
from fastscribe.types import Float64Array, Int64Array

Context = tuple[int, ...]


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
    sign = num_tokens
    sequences = [np.array([sign, *text], np.int64) for text in texts]
    tokens_M = np.concatenate([*sequences, np.array([sign])])
    padded = np.concatenate([np.full(longest, sign), tokens_M])
    keys_M = np.zeros(len(tokens_M), np.int64)
    for back in range(1, longest + 1):
        keys_M = (keys_M << bits) | padded[longest - back : longest - back + len(tokens_M)]
    order_M = np.argsort(keys_M, kind="stable")
    is_token_M = tokens_M[order_M] != sign
    keys_M, tokens_M = keys_M[order_M][is_token_M], tokens_M[order_M][is_token_M]
    unigrams_V = (np.bincount(tokens_M, minlength=num_tokens) + 1.0) / (len(tokens_M) + num_tokens)
    kept: dict[Context, dict[int, float]] = {}
    rows: dict[Context, Float64Array] = {(): unigrams_V}
    for length in range(1, longest + 1):
        found = _contexts(keys_M >> (bits * (longest - length)), bits, length, sign, least_gain)
        for context, begin, end in found:
            counts_V = np.bincount(tokens_M[begin:end], minlength=num_tokens)
            own = _gaining_entries(counts_V, _row(context[1:], kept, rows), least_gain)
            if own:
                kept[context] = own
    for context in list(kept):
        for end in range(1, len(context)):
            kept.setdefault(context[:end], {})
    return Ngrams(np.log(unigrams_V).astype(np.float32), _by_length(kept))


def _contexts(
    keys_M: Int64Array, bits: int, length: int, sign: int, least_gain: float
) -> Iterable[tuple[Context, int, int]]:
    """Each context that is frequent enough to gain `least_gain`, and its range in the sorted array."""
    found, begins, counts = np.unique(keys_M, return_index=True, return_counts=True)
    is_frequent = counts >= max(2.0, least_gain / 4)
    for key, begin, count in zip(*(values[is_frequent].tolist() for values in (found, begins, counts)), strict=True):
        context = tuple((key >> (bits * position)) & ((1 << bits) - 1) for position in range(length))
        if sign not in context[1:]:  # tokens before the sign belong to another text
            yield context, begin, begin + count


def _gaining_entries(counts_V: Int64Array, shorter_V: Float64Array, least_gain: float) -> dict[int, float]:
    different = np.count_nonzero(counts_V)
    share_V = (counts_V + different * shorter_V) / (counts_V.sum() + different)
    gain_V = counts_V * np.log(share_V / shorter_V)
    loss_V = (
        counts_V.sum() * shorter_V * np.log(shorter_V / share_V)
    )  # tokens that are rarer than after the shorter context
    kept = np.flatnonzero(np.maximum(gain_V, np.where(counts_V > 0, loss_V, 0.0)) >= least_gain)
    return dict(zip(kept.tolist(), share_V[kept].tolist(), strict=True))


def _row(context: Context, kept: dict[Context, dict[int, float]], rows: dict[Context, Float64Array]) -> Float64Array:
    """Probabilities [V] after a context, from the entries kept so far for it or shorter ones."""
    if context in rows:
        return rows[context]
    shorter_V = _row(context[1:], kept, rows)
    own = kept.get(context)
    if not own:
        return shorter_V
    tokens = list(own)
    left, shorter_left = 1 - sum(own.values()), 1 - shorter_V[tokens].sum()
    row_V: Float64Array = shorter_V * (max(left, MIN_BACKOFF_PROBABILITY) / max(shorter_left, MIN_BACKOFF_PROBABILITY))
    row_V[tokens] = list(own.values())
    rows[context] = row_V
    return row_V


def _by_length(kept: dict[Context, dict[int, float]]) -> list[Contexts]:
    lengths: list[Contexts] = []
    parents: dict[Context, int] = {(): 0}
    for length in range(1, 1 + max(map(len, kept), default=0)):
        contexts = sorted(context for context in kept if len(context) == length)
        own = [kept[context] for context in contexts]
        shares_A = np.array([share for tokens in own for share in tokens.values()])
        lengths.append(
            Contexts(
                np.array([parents[context[:-1]] for context in contexts], np.int64),
                np.array([context[-1] for context in contexts], np.int64),
                np.array([len(tokens) for tokens in own], np.int64),
                np.array([token for tokens in own for token in tokens], np.int64),
                np.log(shares_A).astype(np.float32),
            )
        )
        parents = {context: number for number, context in enumerate(contexts)}
    return lengths
