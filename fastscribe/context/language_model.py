"""A backoff n-gram language model over tokens, for shallow fusion in beam search.

A context (the last tokens) stores probabilities of some next tokens. Any other token backs off to the longest shorter
context, scaled so that the probabilities sum to one. `expand` makes each context a state with a row of scores and a row of
next states, so that a step of beam search takes two lookups. That suits small vocabularies, whose rows are short.

A file is gzip over safetensors: contexts as a tree, by length, and log-probabilities of one byte each.
scripts/default_model/ngrams.py counts texts and makes such models.

Shapes: C contexts of one length, A stored next tokens of all these contexts, S states, V tokens without blank. V is also the
id of the start-of-text symbol.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fastscribe.errors import CheckpointError
from fastscribe.types import AnyArray, Float32Array, Int64Array

if TYPE_CHECKING:
    import torch

MAX_BYTES = 1 << 28  # of a file, and of its decompressed content
MAX_ENTRIES = 1 << 26  # of a table: 256 MB
MAX_LENGTHS = 63  # of contexts
MAX_NGRAMS = 1 << 24
MIN_BEAM, MAX_BEAM = 2, 64  # greedy decoding (a beam of one) uses no language model
MAX_WEIGHT, MAX_BONUS = 10.0, 1000.0
_BLOCK = 4096
_STEPS_PER_NAT = 16  # resolution of stored log-probabilities
_MIN_UNIGRAM = -50.0  # log-probability
MIN_BACKOFF_PROBABILITY = 1e-6  # minimum probability that a context leaves to the shorter one


@dataclass(frozen=True)
class Contexts:
    """All contexts of one length, in ascending order. Each extends its parent, which is one shorter, by a token."""

    parents_C: Int64Array
    last_C: Int64Array
    counts_C: Int64Array  # number of stored tokens of each context
    tokens_A: Int64Array
    logprobs_A: Float32Array


@dataclass(frozen=True)
class Ngrams:
    unigrams_V: Float32Array  # log-probabilities
    lengths: Sequence[Contexts]  # the first has contexts of one token

    @property
    def count(self) -> int:
        """Number of n-grams without unigrams."""
        return sum(len(contexts.tokens_A) for contexts in self.lengths)


@dataclass(frozen=True)
class Fusion:
    """Shallow fusion: the score is log p(text given audio) + weight * log p(text) + bonus * tokens."""

    weight: float
    bonus: float
    beam: int  # default number of hypotheses


@dataclass(frozen=True)
class LanguageModel:
    """The content of a file."""

    ngrams: Ngrams
    fusion: Fusion

    def weighted(self, weight: float) -> LanguageModel:
        """Return the model with another weight, which also scales the bonus of a token."""
        bonus = self.fusion.bonus * weight / self.fusion.weight if self.fusion.weight else 0.0
        return replace(self, fusion=replace(self.fusion, weight=weight, bonus=bonus))


@dataclass(frozen=True)
class Tables:
    """The expanded model. Its methods are those of scorer.FusedModel."""

    added_SV: torch.Tensor  # float16: added to a hypothesis's score by a token
    next_SV: torch.Tensor  # int32: state after the token
    start: int  # state at the start of a text

    def scores(self, state_N: torch.Tensor) -> torch.Tensor:
        return self.added_SV.index_select(0, state_N)

    def after(self, state_N: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
        return self.next_SV[state_N, label_N]

    def final(self, state_N: torch.Tensor) -> torch.Tensor | None:
        return None

    def to(self, device: torch.device) -> Tables:
        return Tables(self.added_SV.to(device), self.next_SV.to(device), self.start)


def expand(model: LanguageModel) -> Tables:
    """Expand a model to tables on the CPU. States are ordered by length, then as in Contexts; the empty context is first."""
    import torch

    ngrams, fusion = model.ngrams, model.fusion
    num_tokens = len(ngrams.unigrams_V)
    num_states = 1 + sum(len(contexts.last_C) for contexts in ngrams.lengths)
    logs_SV = torch.empty(num_states, num_tokens, dtype=torch.float16)
    next_SV = torch.zeros(num_states, num_tokens, dtype=torch.int32)
    shorter_S = torch.zeros(num_states, dtype=torch.int32)  # state of the longest shorter context
    logs_SV[0] = torch.from_numpy(ngrams.unigrams_V)
    start, before, end = 0, 0, 1  # states of the previous length: before to end
    for contexts in ngrams.lengths:
        parents_C, last_C = before + torch.from_numpy(contexts.parents_C), torch.from_numpy(contexts.last_C)
        is_token_C = last_C < num_tokens
        numbers_C = torch.arange(end, end + len(last_C), dtype=torch.int32)
        before, end = end, end + len(last_C)
        if before > 1:
            shorter_S[before:end] = next_SV[shorter_S[parents_C], last_C]
        elif not bool(is_token_C[-1:].all()):
            start = end - 1
        next_SV[parents_C[is_token_C], last_C[is_token_C]] = numbers_C[is_token_C]
        for block, own in _blocks(contexts):
            states = slice(before + block.start, before + block.stop)
            next_SV[states] = next_SV.index_select(0, shorter_S[states])
            logs_SV[states] = _log_probabilities(
                logs_SV.index_select(0, shorter_S[states]).float(), contexts, block, own
            )
    return Tables(logs_SV.mul_(fusion.weight).add_(fusion.bonus), next_SV, start)


def _blocks(contexts: Contexts) -> Iterator[tuple[slice, slice]]:
    """Split contexts of one length into blocks, to bound memory: slices of C and of A."""
    firsts = np.concatenate([[0], np.cumsum(contexts.counts_C)])
    for begin in range(0, len(contexts.counts_C), _BLOCK):
        end = min(begin + _BLOCK, len(contexts.counts_C))
        yield slice(begin, end), slice(int(firsts[begin]), int(firsts[end]))


def _log_probabilities(logs_CV: torch.Tensor, contexts: Contexts, block: slice, own: slice) -> torch.Tensor:
    """Return the log-probabilities of a block of contexts; overwrites `logs_CV`, those of the shorter contexts."""
    import torch

    tokens_A, logprobs_A = torch.from_numpy(contexts.tokens_A[own]), torch.from_numpy(contexts.logprobs_A[own])
    row_A = torch.arange(len(logs_CV)).repeat_interleave(torch.from_numpy(contexts.counts_C[block]))
    left_C = 1 - torch.bincount(row_A, logprobs_A.double().exp(), len(logs_CV))
    logs_CV[row_A, tokens_A] = -torch.inf
    # The sum of the rest, and not 1 minus the stored ones, which would cancel to rounding error.
    shorter_left_C = logs_CV.exp().sum(1)
    logs_CV += (left_C.clamp(MIN_BACKOFF_PROBABILITY) / shorter_left_C.clamp(MIN_BACKOFF_PROBABILITY)).log()[:, None]
    logs_CV[row_A, tokens_A] = logprobs_A
    return logs_CV


def serialize(model: LanguageModel) -> bytes:
    """Serialize a model to the content of a file."""
    from safetensors.numpy import save

    ngrams, fusion = model.ngrams, model.fusion
    small = np.min_scalar_type(len(ngrams.unigrams_V) + 1)
    tensors: dict[str, AnyArray] = {
        "unigrams": ngrams.unigrams_V.astype(np.float32),
        "fusion": np.array([fusion.weight, fusion.bonus, fusion.beam], np.float64),
    }
    num_parents = 1
    for length, contexts in enumerate(ngrams.lengths, start=1):
        tensors[f"children.{length}"] = np.bincount(contexts.parents_C, minlength=num_parents).astype(small)
        tensors[f"last.{length}"] = contexts.last_C.astype(small)
        tensors[f"counts.{length}"] = contexts.counts_C.astype(small)
        tensors[f"tokens.{length}"] = contexts.tokens_A.astype(small)
        tensors[f"logprobs.{length}"] = np.rint(-contexts.logprobs_A * _STEPS_PER_NAT).clip(0, 255).astype(np.uint8)
        num_parents = len(contexts.last_C)
    return gzip.compress(save(tensors), mtime=0)


def parse(content: bytes, path: Path, num_tokens: int) -> LanguageModel:
    """Parse the content of a file.

    Args:
        content: bytes of the file.
        path: the file, for messages.
        num_tokens: vocabulary size without blank.

    Returns:
        The model.

    Raises:
        CheckpointError: the content is damaged, too large or made for another vocabulary.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(_decompress(content))
        ngrams = _ngrams(tensors, num_tokens)
        weight, bonus, beam = tensors["fusion"].tolist()
        if not (0 <= weight <= MAX_WEIGHT and abs(bonus) <= MAX_BONUS and beam in range(MIN_BEAM, MAX_BEAM + 1)):
            raise ValueError(f"a weight of {weight}, a bonus of {bonus}, a beam of {beam}")
        return LanguageModel(ngrams, Fusion(weight, bonus, int(beam)))
    except (SafetensorError, zlib.error, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(path, f"not a language model for this vocabulary: {error}") from error


def _decompress(content: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # gzip's header and checksum
    unpacked = unpacker.decompress(content, MAX_BYTES)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("not a complete gzip file, or too large")
    return unpacked


def _ngrams(tensors: Mapping[str, AnyArray], num_tokens: int) -> Ngrams:
    unigrams_V = tensors["unigrams"]
    if unigrams_V.dtype != np.float32:
        raise ValueError(f"{unigrams_V.dtype} unigrams, where they should be float32")
    if unigrams_V.shape != (num_tokens,):
        raise ValueError(f"for {unigrams_V.size:,} tokens, where the model has {num_tokens:,}")
    if not ((unigrams_V >= _MIN_UNIGRAM) & (unigrams_V <= 0)).all():
        raise ValueError(f"unigrams that are not all from {_MIN_UNIGRAM:g} to 0")
    stored = list(takewhile(lambda length: f"last.{length}" in tensors, range(1, MAX_LENGTHS + 2)))
    num_contexts, num_ngrams = (sum(tensors[f"{name}.{n}"].size for n in stored) for name in ("last", "tokens"))
    if len(stored) > MAX_LENGTHS or (1 + num_contexts) * num_tokens > MAX_ENTRIES or num_ngrams > MAX_NGRAMS:
        size = f"{num_contexts:,} contexts of up to {len(stored)} of {num_tokens:,} tokens, {num_ngrams:,} n-grams"
        raise ValueError(f"{size}: too large")
    lengths: list[Contexts] = []
    for length in stored:
        num_parents = len(lengths[-1].last_C) if lengths else 1
        lengths.append(_contexts(tensors, length, num_parents, num_tokens))
    return Ngrams(unigrams_V, lengths)


def _contexts(tensors: Mapping[str, AnyArray], length: int, num_parents: int, num_tokens: int) -> Contexts:
    children, last_C, counts_C, tokens_A, steps_A = (
        _as_int64(tensors[f"{name}.{length}"], maximum)
        for name, maximum in (
            ("children", num_tokens + 1),
            ("last", num_tokens if length == 1 else num_tokens - 1),
            ("counts", num_tokens),
            ("tokens", num_tokens - 1),
            ("logprobs", 255),
        )
    )
    if not (len(children) == num_parents and children.sum() == len(last_C) == len(counts_C)):
        raise ValueError(f"contexts of {length} tokens that do not fit each other")
    if not counts_C.sum() == len(tokens_A) == len(steps_A):
        raise ValueError(f"tokens after contexts of {length} that do not fit these")
    parents_C = np.repeat(np.arange(num_parents), children)
    if (np.diff(parents_C * (num_tokens + 1) + last_C) <= 0).any():
        raise ValueError(f"contexts of {length} tokens that are not in order")
    return Contexts(parents_C, last_C, counts_C, tokens_A, -steps_A.astype(np.float32) / np.float32(_STEPS_PER_NAT))


def _as_int64(values: AnyArray, maximum: int) -> Int64Array:
    """Return [N] integers as int64. Raises ValueError unless all are from 0 to `maximum`."""
    if (
        values.ndim != 1
        or values.dtype.kind not in "iu"
        or (len(values) and not 0 <= values.min() <= values.max() <= maximum)
    ):
        raise ValueError(f"{values.dtype} numbers that should be from 0 to {maximum:,}, one after the other")
    return values.astype(np.int64)
