"""Large matrices quantised and packed for int8 products in one loop, for loading.

oneDNN's own packing takes five times as long, two thirds of a 0.6B model's time to load: it moves one number at a time. Its
layout is blocks of outputs; in a block four inputs of each output stand together, and behind the matrix are the negative sums
of each output's levels, which correct products of shifted inputs. For each shape oneDNN packs a made-up matrix once; where
the loop does not give the same bytes, oneDNN packs all matrices of this shape. Either way the result is the same.

Shapes: N outputs, K inputs, M outputs of a block.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastscribe._system import float_bits
from fastscribe._system.float_bits import READERS, as_numpy
from fastscribe._system.jit import (
    compile_cached,
    compile_helper,
    compile_together,
    digest_of,
    made_once,
    rebind,
    runs_in_python,
)
from fastscribe.errors import first_line
from fastscribe.families.blocks import row_kernels
from fastscribe.families.blocks.row_kernels import LARGEST_LEVEL, MIN_MAXIMUM, SIGN_OFF
from fastscribe.types import AnyArray, Float32Array

MIN_WEIGHTS = 1 << 19  # of a matrix; narrower models transcribe a short recording in less time than numba is loaded in
_BLOCKS = (64, 48, 32, 24, 16, 8)
_INPUTS = 4  # that stand together
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_ROUNDING = np.float32(1.5 * 2**23)  # a float32 near it has no fraction: adding it rounds to nearest, ties to even
PROBLEMS: list[str] = []  # why this torch does not say what its layouts are
_ROUNDED_ZERO = np.int32(_ROUNDING.view(np.int32))

widen = READERS["float32"][0]  # `_loop` replaces it


@dataclass(frozen=True)
class _Layout:
    """oneDNN's layout of a shape."""

    packed: torch.Tensor  # a matrix in it
    block: int  # M


def pack(weight_NK: torch.Tensor) -> tuple[torch.Tensor, Float32Array] | None:
    """Quantise a matrix as `int8.quantise_weight` does and pack the levels as oneDNN does.

    Args:
        weight_NK: A float matrix on the CPU.

    Returns:
        The opaque tensor that oneDNN's products take, and the scale of each output [N]; None if oneDNN must pack it.
    """
    if weight_NK.numel() < MIN_WEIGHTS or weight_NK.dtype not in DTYPES or runs_in_python():
        return None
    layout = _layout(*weight_NK.shape)
    if layout is None:
        return None
    packed = layout.packed.clone()
    return packed, fill(weight_NK, _bytes_of(packed), layout.block)


@made_once
def _layout(outputs: int, inputs: int) -> _Layout | None:
    """Return oneDNN's layout of a shape, or None if it is none that the loop knows."""
    levels_NK = torch.from_numpy(np.random.default_rng(0).integers(-127, 128, (outputs, inputs), np.int8))
    levels_NK[:, 0] = 127  # scales are one
    packed = torch.ops.onednn.qlinear_prepack(levels_NK, None)
    try:
        wanted = _bytes_of(packed)
    except (RuntimeError, AttributeError) as error:  # private operators, which another torch may lack
        PROBLEMS.append(first_line(error))
        return None
    for block in _BLOCKS:
        if outputs % block == 0 and inputs % _INPUTS == 0 and len(wanted) == outputs * inputs + 4 * outputs:
            found = np.zeros_like(wanted)
            fill(levels_NK.float(), found, block)
            if np.array_equal(found, wanted):
                return _Layout(packed, block)
    return None


def _bytes_of(packed: torch.Tensor) -> AnyArray:
    """Return the memory of an opaque tensor. It must outlive the array."""
    address, size = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int8)), (size,))


def fill(weight_NK: torch.Tensor, packed: AnyArray, block: int, inputs_together: int = _INPUTS) -> Float32Array:
    """Quantise a matrix as `int8.quantise_weight` does. Write the packed levels, and behind them the sums.

    Args:
        weight_NK: A matrix of a dtype in DTYPES on the CPU, whose sizes are multiples of the two below.
        packed: int8 memory of N * K levels and N int32 sums.
        block: Outputs of a block.
        inputs_together: Inputs of an output that stand together, 2 or 4.

    Returns:
        The outputs' scales [N].
    """
    outputs, inputs = weight_NK.shape
    together = np.dtype(f"int{8 * inputs_together}")
    levels, sums_N = packed[: outputs * inputs].view(together), packed[outputs * inputs :].view(np.int32)
    levels_MK, scale_N = np.empty((block, inputs), np.int8), np.empty(outputs, np.float32)
    packed_BQM = levels.reshape(outputs // block, inputs // inputs_together, block)
    loop = _loop(DTYPES[weight_NK.dtype])
    loop(as_numpy(weight_NK.contiguous()), scale_N, levels_MK, levels_MK.view(together), packed_BQM, sums_N)
    return scale_N


def quantise_and_pack(
    weight_NK: Any, scale_N: Any, levels_MK: Any, together_MQ: Any, packed_BQM: Any, sums_N: Any
) -> None:
    """Quantise a block of outputs, and write its levels, those of two or four inputs at once.

    together_MQ is levels_MK, seen as numbers of as many bytes.

    Shapes: B blocks, Q groups of inputs that stand together.
    """
    blocks, groups, outputs = packed_BQM.shape
    inputs = weight_NK.shape[1]
    for b in range(blocks):
        for m in range(outputs):
            n = b * outputs + m
            largest = np.uint32(0)
            for k in range(inputs):
                magnitude = np.uint32(np.float32(widen(weight_NK[n, k])).view(np.uint32) & SIGN_OFF)
                largest = magnitude if magnitude > largest else largest
            maximum = np.uint32(largest).view(np.float32)
            scale = np.float32((MIN_MAXIMUM if maximum < MIN_MAXIMUM else maximum) / LARGEST_LEVEL)
            scale_N[n] = scale
            total = np.int32(0)
            for k in range(inputs):
                rounded = np.float32(np.float32(np.float32(widen(weight_NK[n, k])) / scale) + _ROUNDING)
                level = np.int32(rounded.view(np.int32) - _ROUNDED_ZERO)
                total += level
                levels_MK[m, k] = np.int8(level)
            sums_N[n] = -total
        for q in range(groups):
            for m in range(outputs):
                packed_BQM[b, q, m] = together_MQ[m, q]


@made_once
def _loop(dtype: str) -> Callable[..., None]:
    """Compile the loop for weights of a dtype, without liberties in arithmetic: levels are those of the reference."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    variant = f"{dtype}_{digest_of(float_bits, row_kernels, sys.modules[__name__])}"
    names = compile_together(compile_helper(**options), {"widen": READERS[dtype][0]}, variant)
    return compile_cached(rebind(quantise_and_pack, names | {**globals(), **names}, variant), **options)
