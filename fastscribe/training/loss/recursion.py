"""The transducer recursion as small plain functions, written once and compiled for each machine that runs them.

Nothing here is decorated. `compiled` takes a compiler (numba.njit, or numba.cuda.jit for device functions) and returns
the functions compiled, with the readers of one dtype bound in. Uncompiled they are ordinary Python for reading, for tests
and for a simulator. The rules:

- RNN-T (Graves 2012): a label takes no frame, a blank takes one.
- TDT (Xu et al. 2023): both take a duration from a list, a blank at least one frame. A label may not land on the end of the
  recording. Only the last blank, after all labels, may, and it lands there exactly.

Both are one lattice here. The k-th kind of arc takes a fixed number of frames for a label and for a blank; RNN-T has one
kind, with label step 0 and blank step 1, and no duration weights. Every lattice node (t, u) is a row ("cell") of the
flat arrays: first_cell + t * stride + u, so padded and packed batches are read alike.

Weights are logarithms. beta[t, u] sums all paths from (t, u) to the end, alpha[t, u] all paths from the start to (t, u).

Shapes: C cells, W columns of the logits (V tokens with blank, then the durations), K kinds of arc, B utterances, U labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fastscribe._system import float_bits
from fastscribe._system.float_bits import READERS, bounded_exponential, exponential, order_key, value_of_key
from fastscribe._system.jit import compile_together, digest_of, rebind
from fastscribe.types import Float32Array, Int64Array

MINUS_INFINITY = -math.inf
ZERO = np.int64(0)  # not 0, whose type numba takes for another one: it would compile what gets it once more


class Batch(NamedTuple):
    """Cell offsets, sizes and labels of the utterances of a batch: int64 arrays; the padding of labels_BU is arbitrary."""

    first_cell_B: Int64Array
    stride_B: Int64Array
    num_frames_B: Int64Array
    num_labels_B: Int64Array
    labels_BU: Int64Array
    line_utterance_L: Int64Array  # utterance of each line (all cells of one frame), padded frames included
    line_frame_L: Int64Array


class Rules(NamedTuple):
    """A TransducerLossConfig's numbers for the recursion; sums are float32."""

    num_tokens: int
    blank_id: int
    sigma: np.float32
    fastemit: np.float32
    clamp: np.float32  # infinite: no clamp


class Arcs(NamedTuple):
    """The arcs that leave each cell: log-probabilities of its two tokens and its durations ([C, 0] without durations)."""

    normaliser_C: Float32Array  # log of the sum over the tokens' logits
    blank_C: Float32Array
    label_C: Float32Array
    durations_CK: Float32Array
    blank_steps_K: Int64Array
    label_steps_K: Int64Array


class Grid(NamedTuple):
    """The lattice of one utterance."""

    first_cell: int
    stride: int
    num_frames: int
    num_labels: int


# Sums of logarithms.


def larger(a: Any, b: Any) -> Any:
    return b if b > a else a


def row_peak(logits_CW: Any, cell: Any, start: Any, stop: Any) -> Any:
    peak = order_key(widen(logits_CW[cell, start]))
    for column in range(start + 1, stop):
        key = order_key(widen(logits_CW[cell, column]))
        peak = key if key > peak else peak
    return value_of_key(peak)


def row_normaliser(logits_CW: Any, cell: Any, start: Any, stop: Any) -> Any:
    """log of the sum of e**logit over the columns [start, stop) of a cell."""
    peak = row_peak(logits_CW, cell, start, stop)
    total = np.float32(0.0)
    for column in range(start, stop):
        total += exponential(widen(logits_CW[cell, column]) - peak)
    return np.float32(peak + np.float32(math.log(total)))


# The lattice.


def grid_of(batch: Any, utterance: Any) -> Any:
    return Grid(
        batch.first_cell_B[utterance],
        batch.stride_B[utterance],
        batch.num_frames_B[utterance],
        batch.num_labels_B[utterance],
    )


def duration_weight(arcs: Any, cell: Any, kind: Any) -> Any:
    return arcs.durations_CK[cell, kind] if arcs.durations_CK.shape[1] > 0 else np.float32(0.0)


def label_weight(arcs: Any, grid: Any, beta_C: Any, t: Any, u: Any, kind: Any) -> Any:
    """log of the sum over all paths that leave (t, u) by the label's arc of this kind."""
    step = arcs.label_steps_K[kind]
    if u >= grid.num_labels or t + step >= grid.num_frames:
        return MINUS_INFINITY
    cell = grid.first_cell + t * grid.stride + u
    return arcs.label_C[cell] + duration_weight(arcs, cell, kind) + beta_C[cell + step * grid.stride + 1]


def blank_weight(arcs: Any, grid: Any, beta_C: Any, t: Any, u: Any, kind: Any) -> Any:
    """log of the sum over all paths that leave (t, u) by the blank's arc of this kind."""
    step = arcs.blank_steps_K[kind]
    cell = grid.first_cell + t * grid.stride + u
    if step == 0 or t + step > grid.num_frames:
        return MINUS_INFINITY
    weight = np.float64(arcs.blank_C[cell] + duration_weight(arcs, cell, kind))
    if t + step < grid.num_frames:
        return weight + beta_C[cell + step * grid.stride]
    return weight if u == grid.num_labels else MINUS_INFINITY


def label_arrival(arcs: Any, grid: Any, alpha_C: Any, t: Any, u: Any, kind: Any) -> Any:
    """log of the sum over all paths that enter (t, u) by a label's arc of this kind."""
    step = arcs.label_steps_K[kind]
    if u == 0 or t < step:
        return MINUS_INFINITY
    cell = grid.first_cell + (t - step) * grid.stride + u - 1
    return arcs.label_C[cell] + duration_weight(arcs, cell, kind) + alpha_C[cell]


def blank_arrival(arcs: Any, grid: Any, alpha_C: Any, t: Any, u: Any, kind: Any) -> Any:
    """log of the sum over all paths that enter (t, u) by a blank's arc of this kind."""
    step = arcs.blank_steps_K[kind]
    if step == 0 or t < step:
        return MINUS_INFINITY
    cell = grid.first_cell + (t - step) * grid.stride + u
    return arcs.blank_C[cell] + duration_weight(arcs, cell, kind) + alpha_C[cell]


def beta_at(arcs: Any, grid: Any, beta_C: Any, t: Any, u: Any) -> Any:
    """Compute beta from the later frames, and from later labels of this frame."""
    peak = MINUS_INFINITY
    for kind in range(arcs.label_steps_K.shape[0]):
        peak = larger(peak, label_weight(arcs, grid, beta_C, t, u, kind))
        peak = larger(peak, blank_weight(arcs, grid, beta_C, t, u, kind))
    peak = 0.0 if peak == MINUS_INFINITY else peak  # no path, or NaN, which the sum propagates
    total = np.float32(0.0)
    for kind in range(arcs.label_steps_K.shape[0]):
        total += exponential(np.float32(label_weight(arcs, grid, beta_C, t, u, kind) - peak))
        total += exponential(np.float32(blank_weight(arcs, grid, beta_C, t, u, kind) - peak))
    return MINUS_INFINITY if total == 0.0 else peak + math.log(total)


def alpha_at(arcs: Any, grid: Any, alpha_C: Any, t: Any, u: Any) -> Any:
    """Compute alpha from the earlier frames, and from earlier labels of this frame."""
    if t == 0 and u == 0:
        return 0.0
    peak = MINUS_INFINITY
    for kind in range(arcs.label_steps_K.shape[0]):
        peak = larger(peak, label_arrival(arcs, grid, alpha_C, t, u, kind))
        peak = larger(peak, blank_arrival(arcs, grid, alpha_C, t, u, kind))
    peak = 0.0 if peak == MINUS_INFINITY else peak  # no path, or NaN, which the sum propagates
    total = np.float32(0.0)
    for kind in range(arcs.label_steps_K.shape[0]):
        total += exponential(np.float32(label_arrival(arcs, grid, alpha_C, t, u, kind) - peak))
        total += exponential(np.float32(blank_arrival(arcs, grid, alpha_C, t, u, kind) - peak))
    return MINUS_INFINITY if total == 0.0 else peak + math.log(total)


def clamped(value: Any, rebind: Any) -> Any:
    """Clamp to [-bound, bound]; NaN stays NaN."""
    low = -rebind if value < -rebind else value
    return rebind if low > rebind else low


# One cell of the logits, for the CPU: read its weights, overwrite it with the gradient.


def read_cell(logits_CW: Any, cell: Any, label: Any, rules: Any, arcs: Any) -> None:
    """Fill the cell's weights in `arcs`; after the last label, `label` is any valid id."""
    num_tokens, num_durations = rules.num_tokens, arcs.durations_CK.shape[1]
    normaliser = row_normaliser(logits_CW, cell, ZERO, num_tokens)
    arcs.normaliser_C[cell] = normaliser
    arcs.blank_C[cell] = widen(logits_CW[cell, rules.blank_id]) - normaliser - rules.sigma
    arcs.label_C[cell] = widen(logits_CW[cell, label]) - normaliser - rules.sigma
    if num_durations > 0:
        normaliser = row_normaliser(logits_CW, cell, num_tokens, num_tokens + num_durations)
        for kind in range(num_durations):
            arcs.durations_CK[cell, kind] = widen(logits_CW[cell, num_tokens + kind]) - normaliser


def write_cell(
    logits_CW: Any,
    grid: Any,
    rules: Any,
    arcs: Any,
    alpha_C: Any,
    beta_C: Any,
    log_likelihood: Any,
    label: Any,
    scale: Any,
    t: Any,
    u: Any,
) -> None:
    """Gradient: each logit's probability times the share of paths through this cell, minus the share that takes its arc."""
    cell = grid.first_cell + t * grid.stride + u
    num_tokens, num_durations = rules.num_tokens, arcs.durations_CK.shape[1]
    before = alpha_C[cell] - log_likelihood
    visits = exponential(np.float32(before + beta_C[cell]))
    label_visits, blank_visits = np.float32(0.0), np.float32(0.0)
    for kind in range(arcs.label_steps_K.shape[0]):
        by_label = exponential(np.float32(before + label_weight(arcs, grid, beta_C, t, u, kind)))
        by_blank = exponential(np.float32(before + blank_weight(arcs, grid, beta_C, t, u, kind)))
        label_visits += by_label
        blank_visits += by_blank
        if num_durations > 0:
            gradient = visits * exponential(arcs.durations_CK[cell, kind]) - by_label - by_blank
            logits_CW[cell, num_tokens + kind] = narrow(clamped(gradient, rules.clamp) * scale)
    write_zeros(logits_CW, cell, num_tokens + num_durations, logits_CW.shape[1])
    visits += rules.fastemit * label_visits
    write_tokens(logits_CW, cell, rules, arcs.normaliser_C[cell], visits, scale)
    gradient = visits * exponential(arcs.blank_C[cell] + rules.sigma) - blank_visits
    logits_CW[cell, rules.blank_id] = narrow(clamped(gradient, rules.clamp) * scale)
    if u < grid.num_labels:
        expected = visits * exponential(arcs.label_C[cell] + rules.sigma)
        gradient = expected - (np.float32(1.0) + rules.fastemit) * label_visits
        logits_CW[cell, label] = narrow(clamped(gradient, rules.clamp) * scale)


def write_tokens(logits_CW: Any, cell: Any, rules: Any, normaliser: Any, visits: Any, scale: Any) -> None:
    """Write every token's gradient as if no arc took it."""
    for column in range(rules.num_tokens):
        expected = visits * exponential(widen(logits_CW[cell, column]) - normaliser)
        logits_CW[cell, column] = narrow((rules.clamp if expected > rules.clamp else expected) * scale)


def write_zeros(logits_CW: Any, cell: Any, start: Any, stop: Any) -> None:
    for column in range(start, stop):
        logits_CW[cell, column] = narrow(np.float32(0.0))


# Loops of one thread over its share of a batch, for the CPU.


def read_arcs(logits_CW: Any, batch: Any, rules: Any, arcs: Any, start: int, stop: int) -> None:
    """Fill the weights in `arcs` for the lines [start, stop)."""
    for line in range(start, stop):
        utterance, t = batch.line_utterance_L[line], batch.line_frame_L[line]
        grid = grid_of(batch, utterance)
        for u in range(grid.num_labels + 1 if t < grid.num_frames else 0):
            label = batch.labels_BU[utterance, u] if u < grid.num_labels else rules.blank_id
            read_cell(logits_CW, grid.first_cell + t * grid.stride + u, label, rules, arcs)


def fill_beta(batch: Any, arcs: Any, beta_C: Any, log_likelihood_B: Any, start: int, stride: int) -> None:
    """Fill beta and the log-likelihood of every stride-th utterance from `start` on; no frames mean no path."""
    for utterance in range(start, log_likelihood_B.shape[0], stride):
        grid = grid_of(batch, utterance)
        for t in range(grid.num_frames - 1, -1, -1):
            for u in range(grid.num_labels, -1, -1):
                beta_C[grid.first_cell + t * grid.stride + u] = beta_at(arcs, grid, beta_C, t, u)
        log_likelihood_B[utterance] = beta_C[grid.first_cell] if grid.num_frames > 0 else MINUS_INFINITY


def fill_alpha(batch: Any, arcs: Any, alpha_C: Any, start: int, stride: int) -> None:
    """Fill alpha of every stride-th utterance from `start` on."""
    for utterance in range(start, batch.first_cell_B.shape[0], stride):
        grid = grid_of(batch, utterance)
        for t in range(grid.num_frames):
            for u in range(grid.num_labels + 1):
                alpha_C[grid.first_cell + t * grid.stride + u] = alpha_at(arcs, grid, alpha_C, t, u)


def write_gradient(
    logits_CW: Any,
    batch: Any,
    rules: Any,
    arcs: Any,
    alpha_C: Any,
    beta_C: Any,
    log_likelihood_B: Any,
    scale_B: Any,
    start: int,
    stop: int,
) -> None:
    """Overwrite the logits of the lines [start, stop) with the losses' gradient, zero if there is no path."""
    for line in range(start, stop):
        utterance, t = batch.line_utterance_L[line], batch.line_frame_L[line]
        grid = grid_of(batch, utterance)
        log_likelihood = log_likelihood_B[utterance]
        for u in range(grid.stride):
            if t >= grid.num_frames or u > grid.num_labels or log_likelihood == MINUS_INFINITY:
                cell = grid.first_cell + t * grid.stride + u
                write_zeros(logits_CW, cell, ZERO, logits_CW.shape[1])
                continue
            label = batch.labels_BU[utterance, u] if u < grid.num_labels else rules.blank_id
            scale = np.float32(scale_B[utterance])
            write_cell(logits_CW, grid, rules, arcs, alpha_C, beta_C, log_likelihood, label, scale, t, u)


FUNCTIONS = (  # each may call the ones before it
    bounded_exponential,
    exponential,
    larger,
    order_key,
    value_of_key,
    row_peak,
    row_normaliser,
    grid_of,
    duration_weight,
    label_weight,
    blank_weight,
    label_arrival,
    blank_arrival,
    beta_at,
    alpha_at,
    clamped,
    read_cell,
    write_tokens,
    write_zeros,
    write_cell,
)
LOOPS = (read_arcs, fill_beta, fill_alpha, write_gradient)
widen, narrow = READERS["float32"]
Compiler = Callable[[Callable[..., Any]], Any]


def compiled(
    compiler: Compiler, dtype: str, replaced: Mapping[str, Callable[..., Any]] | None = None
) -> dict[str, Any]:
    """Compile FUNCTIONS with `widen` and `narrow` of the dtype; return this file's names with them, for `rebind`.

    Args:
        replaced: plain functions to compile instead, such as a device's loop over a row, and others that these need.
    """
    sources = {"widen": READERS[dtype][0], "narrow": READERS[dtype][1], **{f.__name__: f for f in FUNCTIONS}}
    sources.update(replaced or {})
    return compile_together(compiler, sources, dtype)


def compiled_loops(compiler: Compiler, loop_compiler: Compiler, dtype: str) -> dict[str, Any]:
    """Return LOOPS by name, compiled over the functions that `compiler` makes."""
    names = compiled(compiler, dtype)
    variant = f"{dtype}_{digest_of(float_bits)}"
    return {loop.__name__: loop_compiler(rebind(loop, names, variant)) for loop in LOOPS}
