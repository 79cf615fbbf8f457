"""What a conformer layer computes between its matrix products, for a CPU: loops for numba that read and write each row once.

torch's operators would read and write the same rows many times: a product's result is scaled, biased, activated, measured and
quantised, or added to the stream, normalised and quantised. Here a row stays in the processor's first-level cache meanwhile,
in float32. Results are stored in the model's dtype ("plain") or as uint8 levels with a scale per row ("levels", the inputs of
an int8 product). NaN and infinities of a row reach its outputs in every form, so that damaged weights are noticed.

Nothing here is decorated. `kernels` compiles the loops for a dtype and a form of storing. bfloat16 arrives as uint16. Every
loop works on the rows from `start` to `stop`, and `scratch` is float32 memory of a row, or of W + 1 (glu_depthwise).

Rows are the frames of the recordings one after the other, without padding: recording_R is a row's recording, and first_B the
row of a recording's first frame.

Shapes: R rows (frames of all recordings), N columns, D width, B recordings, T frames, H heads, K head width, W taps, P
positions (distances, farthest left first).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastscribe._system import float_bits
from fastscribe._system.float_bits import READERS, STORED, bounded_exponential, exponential, order_key, value_of_key
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

LEVELS = 127  # on either side of zero
SHIFT = 128  # level of zero
_ROUNDING = np.float32(SHIFT + 0.5)  # the cast to an integer rounds down
LARGEST_LEVEL = np.float32(LEVELS)
MIN_MAXIMUM = np.float32(1e-30)  # avoids a division by zero in a row of zeros
EPSILON = np.float32(1e-5)  # of every LayerNorm; here, because kept machine code changes with this file
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LOWEST = np.float32(-3e38)
SIGN_OFF = np.uint32(0x7FFFFFFF)
_MAX_EXPONENT = np.float32(87.0)
_FIRST_FRAMES = 7  # mel frames that an output of two convolutions of three frames at strides of two sees
SUBSAMPLING_ROWS = _FIRST_FRAMES + 9  # of scratch memory

widen, narrow = READERS["float32"]  # `kernels` replaces them, and `store`


def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x), with x bounded to -87 and 87; beyond, it would be 0 or 1. NaN stays NaN."""
    bounded = -_MAX_EXPONENT if x < -_MAX_EXPONENT else np.float32(x)
    bounded = _MAX_EXPONENT if x > _MAX_EXPONENT else np.float32(bounded)
    return np.float32(_ONE / (_ONE + np.float32(bounded_exponential(np.float32(-bounded)))))


def store_plain(row_N: Any, out_RN: Any, scale_R: Any, r: Any) -> None:
    for i in range(len(row_N)):
        out_RN[r, i] = narrow(row_N[i])


def store_levels(row_N: Any, out_RN: Any, scale_R: Any, r: Any) -> None:
    """Quantise: row ~ (levels - SHIFT) * scale. The largest magnitude is that of its bits, by which NaN is the largest."""
    largest = np.uint32(0)
    for i in range(len(row_N)):
        magnitude = np.uint32(np.float32(row_N[i]).view(np.uint32) & SIGN_OFF)
        largest = magnitude if magnitude > largest else largest
    maximum = np.uint32(largest).view(np.float32)
    scale = np.float32((MIN_MAXIMUM if maximum < MIN_MAXIMUM else maximum) / LARGEST_LEVEL)
    inverse = np.float32(_ONE / scale)
    for i in range(len(row_N)):
        out_RN[r, i] = np.uint8(np.int32(np.float32(row_N[i] * inverse + _ROUNDING)))
    scale_R[r] = scale


store = store_plain


def normalise(row_D: Any, weight_D: Any, bias_D: Any) -> None:
    """LayerNorm in place."""
    width = len(row_D)
    total = _ZERO
    for i in range(width):
        total += row_D[i]
    mean = np.float32(total / np.float32(width))
    squares = _ZERO
    for i in range(width):
        row_D[i] = np.float32(row_D[i] - mean)
        squares += np.float32(row_D[i] * row_D[i])
    inverse = np.float32(_ONE / np.float32(math.sqrt(np.float32(squares / np.float32(width) + EPSILON))))
    for i in range(width):
        row_D[i] = np.float32(np.float32(row_D[i] * inverse) * weight_D[i] + bias_D[i])


def add_to_stream(x_RD: Any, y_RD: Any, y_scale_R: Any, y_bias_D: Any, factor: Any, row_D: Any, r: Any) -> None:
    """Row r of x + factor * (y * scale + bias) to row_D, rounded to the stream's dtype."""
    scale = np.float32(y_scale_R[r])
    for i in range(len(row_D)):
        product = np.float32(widen(y_RD[r, i]) * scale + y_bias_D[i])
        row_D[i] = widen(narrow(np.float32(widen(x_RD[r, i]) + factor * product)))


def norm(
    x_RD: Any, weight_D: Any, bias_D: Any, out_RD: Any, out_scale_R: Any, scratch: Any, start: Any, stop: Any
) -> None:
    """LayerNorm(x)."""
    row_D = scratch[0]
    for r in range(start, stop):
        for i in range(len(row_D)):
            row_D[i] = widen(x_RD[r, i])
        normalise(row_D, weight_D, bias_D)
        store(row_D, out_RD, out_scale_R, r)


def add_norm(
    x_RD: Any, y_RD: Any, y_scale_R: Any, y_bias_D: Any, factor: Any, weight_D: Any, bias_D: Any,
    out_RD: Any, out_scale_R: Any, scratch: Any, start: Any, stop: Any,
) -> None:  # fmt: skip
    """x += factor * y, in place; then LayerNorm(x)."""
    row_D = scratch[0]
    for r in range(start, stop):
        add_to_stream(x_RD, y_RD, y_scale_R, y_bias_D, factor, row_D, r)
        for i in range(len(row_D)):
            x_RD[r, i] = narrow(row_D[i])
        normalise(row_D, weight_D, bias_D)
        store(row_D, out_RD, out_scale_R, r)


def add_norm_twice(
    x_RD: Any, y_RD: Any, y_scale_R: Any, y_bias_D: Any, factor: Any, weight_D: Any, bias_D: Any, weight2_D: Any,
    bias2_D: Any, out_RD: Any, out_scale_R: Any, scratch: Any, start: Any, stop: Any,
) -> None:  # fmt: skip
    """x = LayerNorm(x + factor * y), in place; then the second LayerNorm of it."""
    row_D = scratch[0]
    for r in range(start, stop):
        add_to_stream(x_RD, y_RD, y_scale_R, y_bias_D, factor, row_D, r)
        normalise(row_D, weight_D, bias_D)
        for i in range(len(row_D)):
            x_RD[r, i] = narrow(row_D[i])
            row_D[i] = widen(x_RD[r, i])
        normalise(row_D, weight2_D, bias2_D)
        store(row_D, out_RD, out_scale_R, r)


def activate(
    y_RN: Any, y_scale_R: Any, y_bias_N: Any, out_RN: Any, out_scale_R: Any, scratch: Any, start: Any, stop: Any
) -> None:
    """SiLU(y)."""
    row_N = scratch[0]
    for r in range(start, stop):
        scale = np.float32(y_scale_R[r])
        for i in range(len(row_N)):
            value = np.float32(widen(y_RN[r, i]) * scale + y_bias_N[i])
            row_N[i] = np.float32(value * sigmoid(value))
        store(row_N, out_RN, out_scale_R, r)


def glu_depthwise(
    y_RE: Any, y_scale_R: Any, y_bias_E: Any, recording_R: Any, first_B: Any, lengths_B: Any, before: Any, weight_WD: Any,
    bias_D: Any, out_RD: Any, out_scale_R: Any, scratch: Any, start: Any, stop: Any,
) -> None:  # fmt: skip
    """SiLU of the depthwise convolution over time of GLU(y), which is zero before and after a recording; y has 2D columns.

    `before` of the taps are before an output's frame. The last W gated rows are kept in a ring.
    """
    taps, width = weight_WD.shape
    row_D, ring_WD = scratch[0], scratch[1:]
    r = start
    while r < stop:
        recording = recording_R[r]
        first, length = first_B[recording], lengths_B[recording]
        begin, end = r - first, min(stop - first, length)
        for t in range(begin - before, end + taps - 1 - before):
            slot = (t + taps) % taps
            if t < 0 or t >= length:
                for i in range(width):
                    ring_WD[slot, i] = _ZERO
            else:
                scale = np.float32(y_scale_R[first + t])
                for i in range(width):
                    value = np.float32(widen(y_RE[first + t, i]) * scale + y_bias_E[i])
                    gate = np.float32(widen(y_RE[first + t, width + i]) * scale + y_bias_E[width + i])
                    ring_WD[slot, i] = np.float32(value * sigmoid(gate))
            out = t - (taps - 1 - before)
            if out < begin:
                continue
            for i in range(width):
                row_D[i] = bias_D[i]
            for tap in range(taps):
                slot = (out - before + tap + taps) % taps
                for i in range(width):
                    row_D[i] += np.float32(ring_WD[slot, i] * weight_WD[tap, i])
            for i in range(width):
                row_D[i] = np.float32(row_D[i] * sigmoid(row_D[i]))
            store(row_D, out_RD, out_scale_R, first + out)
        r = first + end


def split_heads(
    y_RE: Any, y_scale_R: Any, y_bias_E: Any, offset: Any, recording_R: Any, first_B: Any, u_D: Any, v_D: Any, factor: Any,
    q_u_HBTK: Any, q_v_HTBK: Any, k_HBTK: Any, v_HBTK: Any, scratch: Any, start: Any, stop: Any,
) -> None:  # fmt: skip
    """Divide y = [q, k, v] into heads: (q + u) * factor, (q + v) * factor, k and v. Padding is left as it is.

    Row r is row r + offset of y.
    """
    heads, _, _, width = k_HBTK.shape
    for r in range(start, stop):
        scale, b, y_E = np.float32(y_scale_R[r + offset]), recording_R[r], y_RE[r + offset]
        t = r - first_B[b]
        for h in range(heads):
            q, k, v = h * width, (heads + h) * width, (2 * heads + h) * width
            q_u_K, q_v_K, k_K, v_K = q_u_HBTK[h, b, t], q_v_HTBK[h, t, b], k_HBTK[h, b, t], v_HBTK[h, b, t]
            for i in range(width):
                query = np.float32(widen(y_E[q + i]) * scale + y_bias_E[q + i])
                q_u_K[i] = narrow(np.float32(np.float32(query + u_D[q + i]) * factor))
                q_v_K[i] = narrow(np.float32(np.float32(query + v_D[q + i]) * factor))
            for i in range(width):
                k_K[i] = narrow(np.float32(widen(y_E[k + i]) * scale + y_bias_E[k + i]))
            for i in range(width):
                v_K[i] = narrow(np.float32(widen(y_E[v + i]) * scale + y_bias_E[v + i]))


def probabilities(row_T: Any, length: Any, largest: Any, unusable: Any, out_T: Any) -> None:
    """Softmax of a row's first scores, which it overwrites; zero beyond. `largest` is the order_key of the largest one.

    `unusable` is zero, or NaN if a score is NaN or infinite.
    """
    peak, total = np.float32(value_of_key(largest)), unusable
    for j in range(length):
        row_T[j] = exponential(np.float32(row_T[j] - peak))
        total += row_T[j]
    inverse = np.float32(_ONE / total)
    for j in range(length):
        out_T[j] = narrow(np.float32(row_T[j] * inverse))
    for j in range(length, len(out_T)):
        out_T[j] = narrow(_ZERO)


def masked_softmax(scores_HTN: Any, mask_N: Any, factor: Any, scratch: Any, start: Any, stop: Any) -> None:
    """Softmax of scores * factor + mask over the keys, in place. Rows are those of [H, T]."""
    _, num_rows, num_keys = scores_HTN.shape
    row_N = scratch[0]
    for row in range(start, stop):
        scores_N = scores_HTN[row // num_rows, row % num_rows]
        largest, unusable = order_key(_LOWEST), _ZERO
        for j in range(num_keys):
            score = np.float32(widen(scores_N[j]) * factor + widen(mask_N[j]))
            row_N[j] = score
            unusable += np.float32(score * _ZERO)
            key = order_key(score)
            largest = key if key > largest else largest
        probabilities(row_N, num_keys, largest, unusable, scores_N)


def softmax(
    scores_HBTT: Any,
    positions_HTBP: Any,
    block: Any,
    recording_R: Any,
    first_B: Any,
    lengths_B: Any,
    scratch: Any,
    start: Any,
    stop: Any,
) -> None:
    """Softmax of scores + position scores over a recording's keys, in place; zero beyond. Rows are those of [H, R].

    Each block of queries has its own positions: the score of query i and key j is in column e - 1 - i + j, where e is the end
    of the query's block.
    """
    num_frames, num_rows = scores_HBTT.shape[2], len(recording_R)
    row_T = scratch[0]
    for row in range(start, stop):
        h, r = row // num_rows, row % num_rows
        b = recording_R[r]
        i, length = r - first_B[b], lengths_B[b]
        end = min((i // block + 1) * block, num_frames)
        scores_T, positions_T = scores_HBTT[h, b, i], positions_HTBP[h, i, b, end - 1 - i :]
        largest, unusable = order_key(_LOWEST), _ZERO
        for j in range(length):
            score = np.float32(widen(scores_T[j]) + widen(positions_T[j]))
            row_T[j] = score
            unusable += np.float32(score * _ZERO)
            key = order_key(score)
            largest = key if key > largest else largest
        probabilities(row_T, length, largest, unusable, scores_T)


def join_heads(
    x_HBTK: Any, offset: Any, recording_R: Any, first_B: Any, out_RD: Any, out_scale_R: Any, scratch: Any, start: Any,
    stop: Any,
) -> None:  # fmt: skip
    """The heads of each frame side by side. Row r is written to row r + offset."""
    heads, _, _, width = x_HBTK.shape
    row_D = scratch[0]
    for r in range(start, stop):
        b = recording_R[r]
        for h in range(heads):
            x_K = x_HBTK[h, b, r - first_B[b]]
            for i in range(width):
                row_D[h * width + i] = widen(x_K[i])
        store(row_D, out_RD, out_scale_R, r + offset)


def subsample(
    x_BTM: Any, once_B: Any, before: Any, weight_9C: Any, bias_C: Any, second_9C: Any, out_BTFC: Any, scratch: Any, start: Any,
    stop: Any,
) -> None:  # fmt: skip
    """Convolution of one channel, ReLU, depthwise convolution: both 3 x 3 at strides of 2. Rows are those of [B, T] outputs.

    The first convolution's outputs are zero beyond once_B frames. `before` of a window's three frames or bins are before its
    own. Of these outputs, those that one output of the second sees are in scratch, in a ring of three columns.
    """
    num_frames, num_mels = x_BTM.shape[1:]
    _, num_rows, bins, channels = out_BTFC.shape
    once_bins = (num_mels + before - 2) // 2 + 1
    for row in range(start, stop):
        b, t = row // num_rows, row % num_rows
        first = 2 * t - before
        for a in range(_FIRST_FRAMES):
            frame, mel_M = 2 * first - before + a, scratch[a]
            is_real = 0 <= frame < num_frames
            for i in range(num_mels + 4):
                m = i - before
                mel_M[i] = x_BTM[b, frame, m] if is_real and 0 <= m < num_mels else _ZERO
        for f in range(bins):
            for column in range(0 if f == 0 else 2 * f + 1, 2 * f + 3):
                for a in range(3):
                    pixel_C = scratch[_FIRST_FRAMES + column % 3 * 3 + a]
                    if not (0 <= first + a < once_B[b] and 0 <= column - before < once_bins):
                        for c in range(channels):
                            pixel_C[c] = _ZERO
                        continue
                    m = 2 * (column - before)
                    x0, x1, x2 = scratch[2 * a, m], scratch[2 * a, m + 1], scratch[2 * a, m + 2]
                    x3, x4, x5 = scratch[2 * a + 1, m], scratch[2 * a + 1, m + 1], scratch[2 * a + 1, m + 2]
                    x6, x7, x8 = scratch[2 * a + 2, m], scratch[2 * a + 2, m + 1], scratch[2 * a + 2, m + 2]
                    for c in range(channels):
                        y = bias_C[c] + x0 * weight_9C[0, c] + x1 * weight_9C[1, c] + x2 * weight_9C[2, c]
                        y += x3 * weight_9C[3, c] + x4 * weight_9C[4, c] + x5 * weight_9C[5, c]
                        y += x6 * weight_9C[6, c] + x7 * weight_9C[7, c] + x8 * weight_9C[8, c]
                        pixel_C[c] = _ZERO if y < _ZERO else y  # NaN stays
            left, middle, right = (2 * f) % 3 * 3, (2 * f + 1) % 3 * 3, (2 * f + 2) % 3 * 3
            left += _FIRST_FRAMES
            middle += _FIRST_FRAMES
            right += _FIRST_FRAMES
            out_C = out_BTFC[b, t, f]
            for c in range(channels):
                y = scratch[left, c] * second_9C[0, c] + scratch[middle, c] * second_9C[1, c]
                y += scratch[right, c] * second_9C[2, c]
                y += scratch[left + 1, c] * second_9C[3, c] + scratch[middle + 1, c] * second_9C[4, c]
                y += scratch[right + 1, c] * second_9C[5, c]
                y += scratch[left + 2, c] * second_9C[6, c] + scratch[middle + 2, c] * second_9C[7, c]
                y += scratch[right + 2, c] * second_9C[8, c]
                out_C[c] = narrow(np.float32(y))


_STORES = {"plain": store_plain, "levels": store_levels}
_FUNCTIONS = (
    bounded_exponential,
    exponential,
    order_key,
    value_of_key,
    sigmoid,
    normalise,
    add_to_stream,
    probabilities,
)
_LOOPS = (
    norm, add_norm, add_norm_twice, activate, glu_depthwise, split_heads, softmax, join_heads, masked_softmax, subsample
)  # fmt: skip
# Types of arguments other than the model's, and int64.
_INTEGERS = dict.fromkeys(("recording_R", "first_B", "lengths_B", "once_B"), "int64")
_FLOATS = (
    "factor", "x_BTM", "weight_D", "bias_D", "weight2_D", "bias2_D", "weight_WD", "weight_9C", "bias_C", "second_9C", "u_D",
    "v_D", "y_scale_R", "y_bias_D", "y_bias_N", "y_bias_E", "out_scale_R",
)  # fmt: skip
_TYPES = {**_INTEGERS, **dict.fromkeys(_FLOATS, "float32"), "scratch": "float32 WN"}
_LEVELS = dict.fromkeys(("out_RD", "out_RN"), "uint8")
# The loops of a model with full attention and its convolutions' norms folded in, as a first batch needs them.
_STORED_PLAIN = ("subsample", "split_heads", "softmax")
_IN_ORDER = (
    "subsample", "norm", "activate", "add_norm", "split_heads", "softmax", "join_heads", "glu_depthwise", "add_norm_twice"
)  # fmt: skip


@made_once
def helpers(dtype: str) -> dict[str, Any]:
    """Return what loops call, compiled, by name."""
    sources = {"widen": READERS[dtype][0], "narrow": READERS[dtype][1], **{f.__name__: f for f in _FUNCTIONS}}
    variant = f"{dtype}_{digest_of(float_bits, sys.modules[__name__])}"
    names = compile_together(compile_helper(**loop_options()), sources, variant)
    return {name: names[name] for name in sources}


@made_once
def kernels(dtype: str, stores: str) -> dict[str, Any]:
    """Return the loops by name; the first call of each compiles it, or loads it from numba's cache.

    Args:
        dtype: "float32" or "bfloat16".
        stores: "plain" or "levels".
    """
    variant = f"{dtype}_{stores}_{digest_of(float_bits, sys.modules[__name__])}"
    names = compile_together(compile_helper(**loop_options()), {"store": _STORES[stores]}, variant, helpers(dtype))
    return {loop.__name__: compile_cached(rebind(loop, names, variant), **loop_options()) for loop in _LOOPS}


def compile_ahead(dtype: str, stores: str, is_packed: bool) -> Iterator[None]:
    """Compile, one at a time, the loops that a first batch needs, or load them.

    Args:
        dtype: As for kernels().
        stores: How loops before a matrix of the layers store rows.
        is_packed: The product of the layers' first matrix activates.
    """
    needed = [(name, "plain" if name in _STORED_PLAIN else stores) for name in _IN_ORDER]
    if is_packed:
        needed.remove(("activate", stores))
    if stores != "plain":
        needed.append(("add_norm", "plain"))  # behind the last layer
    for name, form in needed:
        loop = kernels(dtype, form)[name]
        loop.compile(argument_types(loop, STORED[dtype], _TYPES | (_LEVELS if form == "levels" else {})))
        yield
