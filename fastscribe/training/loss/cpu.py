"""The recursion compiled by numba for the CPU, and the threads that share a batch.

Rows of logits are shared out by frames, the recursions by utterances. The threads are Python's, inside functions that let
go of the interpreter lock: numba's own parallel loops abort the process when two threads enter them or after a fork, both
of which training does. Importing this file imports no numba; the first loss does, and compiles (or loads what an earlier
process compiled, where there is a folder to keep it in).

Losses and lattices are float64: their sums run over hundreds of frames, and are few beside the logits, which are float32
inside whatever dtype they are stored in.

Shapes as in recursion.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fastscribe.training.loss import recursion
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.loss.recursion import Arcs, Batch, Rules
from fastscribe.types import AnyArray, Float64Array, Int64Array

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_REASSOCIATE = {"reassoc", "contract", "nsz", "arcp"}  # sums may be split; infinities and NaN keep their meaning


@dataclass(frozen=True)
class Lattice:
    """What `losses` leaves for `write_gradient`: a few numbers for every cell, none of them W long."""

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
    """Contiguous logits -> float32 losses [B], infinite where no path exists; config must have been drawn.

    Durations follow the num_tokens columns of the tokens; columns after those are not read, and get a gradient of zeros.
    What write_gradient needs besides is made there on a CPU, so that `wants_gradient` changes nothing.
    """
    loops = _loops(DTYPES[logits_CW.dtype])
    num_cells = len(logits_CW)
    rules = rules_of(config, num_tokens, blank_id)
    arcs = _empty_arcs(num_cells, config)
    beta_C, log_likelihood_B = np.empty(num_cells), np.empty(len(batch.num_frames_B))
    fixed = (_as_numpy(logits_CW), batch, rules, arcs)
    _by_line(batch, lambda start, stop: loops["read_arcs"](*fixed, start, stop))
    results = (beta_C, log_likelihood_B)
    _by_utterance(batch, lambda first, stride: loops["fill_beta"](batch, arcs, *results, first, stride))
    losses_B = -log_likelihood_B * (1.0 + config.fastemit)
    return torch.from_numpy(losses_B.astype(np.float32)), Lattice(batch, rules, arcs, beta_C, log_likelihood_B)


def write_gradient(lattice: Lattice, logits_CW: torch.Tensor, scale_B: torch.Tensor) -> None:
    """Puts each loss's gradient, clamped, then times its scale, where the logits of `losses` are; zero for infinite losses."""
    loops = _loops(DTYPES[logits_CW.dtype])
    batch, rules, arcs, beta_C, log_likelihood_B = (getattr(lattice, field.name) for field in fields(lattice))
    alpha_C = np.empty_like(beta_C)
    _by_utterance(batch, lambda first, stride: loops["fill_alpha"](batch, arcs, alpha_C, first, stride))
    scale = scale_B.float().contiguous().numpy()
    fixed = (_as_numpy(logits_CW), batch, rules, arcs, alpha_C, beta_C, log_likelihood_B, scale)
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
    """Frames that a blank takes, and a label, by kind of arc."""
    steps_K = np.array(config.durations, np.int64)
    return (np.ones(1, np.int64), np.zeros(1, np.int64)) if config.as_rnnt else (steps_K, steps_K)


def _empty_arcs(num_cells: int, config: TransducerLossConfig) -> Arcs:
    num_durations = 0 if config.as_rnnt else len(config.durations)
    normaliser_C, blank_C, label_C = (np.empty(num_cells, np.float32) for _ in range(3))
    durations_CK = np.empty((num_cells, num_durations), np.float32)
    return Arcs(normaliser_C, blank_C, label_C, durations_CK, *steps_of(config))


def _as_numpy(logits_CW: torch.Tensor) -> AnyArray:
    """The same memory; 16-bit dtypes as uint16."""
    assert logits_CW.is_contiguous()
    if logits_CW.dtype == torch.float32:
        return logits_CW.detach().numpy()
    return logits_CW.detach().view(torch.int16).numpy().view(np.uint16)


@cache
def _loops(dtype: str) -> dict[str, Any]:
    import numba

    return recursion.compiled_loops(lambda function: numba.njit(**_options())(function), _kept, dtype)


def _options() -> dict[str, Any]:
    """numba's, for code that allocates nothing: counting references to the arrays made it 20 times slower."""
    from numba.core.options import DefaultOptions

    without_counting = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
    return {"nogil": True, "error_model": "numpy", "fastmath": _REASSOCIATE, **without_counting}


def _kept(loop: Callable[..., Any]) -> Any:
    """Compiled, or loaded from beside this file or the user's cache folder; where neither can be written, not kept."""
    import numba

    try:
        return numba.njit(cache=True, **_options())(loop)
    except RuntimeError:
        return numba.njit(**_options())(loop)


def _by_line(batch: Batch, work: Callable[[int, int], None]) -> None:
    """work(start, stop) over all lines, a share for each thread."""
    num_threads = torch.get_num_threads()
    bounds = np.linspace(0, len(batch.line_utterance_L), num_threads + 1).astype(int).tolist()
    _share([(start, stop) for start, stop in pairwise(bounds) if start < stop], work)


def _by_utterance(batch: Batch, work: Callable[[int, int], None]) -> None:
    """work(first, stride) so that all utterances are done, those of one thread `stride` apart."""
    num_threads = min(torch.get_num_threads(), len(batch.num_frames_B))
    _share([(first, num_threads) for first in range(num_threads)], work)


def _share(shares: list[tuple[int, int]], work: Callable[[int, int], None]) -> None:
    """The calling thread does the first share itself."""
    futures = [_pool(os.getpid(), len(shares) - 1).submit(work, *share) for share in shares[1:]]
    for share in shares[:1]:
        work(*share)
    for future in futures:
        future.result()


@cache
def _pool(process_id: int, num_threads: int) -> ThreadPoolExecutor:
    """Thread pool of this process: a fork does not copy threads."""
    return ThreadPoolExecutor(num_threads, thread_name_prefix="transducer-loss")
