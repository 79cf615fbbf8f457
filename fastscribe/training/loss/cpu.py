"""The recursion compiled by numba for the CPU, and the threads that share a batch.

Threads split rows of logits by frames, and recursions by utterances.
Importing this file imports no numba; the first loss does, and compiles (or loads the cache of an earlier process, if a
folder for it is writable).

Losses and lattices are float64, because their sums run over hundreds of frames and they are small beside the logits. The
latter are computed in float32 whatever dtype they are stored in.

Shapes as in recursion.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch

from fastscribe._system.float_bits import as_numpy
from fastscribe._system.jit import compile_cached, loop_options
from fastscribe._system.thread_shares import equal_parts, share
from fastscribe.training.loss import recursion
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.loss.recursion import Arcs, Batch, Rules
from fastscribe.types import Float64Array, Int64Array

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class Lattice:
    """The values that `losses` keeps for `write_gradient`: a few numbers per cell, none of them W long."""

    batch: Batch
    rules: Rules
    arcs: Arcs
    beta_C: Float64Array
    log_likelihood_B: Float64Array


def losses(
    logits_CW: torch.Tensor,
    batch: Batch,
    *,
    num_tokens: int,
    blank_id: int,
    config: TransducerLossConfig,
    wants_gradient: bool = True,
) -> tuple[torch.Tensor, Lattice]:
    """Compute the losses of contiguous logits.

    Args:
        logits_CW: [C, W]; the durations follow num_tokens token columns. Later columns are ignored and get zero gradients.
        config: after resolve_omega.
        wants_gradient: no effect on a CPU, where write_gradient computes alpha.

    Returns:
        float32 losses [B], infinite without a path, and the input of write_gradient.
    """
    loops = _loops(DTYPES[logits_CW.dtype])
    num_cells = len(logits_CW)
    rules = rules_of(config, num_tokens, blank_id)
    arcs = _empty_arcs(num_cells, config)
    beta_C, log_likelihood_B = np.empty(num_cells), np.empty(len(batch.num_frames_B))
    fixed = (as_numpy(logits_CW), batch, rules, arcs)
    _by_line(batch, lambda start, stop: loops["read_arcs"](*fixed, start, stop))
    results = (beta_C, log_likelihood_B)
    _by_utterance(batch, lambda first, stride: loops["fill_beta"](batch, arcs, *results, first, stride))
    losses_B = -log_likelihood_B * (1.0 + config.fastemit)
    return torch.from_numpy(losses_B.astype(np.float32)), Lattice(batch, rules, arcs, beta_C, log_likelihood_B)


def write_gradient(lattice: Lattice, logits_CW: torch.Tensor, scale_B: torch.Tensor) -> None:
    """Overwrite the logits with each loss's gradient, clamped and then scaled; zero for infinite losses."""
    loops = _loops(DTYPES[logits_CW.dtype])
    batch, rules, arcs, beta_C, log_likelihood_B = (getattr(lattice, field.name) for field in fields(lattice))
    alpha_C = np.empty_like(beta_C)
    _by_utterance(batch, lambda first, stride: loops["fill_alpha"](batch, arcs, alpha_C, first, stride))
    scale = scale_B.float().contiguous().numpy()
    fixed = (as_numpy(logits_CW), batch, rules, arcs, alpha_C, beta_C, log_likelihood_B, scale)
    _by_line(batch, lambda start, stop: loops["write_gradient"](*fixed, start, stop))


def rules_of(config: TransducerLossConfig, num_tokens: int, blank_id: int) -> Rules:
    return Rules(
        num_tokens=num_tokens,
        blank_id=blank_id,
        sigma=np.float32(0.0 if config.as_rnnt else config.sigma),
        fastemit=np.float32(config.fastemit),
        clamp=np.float32(np.inf if config.clamp is None else config.clamp),
    )


def steps_of(config: TransducerLossConfig) -> tuple[Int64Array, Int64Array]:
    """Return the frames that a blank takes and those that a label takes, by kind of arc."""
    steps_K = np.array(config.durations, np.int64)
    return (np.ones(1, np.int64), np.zeros(1, np.int64)) if config.as_rnnt else (steps_K, steps_K)


def _empty_arcs(num_cells: int, config: TransducerLossConfig) -> Arcs:
    num_durations = 0 if config.as_rnnt else len(config.durations)
    normaliser_C, blank_C, label_C = (np.empty(num_cells, np.float32) for _ in range(3))
    durations_CK = np.empty((num_cells, num_durations), np.float32)
    return Arcs(normaliser_C, blank_C, label_C, durations_CK, *steps_of(config))


@cache
def _loops(dtype: str) -> dict[str, Any]:
    import numba

    return recursion.compiled_loops(
        lambda function: numba.njit(**loop_options())(function),
        lambda function: compile_cached(function, **loop_options()),
        dtype,
    )


def _by_line(batch: Batch, work: Callable[[int, int], None]) -> None:
    """Call work(start, stop) for a share of the lines in each thread."""
    share(equal_parts(len(batch.line_utterance_L), torch.get_num_threads()), work)


def _by_utterance(batch: Batch, work: Callable[[int, int], None]) -> None:
    """Call work(first, stride) in each thread; together they cover all utterances."""
    num_threads = min(torch.get_num_threads(), len(batch.num_frames_B))
    share([(first, num_threads) for first in range(num_threads)], work)
