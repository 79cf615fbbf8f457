"""Split a corpus into sentences to train on and sentences to validate with. Pure."""

from __future__ import annotations

import hashlib

import numpy as np

from fastscribe.errors import UsageError
from fastscribe.training.corpus import Examples
from fastscribe.types import AnyArray, Float64Array


def count_by_share(examples: Examples, *, seed: int, share: float) -> int:
    """Return how many examples `split_validation` would take by that share; for few sentences often none."""
    return int((_sentence_hashes(examples, seed) < share).sum())


def has_two_sentences(examples: Examples) -> bool:
    """Return True if `split_validation` can leave examples on both sides."""
    first = sentence_key(examples.text(0))
    return any(sentence_key(text) != first for text in examples.iter_texts())


def split_validation(
    examples: Examples, *, seed: int, share: float | None = None, count: int | None = None
) -> tuple[Examples, Examples]:
    """Split the examples so that no sentence is on both sides, whatever its speaker, case and punctuation.

    The side of a sentence depends on the sentence and the seed. With `share`, a corpus added later moves none.

    Args:
        share: share of the sentences, approximately. Give this or `count`.
        count: maximum number of examples, as whole sentences; if every sentence has more, the rarest one is taken.

    Returns:
        (training, validation).

    Raises:
        UsageError: either side would be empty.
    """
    if (share is None) == (count is None):
        raise UsageError("a validation set needs either a share or a count")
    hashes = _sentence_hashes(examples, seed)
    is_chosen = hashes < (share or 0) if count is None else _whole_sentences(hashes, count)
    if is_chosen.all() or not is_chosen.any():
        requested = f"share {share}" if count is None else f"count {count}"
        raise UsageError(f"validation {requested} of {len(examples)} examples leaves none on one side")
    return examples.take(~is_chosen), examples.take(is_chosen)


def _whole_sentences(hashes: Float64Array, count: int) -> AnyArray:
    """Return True for the examples of whole sentences, `count` in all at most."""
    distinct, sizes = np.unique(hashes, return_counts=True)
    if count < 1:
        return np.zeros(len(hashes), bool)
    chosen = []
    for index in range(len(distinct)):
        if sizes[index] <= count:
            chosen.append(distinct[index])
            count -= sizes[index]
        if not count:
            break
    rarest = distinct[np.lexsort((distinct, sizes))[:1]]
    return np.isin(hashes, chosen if chosen else rarest)


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
