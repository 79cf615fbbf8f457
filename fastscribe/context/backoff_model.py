"""The n-gram model that `--lm` names: an ARPA file, whose units are the recognizer's tokens.

How they are written is seen in the file:

- spelled as the tokenizer spells them, such as "▁the";
- as characters: NeMo's training script for KenLM writes token 5 as chr(105), because a file of characters is small.

All other files have words, and are refused.

Shapes: V tokens without blank, U units of the graph.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from fastscribe._system.file_kinds import safe_open
from fastscribe.context import language_model
from fastscribe.context.arpa import BEGIN, END, LOG_ZERO, UNKNOWN, Arpa, is_arpa, read_arpa
from fastscribe.context.backoff_graph import BackoffGraph, NgramsOfLength, build_graph
from fastscribe.context.language_model import Fusion, LanguageModel
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.text.tokenizer import WORD_MARK, Tokenizer

_BEAM = 8  # default number of hypotheses
# Chosen on one half of the held sentences (docs/log.md, 2026-11-24).
_WEIGHT = 0.2
_TOKEN_BONUS = 1.2  # natural-log units for each token, times the weight
_NEMO_OFFSET = 100  # NeMo's DEFAULT_TOKEN_OFFSET
_MIN_SHARE = 0.75  # a vocabulary's last tokens are single letters, which most texts have
_GZIP, _KENLM = b"\x1f\x8b", b"mmap lm http://kheafield.com/code"
_HEAD_BYTES = 1 << 16
_SPECIAL = (BEGIN, END, UNKNOWN)


@dataclass(frozen=True)
class BackoffModel:
    """A model for shallow fusion whose tables are sparse. context/fusion.py puts it on a device."""

    graph: BackoffGraph  # its units are the tokens, and one more, which begins a text
    start: int  # state at the beginning of a text
    fusion: Fusion


def read_language_model(
    path: str, tokenizer: Tokenizer, weight: float | None = None, say: Callable[[str], None] = lambda line: None
) -> LanguageModel | BackoffModel:
    """Read what `--lm` names.

    Args:
        path: An ARPA file, also compressed by gzip, or fastscribe's own language_model.safetensors.gz.
        tokenizer: The recognizer's.
        weight: Factor of the log-probabilities; None: the file's own, or a default.
        say: Called with a line if the file may be made for another model.

    Raises:
        UsageError: It cannot be read, or is none of these, or was made for another vocabulary.
    """
    where = f"--lm {path}"
    try:
        with safe_open(Path(path)) as file:
            is_packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            with cast(IO[bytes], gzip.open(file) if is_packed else file) as text:
                head = text.read(_HEAD_BYTES)
                text.seek(0)
                if head.startswith(_KENLM):
                    raise UsageError(f"{where}: a binary file of KenLM: give the ARPA file that it was made from")
                if path.endswith(".nemo"):
                    raise UsageError(
                        f"{where}: NeMo's archive of a language model: give the ARPA file that it was made from"
                    )
                if is_packed and not is_arpa(head):
                    file.seek(0)
                    return _own(file, path, len(tokenizer.pieces), weight)
                return _of_tokens(read_arpa(text, where), tokenizer, weight, where, say)
    except (OSError, EOFError, zlib.error) as error:
        problem = getattr(error, "strerror", None) or f"cannot be read: {error}"
        raise UsageError(f"{where}: {problem}") from error
    except MemoryError:
        raise UsageError(f"{where}: needs more memory than there is") from None


def _own(file: IO[bytes], path: str, num_tokens: int, weight: float | None) -> LanguageModel:
    content = file.read(language_model.MAX_BYTES + 1)
    try:
        if len(content) > language_model.MAX_BYTES:
            raise CheckpointError(path, "too large")
        model = language_model.parse(content, Path(path), num_tokens)
        return model if weight is None else model.weighted(weight)
    except CheckpointError as error:
        raise UsageError(f"--lm {error}") from error


def _special(unit: str) -> str | None:
    return unit.lower() if unit.lower() in _SPECIAL else None


def _token_rule(units: list[str], tokenizer: Tokenizer, where: str, say: Callable[[str], None]) -> Callable[[str], int]:
    """Return what tells the token of a unit."""
    if not units:
        raise UsageError(f"{where}: it has no tokens")
    pieces = {piece: token for token, piece in reversed(list(enumerate(tokenizer.pieces)))}
    num_pieces = sum(unit in pieces for unit in units)
    is_marked = any(WORD_MARK in unit for unit in units)
    if num_pieces == len(units) and (is_marked or tokenizer.kind == "character"):
        return pieces.__getitem__
    if is_marked:
        other = next(unit for unit in units if unit not in pieces)
        raise UsageError(
            f"{where}: made for the tokens of another model: {num_pieces:,} of its {len(units):,} units are tokens of this "
            f"one, but not {other!r}"
        )
    if all(len(unit) == 1 and ord(unit) >= _NEMO_OFFSET for unit in units):
        largest = max(map(ord, units)) - _NEMO_OFFSET
        if largest < len(tokenizer.pieces):
            if largest + 1 < _MIN_SHARE * len(tokenizer.pieces):
                has = f"its last token is {largest:,}, where this model has {len(tokenizer.pieces):,}"
                say(f"{where}: {has}: was it made for another model?")
            return lambda unit: ord(unit) - _NEMO_OFFSET
        raise UsageError(
            f"{where}: made for the tokens of another model: it has token {largest:,} of NeMo's encoding, where this model "
            f"has {len(tokenizer.pieces):,} tokens"
        )
    raise UsageError(f"{where}: word-level; a token-level ARPA as NeMo's train_kenlm makes is needed")


def _of_tokens(
    arpa: Arpa, tokenizer: Tokenizer, weight: float | None, where: str, say: Callable[[str], None]
) -> BackoffModel:
    token_of = _token_rule([unit for unit in arpa.units if _special(unit) is None], tokenizer, where, say)
    num_tokens = len(tokenizer.pieces)
    numbers = [_special(unit) or token_of(unit) for unit in arpa.units]
    unit_ids = np.array([num_tokens if n == BEGIN else n if isinstance(n, int) else -1 for n in numbers], np.int64)
    unigrams = arpa.orders[0]
    num_missing = num_tokens - len(set(unit_ids[(unit_ids >= 0) & (unit_ids < num_tokens)].tolist()))
    unknown = LOG_ZERO
    if UNKNOWN in numbers:
        unknown = float(unigrams.logprobs_A[numbers.index(UNKNOWN)]) - float(np.log(max(1, num_missing)))
    logprobs_U = np.full(num_tokens + 1, unknown, np.float32)
    backoffs_U = np.zeros(num_tokens + 1, np.float32)
    is_token = unit_ids >= 0
    logprobs_U[unit_ids[is_token]] = unigrams.logprobs_A[is_token]
    backoffs_U[unit_ids[is_token]] = unigrams.backoffs_A[is_token]
    longer = []
    for order in arpa.orders[1:]:
        units_NL = unit_ids[order.ids_AN].astype(np.int32)
        is_kept_N = (units_NL >= 0).all(1)
        longer.append(NgramsOfLength(units_NL[is_kept_N], order.logprobs_A[is_kept_N], order.backoffs_A[is_kept_N]))
    graph = build_graph(logprobs_U, backoffs_U, longer)
    weight = _WEIGHT if weight is None else weight
    return BackoffModel(graph, int(graph.root_next_U[num_tokens]), Fusion(weight, weight * _TOKEN_BONUS, _BEAM))
