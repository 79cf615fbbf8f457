"""A backoff n-gram language model over tokens, for shallow fusion in beam search.

A context (the last tokens) stores probabilities of some next tokens. Any other token backs off to the longest shorter
context, scaled so that the probabilities sum to one. `Tables` have each context as a state with a row of scores and a row of
next states, so that a step of beam search takes two lookups; `LazyTables` have the rows where a search comes by. That suits
small vocabularies, whose rows are short.

A file is gzip over safetensors: contexts as a tree, by length, and log-probabilities of one byte each.
scripts/default_model/ngrams.py counts texts and makes such models.

Shapes: C contexts of one length, A stored next tokens of all these contexts, S states, R rows of states, V tokens without
blank. N and M are those of one call. V is also the id of the start-of-text symbol.
"""

from __future__ import annotations

import gzip
import mmap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

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
# Rows of LazyTables, and their share, behind which all are made at once. 400 clips of 2 s need 7 % of the packaged model's.
_MANY_ROWS, _MANY_SHARE = 4096, 1 / 4
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
    """The expanded model. Its methods are those of decoder.FusedModel."""

    added_SV: torch.Tensor  # float16: added to a hypothesis's score by a token
    next_SV: torch.Tensor  # int32: state after the token
    start: int  # state at the start of a text

    def scores(self, state_N: torch.Tensor) -> torch.Tensor:
        return self.added_SV.index_select(0, state_N)

    def after(self, state_N: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
        return self.next_SV[state_N, label_N]

    def to(self, device: torch.device) -> Tables:
        return Tables(self.added_SV.to(device), self.next_SV.to(device), self.start)


class LazyTables:
    """Tables on the CPU whose rows are made when a search first asks for them: a short recording needs one in 300.

    States are ordered by length, then as in Contexts; the empty context is first.

    All at once is faster where many are needed, and for another device. Several threads may search at a time.
    """

    def __init__(self, model: LanguageModel) -> None:
        import torch

        lengths, unigrams_V, self._fusion = model.ngrams.lengths, model.ngrams.unigrams_V, model.fusion
        num_tokens, empty = len(unigrams_V), np.zeros(1, np.int64)  # the empty context
        firsts = np.cumsum([0, 1, *(len(contexts.last_C) for contexts in lengths)])  # state of each length; the end
        num_states, num_short = int(firsts[-1]), int(firsts[:3][-1])
        parents = [first + contexts.parents_C for first, contexts in zip(firsts, lengths, strict=False)]
        self._parent_S = np.concatenate([empty, *parents])
        self._last_S = np.concatenate([empty, *(contexts.last_C for contexts in lengths)])
        children_S = np.bincount(self._parent_S[1:], minlength=num_states)
        self._first_child_S = np.cumsum(np.concatenate([empty + 1, children_S]))
        self._first_entry_S = np.cumsum(np.concatenate([empty, empty, *(contexts.counts_C for contexts in lengths)]))
        self._tokens_A = np.concatenate([empty[:0], *(contexts.tokens_A for contexts in lengths)])
        self._logprobs_A = np.concatenate([unigrams_V[:0], *(contexts.logprobs_A for contexts in lengths)])
        starts = num_short > 1 and self._last_S[num_short - 1] == num_tokens
        self.start = num_short - 1 if starts else 0

        self._mutex, self.num_rows = Lock(), 0
        self._most_rows = max(_MANY_ROWS, int(num_states * _MANY_SHARE))
        self._row_S = np.full(num_states, -1)  # place of each state's row
        self._shorter_S = np.zeros(num_states, np.int64)  # state of the longest shorter context, of states with a row
        self._logs_RV = _table(num_states, num_tokens, torch.float16)  # longer contexts back off to them
        self._added_RV = _table(num_states, num_tokens, torch.float16)  # as in Tables
        self._next_RV = _table(num_states, num_tokens, torch.int32)
        self._store(empty, torch.from_numpy(unigrams_V)[None], torch.zeros(1, num_tokens, dtype=torch.int32))
        self._make_rows(np.arange(1, num_short))

    def scores(self, state_N: torch.Tensor) -> torch.Tensor:
        rows_N = self._rows(state_N)
        return self._added_RV.index_select(0, rows_N)

    def after(self, state_N: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
        rows_N = self._rows(state_N)
        return self._next_RV[rows_N, label_N]

    def to(self, device: torch.device) -> LazyTables | Tables:
        return self if device.type == "cpu" else self.filled().to(device)

    def filled(self) -> Tables:
        """Return the tables with all rows."""
        import torch

        self._make_all()
        rows_S = torch.from_numpy(self._row_S)
        return Tables(self._added_RV.index_select(0, rows_S), self._next_RV.index_select(0, rows_S), self.start)

    def _rows(self, state_N: torch.Tensor) -> torch.Tensor:
        """Return the places of the states' rows, which are made if they are missing."""
        import torch

        states_N = state_N.numpy()
        rows_N = self._row_S[states_N]
        if rows_N.min() < 0:
            with self._mutex:
                self._make(states_N)
                if self.num_rows > self._most_rows:
                    self._make_all()
            rows_N = self._row_S[states_N]
        return torch.from_numpy(rows_N)

    def _make_all(self) -> None:
        for first in range(0, len(self._row_S), _BLOCK):
            self._make(np.arange(first, min(first + _BLOCK, len(self._row_S))))
        self._logs_RV = self._logs_RV.new_empty(0, self._logs_RV.shape[1])

    def _make(self, state_N: Int64Array) -> None:
        """Make the rows of states that have none, after those that they need: of the parents and the shorter contexts."""
        state_N = np.unique(state_N[self._row_S[state_N] < 0])
        if len(state_N):
            parent_N = self._parent_S[state_N]
            self._make(parent_N)
            from_N = self._row_S[self._shorter_S[parent_N]]
            shorter_N = self._next_RV.numpy()[from_N, self._last_S[state_N]].astype(np.int64)
            self._make(shorter_N)
            self._shorter_S[state_N] = shorter_N
            self._make_rows(state_N[self._row_S[state_N] < 0])

    def _make_rows(self, state_N: Int64Array) -> None:
        """Make rows from those of the shorter contexts and the stored tokens."""
        import torch

        from_N = torch.from_numpy(self._row_S[self._shorter_S[state_N]])
        places_M, row_M = _ranges(self._first_entry_S, state_N)
        tokens_M, logprobs_M = self._tokens_A[places_M], self._logprobs_A[places_M]
        logs_NV = self._logs_RV.index_select(0, from_N).float()
        left_N = 1 - np.bincount(row_M, np.exp(logprobs_M.astype(np.float64)), len(logs_NV))
        logs_NV.numpy()[row_M, tokens_M] = -np.inf
        # The sum of the rest, and not 1 minus the stored ones, which would cancel to rounding error.
        shorter_left_N = logs_NV.exp().sum(1).numpy()
        least = MIN_BACKOFF_PROBABILITY
        logs_NV += torch.from_numpy(np.log(left_N.clip(least) / shorter_left_N.clip(np.float32(least))))[:, None]
        logs_NV.numpy()[row_M, tokens_M] = logprobs_M
        self._store(state_N, logs_NV, self._next_RV.index_select(0, from_N))

    def _store(self, state_N: Int64Array, logs_NV: torch.Tensor, next_NV: torch.Tensor) -> None:
        """Store rows of log-probabilities and, with the states that the own tokens lead to, of next states."""
        places_M, row_M = _ranges(self._first_child_S, state_N)
        is_token_M = self._last_S[places_M] < logs_NV.shape[1]
        places_M, row_M = places_M[is_token_M], row_M[is_token_M]
        next_NV.numpy()[row_M, self._last_S[places_M]] = places_M
        first, self.num_rows = self.num_rows, self.num_rows + len(state_N)
        new, logs_NV = slice(first, self.num_rows), logs_NV.half()
        self._logs_RV[new], self._next_RV[new] = logs_NV, next_NV
        self._added_RV[new] = logs_NV.mul_(self._fusion.weight).add_(self._fusion.bonus)
        self._row_S[state_N] = np.arange(first, self.num_rows)  # last: other threads read rows without the lock


def _table(num_rows: int, num_tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a table of zeros that takes memory as rows are written, and gives it back at its end, which malloc would not."""
    import torch

    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    pages = mmap.mmap(-1, num_rows * num_tokens * dtype.itemsize, **flags)
    return torch.frombuffer(pages, dtype=dtype).view(num_rows, num_tokens)


def _ranges(first_S: Int64Array, state_N: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the places from first_S[s] to first_S[s + 1] for each state s, one after the other, and the row in N of each."""
    first_N = first_S[state_N]
    count_N = first_S[state_N + 1] - first_N
    row_M = np.arange(len(state_N)).repeat(count_N)
    return np.arange(len(row_M)) + (first_N - count_N.cumsum() + count_N)[row_M], row_M


def serialize(model: LanguageModel) -> bytes:
    """Serialize a model to the content of a file."""
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
