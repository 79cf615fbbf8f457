"""Split a corpus into sentences to train on and sentences to validate with. Pure."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.training.corpus import Examples
from fastscribe.types import AnyArray, Float64Array


class Split(NamedTuple):
    training: Examples
    validation: Examples
    instead_of: int | None  # examples that the share gave, if these were too few or all; None: the share decided


def split_validation(examples: Examples, *, seed: int, share: float, min_count: int = 1) -> Split:
    """Split the examples so that no sentence is on both sides, whatever its speaker, case and punctuation.

    The side of a sentence depends on the sentence and the seed, so a corpus added later moves none.

    Args:
        share: share of the sentences to validate with, approximately.
        min_count: where the share gives fewer examples, or all, whole sentences are taken, as many examples as this or as the
            share says at most; if every sentence has more, the rarest one is taken.

    Raises:
        UsageError: there is one sentence only.
    """
    hashes = _sentence_hashes(examples, seed)
    distinct, sizes = np.unique(hashes, return_counts=True)
    if len(distinct) < 2:
        raise UsageError(
            f"{len(examples):,} recording{'s' * (len(examples) > 1)} of one sentence: too few to train on some and "
            "validate with others; give more, or others as data.validation"
        )
    is_chosen, instead_of = hashes < share, None
    if not min_count <= (by_share := int(is_chosen.sum())) < len(examples):
        most = min(max(min_count, round(share * len(examples))), len(examples) - 1)
        is_chosen, instead_of = np.isin(hashes, _whole_sentences(distinct, sizes, most)), by_share
    return Split(examples.take(~is_chosen), examples.take(is_chosen), instead_of)


def _whole_sentences(distinct: Float64Array, sizes: AnyArray, count: int) -> Float64Array:
    """Return sentences that have `count` examples in all at most, or the rarest one."""
    chosen = []
    for sentence, size in zip(distinct, sizes, strict=True):
        if size <= count:
            chosen.append(sentence)
            count -= size
    rarest: Float64Array = distinct[np.lexsort((distinct, sizes))[:1]]
    return np.array(chosen) if chosen else rarest


def _sentence_hashes(examples: Examples, seed: int) -> Float64Array:
    """Hash the sentence of each example to [0, 1), the same in every run."""
    fractions = (_hash_fraction(sentence_key(text), seed) for text in examples.iter_texts())
    return np.fromiter(fractions, float, len(examples))


def sentence_key(text: str) -> str:
    """The letters and digits of a text, which identify its sentence."""
    return "".join(char for char in text.casefold() if char.isalnum())


def _hash_fraction(key: str, seed: int) -> float:
    digest = hashlib.blake2b(key.encode(), digest_size=8, key=f"{seed}".encode()).digest()
    return int.from_bytes(digest, "big") / 2**64
