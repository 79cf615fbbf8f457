"""What a step of greedy transducer decoding computes between its matrix products, for a CPU: loops for numba (cpu_looping.py).

Nothing here is decorated. `kernels` compiles the loops for a dtype and an activation of the joint network. bfloat16 arrives as
uint16, and is computed in float32. NaN of a frame that has a label reaches the label's log-probability (decoder.py).

Shapes: B batch, T frames, J joint width, H predictor width, G gates (4H: input, forget, cell, output), F rows that wrote a
label, A rows that go on, N frames of their windows, X labels with blank plus durations, S label slots of a row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastscribe._system import float_bits
from fastscribe._system.float_bits import READERS, STORED, exponential, order_key, value_of_key
from fastscribe._system.jit import (
    argument_types,
    compile_cached,
    compile_helper,
    compile_together,
    digest_of,
    loop_options,
    made_once,
    rebind,
)
from fastscribe.families.blocks import row_kernels
from fastscribe.families.blocks.row_kernels import sigmoid

# No label yet; a label, and more may follow; all frames done; too many labels.
WAITS, SPOKE, ENDED, IS_ENDLESS = 0, 1, 2, 3
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_SIGN_OFF, _INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_LARGEST_KEY = np.int32(0x7FFFFFFF)

widen, narrow = READERS["float32"]  # `kernels` replaces them, and `activation`


def tanh(x: Any) -> Any:
    """Within 2**-22 of tanh(x)."""
    return np.float32(_TWO * np.float32(sigmoid(np.float32(_TWO * x))) - _ONE)


def relu(x: Any) -> Any:
    """NaN stays NaN."""
    return _ZERO if x < _ZERO else np.float32(x)


activation = relu


def rank(value: Any) -> Any:
    """Map a float32 to an int32 of the same order. NaN is above all, as it is for torch's argmax."""
    key = order_key(value)
    is_nan = np.uint32(np.float32(value).view(np.uint32) & _SIGN_OFF) > _INFINITE
    return _LARGEST_KEY if is_nan else np.int32(key)


def first_largest(logits_X: Any, start: Any, stop: Any) -> Any:
    """Return the index of the first of the largest values of logits[start:stop], less `start`."""
    largest = np.int32(rank(widen(logits_X[start])))
    for i in range(start + 1, stop):
        key = np.int32(rank(widen(logits_X[i])))
        largest = key if key > largest else largest
    found = start
    while np.int32(rank(widen(logits_X[found]))) != largest:
        found += 1
    return found - start


def log_probability(logits_X: Any, label: Any, num_tokens: Any) -> Any:
    """Log of the softmax over labels and blank, in float32."""
    largest = order_key(widen(logits_X[0]))
    for i in range(1, num_tokens):
        key = order_key(widen(logits_X[i]))
        largest = key if key > largest else largest
    peak, total = np.float32(value_of_key(largest)), _ZERO
    for i in range(num_tokens):
        total += exponential(np.float32(widen(logits_X[i]) - peak))
    return np.float32(np.float32(widen(logits_X[label]) - peak) - np.float32(math.log(total)))


def lstm_cell(
    gates_FG: Any, others_XG: Any, index_F: Any, rows_F: Any, cells_BH: Any, hidden_BH: Any, out_FH: Any
) -> None:  # fmt: skip
    """A layer's cell for some rows. Gates are gates[f] + others[index[f]]; `cells` of the rows are updated in place."""
    width = out_FH.shape[1]
    for f in range(len(rows_F)):
        ours_G, others_G, out_H = gates_FG[f], others_XG[index_F[f]], out_FH[f]
        cells_H, hidden_H = cells_BH[rows_F[f]], hidden_BH[rows_F[f]]
        for i in range(width):
            enters = sigmoid(np.float32(widen(ours_G[i]) + widen(others_G[i])))
            stays = sigmoid(np.float32(widen(ours_G[width + i]) + widen(others_G[width + i])))
            candidate = tanh(np.float32(widen(ours_G[2 * width + i]) + widen(others_G[2 * width + i])))
            cells_H[i] = np.float32(np.float32(stays * cells_H[i]) + np.float32(enters * candidate))
        for i in range(width):
            leaves = sigmoid(np.float32(widen(ours_G[3 * width + i]) + widen(others_G[3 * width + i])))
            hidden = narrow(np.float32(leaves * np.float32(tanh(cells_H[i]))))
            out_H[i] = hidden
            hidden_H[i] = hidden


def joint_inputs(
    encoded_BTJ: Any, predicted_BJ: Any, rows_A: Any, position_B: Any, lengths_B: Any, window: Any, out_NJ: Any
) -> Any:
    """Write activation(encoded + predicted) of up to `window` frames of each row. Return their number."""
    width, n = out_NJ.shape[1], 0
    for row in rows_A:
        predicted_J = predicted_BJ[row]
        for t in range(position_B[row], min(position_B[row] + window, lengths_B[row])):
            encoded_J, out_J = encoded_BTJ[row, t], out_NJ[n]
            for i in range(width):
                out_J[i] = narrow(activation(np.float32(widen(encoded_J[i]) + widen(predicted_J[i]))))
            n += 1
    return n


def choose(
    logits_NX: Any, rows_A: Any, window: Any, blank: Any, durations_D: Any, max_symbols: Any, position_B: Any,
    lengths_B: Any, max_labels_B: Any, count_B: Any, repeats_B: Any, ids_BS: Any, picks_BS: Any, times_BS: Any,
    logprobs_BS: Any, status_A: Any, input_A: Any,
) -> None:  # fmt: skip
    """Skip each row's blanks in its window, and record its label if there is one.

    Args:
        logits_NX: Of the frames that `joint_inputs` wrote.
        rows_A: The rows.
        window: As `joint_inputs` had it.
        blank: Id of the blank.
        durations_D: For TDT; empty for RNN-T.
        max_symbols: Labels at one frame after which decoding goes on to the next.
        position_B: Each row's frame; updated.
        lengths_B: Each row's number of frames.
        max_labels_B: Largest number of labels of each row.
        count_B: Each row's labels; updated.
        repeats_B: How many of its last labels have the same frame; updated.
        ids_BS: The labels.
        picks_BS: The index of each label's duration.
        times_BS: The frame of each label.
        logprobs_BS: The log-probability of each label.
        status_A: WAITS, SPOKE, ENDED or IS_ENDLESS.
        input_A: The row of `logits` that has the label; -1 without a label.
    """
    num_tokens, num_durations, n = blank + 1, len(durations_D), 0
    for a in range(len(rows_A)):
        row = rows_A[a]
        start, length = position_B[row], lengths_B[row]
        stop = min(start + window, length)
        t, label, pick, duration = start, blank, 0, 0
        while t < stop:
            logits_X = logits_NX[n + t - start]
            label = first_largest(logits_X, 0, num_tokens)
            if num_durations > 0:
                pick = first_largest(logits_X, num_tokens, num_tokens + num_durations)
                duration = durations_D[pick]
            if label != blank:
                break
            t += max(1, duration)
        slot = count_B[row]
        input_A[a] = -1
        if label == blank:
            status_A[a] = WAITS if t < length else ENDED
        elif slot == max_labels_B[row]:
            status_A[a] = IS_ENDLESS
        else:
            input_A[a] = n + t - start
            repeats = repeats_B[row] + 1 if slot > 0 and times_BS[row, slot - 1] == t else 1
            ids_BS[row, slot], picks_BS[row, slot], times_BS[row, slot] = label, pick, t
            logprobs_BS[row, slot] = log_probability(logits_NX[n + t - start], label, num_tokens)
            count_B[row], repeats_B[row] = slot + 1, repeats
            t += duration
            if duration == 0 and repeats >= max_symbols:
                t += 1
            status_A[a] = SPOKE if t < length else ENDED
        position_B[row] = t
        n += stop - start


_ACTIVATIONS = {"relu": relu, "tanh": tanh, "sigmoid": sigmoid}
_FUNCTIONS = (tanh, rank, first_largest, log_probability)
_LOOPS = (joint_inputs, choose, lstm_cell)
# Types of arguments other than the model's, and int64.
_INTEGERS = (
    "index_F", "rows_F", "rows_A", "durations_D", "position_B", "lengths_B", "max_labels_B", "count_B", "repeats_B",
    "status_A", "input_A",
)  # fmt: skip
_TYPES = dict.fromkeys(_INTEGERS, "int64") | dict.fromkeys(("cells_BH", "logprobs_BS"), "float32")
_TYPES |= dict.fromkeys(("ids_BS", "picks_BS", "times_BS"), "int32")


@made_once
def kernels(dtype: str, activation: str) -> dict[str, Any]:
    """Return the loops by name; the first call of each compiles it, or loads it from numba's cache.

    Args:
        dtype: "float32" or "bfloat16".
        activation: "relu", "tanh" or "sigmoid".
    """
    names, variant = functions(dtype, activation)
    return {loop.__name__: compile_cached(rebind(loop, names, variant), **loop_options()) for loop in _LOOPS}


@made_once
def functions(dtype: str, activation: str) -> tuple[dict[str, Any], str]:
    """Return what the loops of kernels() call, compiled, by name, for `rebind`; and a text that changes with it."""
    variant = f"{dtype}_{activation}_{digest_of(float_bits, row_kernels, sys.modules[__name__])}"
    sources = {**{f.__name__: f for f in _FUNCTIONS}, "activation": _ACTIVATIONS[activation]}
    return compile_together(compile_helper(**loop_options()), sources, variant, row_kernels.helpers(dtype)), variant


def compile_ahead(dtype: str, activation: str) -> Iterator[None]:
    """Compile the loops one at a time, or load them. Arguments as for kernels()."""
    for loop in kernels(dtype, activation).values():
        loop.compile(argument_types(loop, STORED[dtype], _TYPES))
        yield
