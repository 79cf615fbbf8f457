"""A backoff n-gram model over a model's tokens, which tells beam search what is likely to be written.

Some contexts (the last tokens written) have tokens with probabilities of their own. Any other token has the probability that
it has after the longest shorter context there is, scaled so that all add up to one. Expanded, every context is a state with
a row of scores and a row of states that follow, so that what a batch of hypotheses needs in a turn is two look-ups; that is
for small vocabularies, whose rows are short.

A file is gzip over safetensors: contexts as a tree, by their length, and logarithms in a byte each.
training/ngrams.py counts texts and makes such models.

Shapes: C contexts of one length, A tokens with probabilities of their own in all of these, S states, V tokens without blank;
V is also the number of the sign that stands before a text.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fastscribe.errors import CheckpointError
from fastscribe.types import AnyArray, Float32Array, Int64Array

if TYPE_CHECKING:
    import torch

FILE = "language_model.safetensors.gz"
MAX_BYTES = 1 << 28  # of a file, and of what it unpacks to
MAX_ENTRIES = 1 << 26  # of a table: 256 MB
MAX_LENGTHS = 63  # of contexts
MAX_NGRAMS = 1 << 24
MIN_BEAM, MAX_BEAM = 2, 64  # of one, decoding would heed no language model
MAX_WEIGHT, MAX_BONUS = 10.0, 1000.0
_BLOCK = 4096
_STEPS_A_NAT = 16  # of a stored logarithm
_MIN_UNIGRAM = -50.0  # as a logarithm
LEAST = 1e-6  # probability that a context leaves to the shorter one


@dataclass(frozen=True)
class Contexts:
    """Those of one length, in ascending order: each is one of the length before and a token more."""

    parents_C: Int64Array
    last_C: Int64Array
    counts_C: Int64Array  # of tokens_A that are a context's
    tokens_A: Int64Array
    logprobs_A: Float32Array  # float32


@dataclass(frozen=True)
class Ngrams:
    unigrams_V: Float32Array  # float32 logarithms
    lengths: Sequence[Contexts]  # the first has contexts of one token

    @property
    def count(self) -> int:
        """Unigrams aside."""
        return sum(len(contexts.tokens_A) for contexts in self.lengths)


@dataclass(frozen=True)
class Fusion:
    """How much beam search heeds it: log p(text given sound) + weight * log p(text) + bonus * tokens."""

    weight: float
    bonus: float
    beam: int  # hypotheses, unless the user says how many


@dataclass(frozen=True)
class LanguageModel:
    """What a file holds."""

    ngrams: Ngrams
    fusion: Fusion


@dataclass(frozen=True)
class Tables:
    added_SV: torch.Tensor  # float16: what a token adds to a hypothesis's score
    next_SV: torch.Tensor  # int32: the state after it
    start: int  # the state before a text

    def on(self, device: torch.device) -> Tables:
        return Tables(self.added_SV.to(device), self.next_SV.to(device), self.start)


def expanded(model: LanguageModel) -> Tables:
    """States are in the order of their length, then of Contexts; the first is the empty context."""
    import torch

    ngrams, fusion = model.ngrams, model.fusion
    num_tokens = len(ngrams.unigrams_V)
    num_states = 1 + sum(len(contexts.last_C) for contexts in ngrams.lengths)
    logs_SV = torch.empty(num_states, num_tokens, dtype=torch.float16)
    next_SV = torch.zeros(num_states, num_tokens, dtype=torch.int32)
    shorter_S = torch.zeros(num_states, dtype=torch.int32)  # the longest other context that a state's ends in
    logs_SV[0] = torch.from_numpy(ngrams.unigrams_V)
    start, before, end = 0, 0, 1  # of the states of the length before
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
            logs_SV[states] = _logs(logs_SV.index_select(0, shorter_S[states]).float(), contexts, block, own)
    return Tables(logs_SV.mul_(fusion.weight).add_(fusion.bonus), next_SV, start)


def _blocks(contexts: Contexts) -> Iterator[tuple[slice, slice]]:
    """Of a length, some contexts at a time, for the memory's sake, and what of tokens_A is theirs."""
    firsts = np.concatenate([[0], np.cumsum(contexts.counts_C)])
    for begin in range(0, len(contexts.counts_C), _BLOCK):
        end = min(begin + _BLOCK, len(contexts.counts_C))
        yield slice(begin, end), slice(int(firsts[begin]), int(firsts[end]))


def _logs(logs_CV: torch.Tensor, contexts: Contexts, block: slice, own: slice) -> torch.Tensor:
    """Of a block of contexts, where `logs_CV`, which it overwrites, are those of the shorter ones."""
    import torch

    tokens_A, logprobs_A = torch.from_numpy(contexts.tokens_A[own]), torch.from_numpy(contexts.logprobs_A[own])
    row_A = torch.arange(len(logs_CV)).repeat_interleave(torch.from_numpy(contexts.counts_C[block]))
    left_C = 1 - torch.bincount(row_A, logprobs_A.double().exp(), len(logs_CV))
    logs_CV[row_A, tokens_A] = -torch.inf
    # Not 1 less the others' sum, of which little would be left that is no rounding.
    shorter_left_C = logs_CV.exp().sum(1)
    logs_CV += (left_C.clamp(LEAST) / shorter_left_C.clamp(LEAST)).log()[:, None]
    logs_CV[row_A, tokens_A] = logprobs_A
    return logs_CV


def packed(model: LanguageModel) -> bytes:
    """A file's content."""
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
        tensors[f"logprobs.{length}"] = np.rint(-contexts.logprobs_A * _STEPS_A_NAT).clip(0, 255).astype(np.uint8)
        num_parents = len(contexts.last_C)
    return gzip.compress(save(tensors), mtime=0)


def parse(content: bytes, path: Path, num_tokens: int) -> LanguageModel:
    """What `packed` made for so many tokens; `path` is for the message. Raises CheckpointError for anything else."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(_unpacked(content))
        ngrams = _ngrams(tensors, num_tokens)
        weight, bonus, beam = tensors["fusion"].tolist()
        if not (0 <= weight <= MAX_WEIGHT and abs(bonus) <= MAX_BONUS and beam in range(MIN_BEAM, MAX_BEAM + 1)):
            raise ValueError(f"a weight of {weight}, a bonus of {bonus}, a beam of {beam}")
        return LanguageModel(ngrams, Fusion(weight, bonus, int(beam)))
    except (SafetensorError, zlib.error, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(path, f"not a language model for this vocabulary: {error}") from error


def _unpacked(content: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # gzip's header and checksum
    unpacked = unpacker.decompress(content, MAX_BYTES)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("not one whole gzip file of a size that makes sense")
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
        shown = f"{num_contexts:,} contexts of up to {len(stored)} of {num_tokens:,} tokens, {num_ngrams:,} n-grams"
        raise ValueError(f"{shown}: more than make sense")
    lengths: list[Contexts] = []
    for length in stored:
        num_parents = len(lengths[-1].last_C) if lengths else 1
        lengths.append(_contexts(tensors, length, num_parents, num_tokens))
    return Ngrams(unigrams_V, lengths)


def _contexts(tensors: Mapping[str, AnyArray], length: int, num_parents: int, num_tokens: int) -> Contexts:
    children, last_C, counts_C, tokens_A, steps_A = (
        _numbers(tensors[f"{name}.{length}"], most)
        for name, most in (
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
    return Contexts(parents_C, last_C, counts_C, tokens_A, -steps_A.astype(np.float32) / np.float32(_STEPS_A_NAT))


def _numbers(values: AnyArray, most: int) -> Int64Array:
    """[N] integers from 0 to `most`."""
    if (
        values.ndim != 1
        or values.dtype.kind not in "iu"
        or (len(values) and not 0 <= values.min() <= values.max() <= most)
    ):
        raise ValueError(f"{values.dtype} numbers that should be from 0 to {most:,}, one after the other")
    return values.astype(np.int64)
