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
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from fastscribe._system.float_bits import as_numpy
from fastscribe._system.jit import compile_cached, compile_helper, loop_options
from fastscribe._system.thread_shares import equal_parts, share
from fastscribe.training.loss import layout, recursion
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.loss.recursion import Arcs, Batch, Rules
from fastscribe.types import Float64Array, Int64Array

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class Lattice:
    """The values of a batch's lattice nodes: a few numbers per cell, none of them W long.

    `read_arcs` fills the arcs from the logits, `losses` the sums, and `write_gradient` reads both. The logits may come in
    parts, each with a lattice of its own (`frames_of`), whose arrays are views.
    """

    batch: Batch
    config: TransducerLossConfig
    rules: Rules
    dtype: torch.dtype
    arcs: Arcs
    alpha_C: Float64Array
    beta_C: Float64Array
    log_likelihood_B: Float64Array


def new_lattice(
    batch: Batch,
    logits: torch.Tensor,
    *,
    num_tokens: int,
    blank_id: int,
    config: TransducerLossConfig,
    wants_gradient: bool = True,
) -> Lattice:
    """Allocate the lattice of a batch.

    Args:
        logits: any tensor with the logits' dtype and device.
        config: after resolve_omega.
        wants_gradient: False leaves out alpha, which only write_gradient needs.
    """
    num_cells, rules = layout.num_cells(batch), rules_of(config, num_tokens, blank_id)
    alpha_C, beta_C = np.empty(num_cells if wants_gradient else 0), np.empty(num_cells)
    arcs, log_likelihood_B = _empty_arcs(num_cells, config), np.empty(len(batch.num_frames_B))
    return Lattice(batch, config, rules, logits.dtype, arcs, alpha_C, beta_C, log_likelihood_B)


def frames_of(lattice: Lattice, start: int, stop: int) -> Lattice:
    """View the frames [start, stop) of a packed lattice of one utterance, for logits of these frames alone."""
    first_cell, batch = layout.frames_of(lattice.batch, start, stop)
    normaliser_C, blank_C, label_C, durations_CK = (x[first_cell:] for x in lattice.arcs[:4])
    arcs = Arcs(normaliser_C, blank_C, label_C, durations_CK, *lattice.arcs[4:])
    alpha_C, beta_C = lattice.alpha_C[first_cell:], lattice.beta_C[first_cell:]
    return replace(lattice, batch=batch, arcs=arcs, alpha_C=alpha_C, beta_C=beta_C)


def read_arcs(lattice: Lattice, logits_CW: torch.Tensor) -> None:
    """Read the arcs' weights from contiguous logits.

    Args:
        logits_CW: [C, W]; the durations follow num_tokens token columns. Later columns are ignored.
    """
    loop = _loops(DTYPES[lattice.dtype])["read_arcs"]
    fixed = (as_numpy(logits_CW), lattice.batch, lattice.rules, lattice.arcs)
    _by_line(lattice.batch, lambda start, stop: loop(*fixed, start, stop))


def losses(lattice: Lattice) -> torch.Tensor:
    """Sum over the paths. Returns float32 losses [B], infinite without a path."""
    loops, batch, arcs = _loops("float32"), lattice.batch, lattice.arcs  # sums read no logits: those of any dtype
    beta = (lattice.beta_C, lattice.log_likelihood_B)
    _by_utterance(batch, lambda first, stride: loops["fill_beta"](batch, arcs, *beta, first, stride))
    if len(lattice.alpha_C):
        _by_utterance(batch, lambda first, stride: loops["fill_alpha"](batch, arcs, lattice.alpha_C, first, stride))
    losses_B = -lattice.log_likelihood_B * (1.0 + lattice.config.fastemit)
    return torch.from_numpy(losses_B.astype(np.float32))


def write_gradient(lattice: Lattice, logits_CW: torch.Tensor, scale_B: torch.Tensor) -> None:
    """Overwrite the logits with each loss's gradient, clamped and then scaled; zero for infinite losses."""
    loop = _loops(DTYPES[lattice.dtype])["write_gradient"]
    ways = (lattice.alpha_C, lattice.beta_C, lattice.log_likelihood_B, scale_B.float().contiguous().numpy())
    fixed = (as_numpy(logits_CW), lattice.batch, lattice.rules, lattice.arcs, *ways)
    _by_line(lattice.batch, lambda start, stop: loop(*fixed, start, stop))


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
    return recursion.compiled_loops(
        compile_helper(**loop_options()), lambda function: compile_cached(function, **loop_options()), dtype
    )


def _by_line(batch: Batch, work: Callable[[int, int], None]) -> None:
    """Call work(start, stop) for a share of the lines in each thread."""
    share(equal_parts(len(batch.line_utterance_L), torch.get_num_threads()), work)


def _by_utterance(batch: Batch, work: Callable[[int, int], None]) -> None:
    """Call work(first, stride) in each thread; together they cover all utterances."""
    num_threads = min(torch.get_num_threads(), len(batch.num_frames_B))
    share([(first, num_threads) for first in range(num_threads)], work)
