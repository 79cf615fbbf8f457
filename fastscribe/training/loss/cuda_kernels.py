"""The recursion compiled by numba for CUDA: three kernels around the functions of recursion.py.

Importing this needs numba with a CUDA target (or its simulator); cuda.py imports it when the first loss needs it.

A warp processes a cell's logits together: its threads split the row between them in the functions below, and otherwise all
compute the same. A block has the cells of one frame of one utterance, and its warps take them in turn. One block for each
utterance and direction sums a lattice, one anti-diagonal after the other: every arc goes to a later one, whatever its
duration.

Shapes as in recursion.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numba import config

from fastscribe._system.float_bits import exponential
from fastscribe._system.jit import rebind
from fastscribe.training.loss import recursion
from fastscribe.training.loss.recursion import (
    MINUS_INFINITY,
    ZERO,
    alpha_at,
    beta_at,
    grid_of,
    larger,
    narrow,
    read_cell,
    widen,
    write_cell,
    write_zeros,
)

cuda: Any = import_module("numba.cuda")  # numba's own annotations are not those of a kernel
SIMULATED = bool(getattr(config, "ENABLE_CUDASIM", False))
if not SIMULATED:  # a few utterances make a small grid; suppress the warning at each launch
    with suppress(ImportError, AttributeError):
        import_module("numba.cuda.dispatcher").config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
_WHOLE_WARP = 0xFFFFFFFF


class DeviceBatch(NamedTuple):
    """recursion.Batch on the device, without its lines: arrays of int64. num_rows_B includes padded frames."""

    first_cell_B: Any
    stride_B: Any
    num_rows_B: Any
    num_frames_B: Any
    num_labels_B: Any
    labels_BU: Any


# Rows of logits, one warp each.


def device_exponential(x: Any) -> Any:
    return math.exp(x)


def warp_largest(value: Any) -> Any:
    step = cuda.blockDim.x >> 1
    while step > 0:
        value = larger(value, cuda.shfl_xor_sync(_WHOLE_WARP, value, step))
        step >>= 1
    return value


def warp_sum(value: Any) -> Any:
    step = cuda.blockDim.x >> 1
    while step > 0:
        value += cuda.shfl_xor_sync(_WHOLE_WARP, value, step)
        step >>= 1
    return value


def warp_normaliser(logits_CW: Any, cell: Any, start: Any, stop: Any) -> Any:
    """log of the sum of e**logit over the columns [start, stop) of a cell; NaN propagates."""
    peak = np.float32(MINUS_INFINITY)
    for column in range(start + cuda.threadIdx.x, stop, cuda.blockDim.x):
        peak = larger(peak, widen(logits_CW[cell, column]))
    peak = warp_largest(peak)
    total = np.float32(0.0)
    for column in range(start + cuda.threadIdx.x, stop, cuda.blockDim.x):
        total += exponential(np.float32(widen(logits_CW[cell, column]) - peak))
    return np.float32(peak + math.log(warp_sum(total)))


def write_warp_tokens(logits_CW: Any, cell: Any, rules: Any, normaliser: Any, visits: Any, scale: Any) -> None:
    """Write every token's gradient as if no arc took it. The tokens of arcs are overwritten later, so threads synchronise."""
    for column in range(cuda.threadIdx.x, rules.num_tokens, cuda.blockDim.x):
        expected = visits * exponential(np.float32(widen(logits_CW[cell, column]) - normaliser))
        logits_CW[cell, column] = narrow((rules.clamp if expected > rules.clamp else expected) * scale)
    cuda.syncwarp()


def write_warp_zeros(logits_CW: Any, cell: Any, start: Any, stop: Any) -> None:
    for column in range(start + cuda.threadIdx.x, stop, cuda.blockDim.x):
        logits_CW[cell, column] = narrow(np.float32(0.0))


# Kernels.


def read_arcs(logits_CW: Any, device_batch: Any, rules: Any, arcs: Any, num_rows: int) -> None:
    """Fill the weights in `arcs`; a block for each of the num_rows frames of each utterance."""
    utterance, t = cuda.blockIdx.x // num_rows, cuda.blockIdx.x % num_rows
    grid = grid_of(device_batch, utterance)
    if t >= grid.num_frames:
        return
    for u in range(cuda.threadIdx.y, grid.num_labels + 1, cuda.blockDim.y):
        label = device_batch.labels_BU[utterance, u] if u < grid.num_labels else rules.blank_id
        read_cell(logits_CW, grid.first_cell + t * grid.stride + u, label, rules, arcs)


def fill_lattices(device_batch: Any, arcs: Any, alpha_C: Any, beta_C: Any, log_likelihood_B: Any) -> None:
    """Blocks (utterance, 0) fill beta and the log-likelihood, blocks (utterance, 1), if launched, alpha."""
    utterance, goes_back = cuda.blockIdx.x, cuda.blockIdx.y == 0
    grid = grid_of(device_batch, utterance)
    num_diagonals = grid.num_frames + grid.num_labels if grid.num_frames > 0 else 0
    for turn in range(num_diagonals):
        diagonal = num_diagonals - 1 - turn if goes_back else turn
        for u in range(cuda.threadIdx.x, grid.num_labels + 1, cuda.blockDim.x):
            t = diagonal - u
            if t >= 0 and t < grid.num_frames:
                cell = grid.first_cell + t * grid.stride + u
                if goes_back:
                    beta_C[cell] = beta_at(arcs, grid, beta_C, t, u)
                else:
                    alpha_C[cell] = alpha_at(arcs, grid, alpha_C, t, u)
        cuda.syncthreads()
    if goes_back and cuda.threadIdx.x == 0:
        log_likelihood_B[utterance] = beta_C[grid.first_cell] if num_diagonals > 0 else MINUS_INFINITY


def write_gradient(
    logits_CW: Any,
    device_batch: Any,
    rules: Any,
    arcs: Any,
    alpha_C: Any,
    beta_C: Any,
    log_likelihood_B: Any,
    scale_B: Any,
    num_rows: int,
) -> None:
    """Overwrite the logits with the losses' gradient, zero if there is no path; blocks as in read_arcs."""
    utterance, t = cuda.blockIdx.x // num_rows, cuda.blockIdx.x % num_rows
    grid = grid_of(device_batch, utterance)
    if t >= device_batch.num_rows_B[utterance]:
        return
    log_likelihood = log_likelihood_B[utterance]
    for u in range(cuda.threadIdx.y, grid.stride, cuda.blockDim.y):
        if t >= grid.num_frames or u > grid.num_labels or log_likelihood == MINUS_INFINITY:
            write_zeros(logits_CW, grid.first_cell + t * grid.stride + u, ZERO, logits_CW.shape[1])
        else:
            label = device_batch.labels_BU[utterance, u] if u < grid.num_labels else rules.blank_id
            write_cell(logits_CW, grid, rules, arcs, alpha_C, beta_C, log_likelihood, label, scale_B[utterance], t, u)


REPLACED: dict[str, Callable[..., Any]] = {
    "exponential": device_exponential,
    "warp_largest": warp_largest,
    "warp_sum": warp_sum,
    "row_normaliser": warp_normaliser,
    "write_tokens": write_warp_tokens,
    "write_zeros": write_warp_zeros,
}
KERNELS = (read_arcs, fill_lattices, write_gradient)


def plain_kernels(dtype: str) -> dict[str, Any]:
    """Return KERNELS by name, uncompiled, with compiled device functions (plain functions in the simulator)."""
    compiler = (lambda function: function) if SIMULATED else cuda.jit(device=True)
    names = recursion.compiled(compiler, dtype, REPLACED)
    return {kernel.__name__: rebind(kernel, names, dtype) for kernel in KERNELS}


def kernels(dtype: str) -> dict[str, Any]:
    """Return KERNELS by name; the first launch compiles each."""
    return {name: cuda.jit(kernel) for name, kernel in plain_kernels(dtype).items()}
