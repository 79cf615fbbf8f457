"""Products of int8 levels on x86 processors without VNNI, where oneDNN's sums overflow: AVX2, or AVX-512 without VNNI.

AVX2 multiplies 16 pairs of 16-bit numbers and adds neighbours in one instruction (vpmaddwd), twice as many as it multiplies in
float32. So levels are widened to 16 bits on the way, where they stay in the caches, and all sums are exact. AVX2's instruction
for bytes (vpmaddubsw), which oneDNN and ONNX Runtime take, cuts sums off at 16 bits.

A tile is ROWS x COLUMNS sums in registers. The weights are stored as int8 in panels of COLUMNS outputs; in a panel two
inputs of each output stand together.

Shapes: R rows, K inputs, N outputs, P panels, Q pairs of inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fastscribe._system.float_bits import as_numpy
from fastscribe._system.jit import compile_cached, digest_of, loop_options, rebind
from fastscribe._system.thread_shares import equal_parts, share
from fastscribe.families.blocks.int8_packing import DTYPES, fill
from fastscribe.families.blocks.row_kernels import SHIFT

# Of a tile: its sums are in twelve registers; two hold weights, and two a pair of inputs and products.
ROWS, COLUMNS = 6, 16
_PANEL = 2 * COLUMNS  # levels of a pair of inputs
_BLOCK = 256  # pairs of inputs: a panel's are 16 KiB in 16 bits, which the first-level cache holds
_MAX_ROWS = 96  # widened at once
_MIN_PRODUCTS = 1 << 24  # of a thread's share: about a millisecond
_BITS = 0xFFFF


def quantise_and_pack(weight_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Quantise a matrix and arrange its levels, in one loop.

    Args:
        weight_NK: A matrix on the CPU.

    Returns:
        What `pack` makes of the levels of `int8.quantise_weight`, and the scales [N]; None if the loop is not for its sizes or
        its dtype.
    """
    outputs, inputs = weight_NK.shape
    if weight_NK.dtype not in DTYPES or outputs % COLUMNS or inputs % 2:
        return None
    memory = np.empty(outputs * inputs + 4 * outputs, np.int8)  # with sums behind the levels, which nothing needs here
    scale_N = fill(weight_NK, memory, COLUMNS, inputs_together=2)
    return torch.from_numpy(memory)[: outputs * inputs].view(outputs // COLUMNS, -1), torch.from_numpy(scale_N)


def pack(levels_NK: torch.Tensor) -> torch.Tensor:
    """Arrange int8 levels [N, K] as panels [P, Q * 2 * COLUMNS], with zeros for outputs and inputs that are missing."""
    outputs, inputs = levels_NK.shape
    padded_NK = F.pad(levels_NK, (0, inputs % 2, 0, -outputs % COLUMNS)).contiguous()
    pairs_PCQ = padded_NK.view(torch.int16).unflatten(0, (-1, COLUMNS))
    pairs_PQC: torch.Tensor = pairs_PCQ.transpose(1, 2).contiguous()
    return pairs_PQC.view(torch.int8).flatten(1)


def product(levels_RK: torch.Tensor, weight_PX: torch.Tensor, scale_N: torch.Tensor) -> torch.Tensor:
    """Compute (levels - SHIFT) W' * scale.

    Args:
        levels_RK: uint8 levels of the inputs [R, K].
        weight_PX: From `pack`.
        scale_N: The outputs' scales [N], float32.

    Returns:
        [R, N] in float32. Sums are exact before they are scaled.
    """
    rows, outputs, num_pairs = len(levels_RK), len(scale_N), weight_PX.shape[1] // _PANEL
    out_RN = scale_N.new_empty(rows, outputs)
    arrays = (as_numpy(levels_RK.contiguous()), as_numpy(weight_PX), as_numpy(scale_N), as_numpy(out_RN))
    loop = _loop()

    def work(start: int, stop: int) -> None:
        tiles = -(-min(stop - start, _MAX_ROWS) // ROWS)
        left = np.empty(tiles * num_pairs * ROWS, np.int32)
        right, sums = np.empty(min(num_pairs, _BLOCK) * _PANEL, np.int16), np.empty(tiles * ROWS * COLUMNS, np.int32)
        loop(*arrays, left, right, sums, start, stop)

    worthwhile = rows * outputs * num_pairs * 2 // _MIN_PRODUCTS
    share(equal_parts(rows, max(1, min(torch.get_num_threads(), worthwhile))), work)
    return out_RN


def multiply(
    levels_RK: Any, weight_PX: Any, scale_N: Any, out_RN: Any, left: Any, right: Any, sums: Any, start: Any, stop: Any
) -> None:
    """Compute the rows from `start` to `stop`. `left`, `right` and `sums` are memory for widened levels and for tiles."""
    inputs = levels_RK.shape[1]
    panels, num_pairs = weight_PX.shape[0], weight_PX.shape[1] // _PANEL
    for first in range(start, stop, _MAX_ROWS):
        rows = min(_MAX_ROWS, stop - first)
        tiles = (rows + ROWS - 1) // ROWS
        for row in range(tiles * ROWS):
            offset = row // ROWS * num_pairs * ROWS + row % ROWS
            if row >= rows:
                for q in range(num_pairs):
                    left[offset + q * ROWS] = 0
                continue
            levels_K = levels_RK[first + row]
            for q in range(inputs // 2):
                low, high = np.int32(levels_K[2 * q]) - SHIFT, np.int32(levels_K[2 * q + 1]) - SHIFT
                left[offset + q * ROWS] = np.int32((low & _BITS) | (high << 16))
            if inputs % 2:
                left[offset + inputs // 2 * ROWS] = np.int32((np.int32(levels_K[inputs - 1]) - SHIFT) & _BITS)
        for p in range(panels):
            weight_X = weight_PX[p]
            for i in range(tiles * ROWS * COLUMNS):
                sums[i] = 0
            for begin in range(0, num_pairs, _BLOCK):
                count = min(_BLOCK, num_pairs - begin)
                levels_X = weight_X[begin * _PANEL : (begin + count) * _PANEL]
                for i in range(len(levels_X)):
                    right[i] = levels_X[i]
                for tile in range(tiles):
                    add_tile(left, (tile * num_pairs + begin) * ROWS, right, count, sums, tile * ROWS * COLUMNS)
            scale_C = scale_N[p * COLUMNS : (p + 1) * COLUMNS]
            for row in range(rows):
                out_C, sum_C = out_RN[first + row, p * COLUMNS : (p + 1) * COLUMNS], sums[row * COLUMNS :]
                for c in range(len(scale_C)):
                    out_C[c] = np.float32(np.float32(sum_C[c]) * scale_C[c])


def add_tile(left: Any, left_start: Any, right: Any, num_pairs: Any, sums: Any, sums_start: Any) -> None:
    """Add a tile's products to its sums. Here slowly: `_loop` replaces it.

    Args:
        left: Pairs of 16-bit inputs as int32, ROWS for each pair of inputs.
        left_start: Where they begin.
        right: 16-bit weights, 2 * COLUMNS for each pair of inputs.
        num_pairs: Pairs of inputs, at least one.
        sums: int32, ROWS * COLUMNS.
        sums_start: Where they begin.
    """
    pairs_QR = left[left_start : left_start + num_pairs * ROWS].reshape(num_pairs, ROWS)
    inputs_QRI = pairs_QR.view(np.int16).reshape(num_pairs, ROWS, 2).astype(np.int32)
    weight_QCI = right[: num_pairs * _PANEL].reshape(num_pairs, COLUMNS, 2).astype(np.int32)
    sums[sums_start : sums_start + ROWS * COLUMNS] += np.einsum("qri,qci->rc", inputs_QRI, weight_QCI).ravel()


@cache
def _loop() -> Callable[..., None]:
    """Compile `multiply` with a tile in vector registers."""
    variant = digest_of(sys.modules[__name__])
    return compile_cached(rebind(multiply, globals() | {"add_tile": _vector_tile()}, variant), **loop_options())


def _compiles_for_avx2() -> bool:
    """Return True if numba compiles for this processor, and it has AVX2."""
    import numba
    from llvmlite.binding import get_host_cpu_features

    config: Any = numba.config
    return not (config.CPU_NAME or config.CPU_FEATURES) and bool(get_host_cpu_features().get("avx2", False))


def _vector_tile() -> Callable[..., None]:
    """Return `add_tile` for numba, written in LLVM's instructions.

    numba's own loops would keep the sums in memory. vpmaddwd is named where numba compiles for a processor that has it; older
    versions of LLVM do not find it in "widen, multiply, add neighbours", which is for other processors.
    """
    from llvmlite import ir
    from numba import types
    from numba.core.cgutils import create_struct_proxy
    from numba.extending import intrinsic

    index, sum_ = ir.IntType(64), ir.IntType(32)
    products, sums8, levels16 = ir.VectorType(sum_, 16), ir.VectorType(sum_, 8), ir.VectorType(ir.IntType(16), 16)
    vectors, names_vpmaddwd = COLUMNS // 8, _compiles_for_avx2()

    def add_pairs(builder: Any, one: Any, other: Any) -> Any:
        if names_vpmaddwd:
            kind = ir.FunctionType(sums8, (levels16, levels16))
            return builder.call(builder.module.declare_intrinsic("llvm.x86.avx2.pmadd.wd", (), kind), (one, other))
        product = builder.mul(builder.sext(one, products), builder.sext(other, products))
        halves = [
            builder.shuffle_vector(
                product, ir.Constant(products, ir.Undefined), ir.Constant(sums8, list(range(at, 16, 2)))
            )
            for at in range(2)
        ]
        return builder.add(*halves)

    def pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, element: Any) -> Any:
        data = create_struct_proxy(array_type)(context, builder, value=array).data
        start = data if offset is None else builder.gep(data, [offset])
        return builder.bitcast(start, element.as_pointer())

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, left_start, right, num_pairs, sums, sums_start = arguments
        kinds = signature.args
        inputs = pointer(context, builder, kinds[0], left, left_start, sum_)
        weights = pointer(context, builder, kinds[2], right, None, levels16)
        tile = pointer(context, builder, kinds[4], sums, sums_start, sums8)
        places = [builder.gep(tile, [index(i)]) for i in range(ROWS * vectors)]
        before, begin = builder.block, [builder.load(place, align=4) for place in places]
        loop, after = builder.append_basic_block("pairs"), builder.append_basic_block("after_pairs")
        builder.branch(loop)
        builder.position_at_end(loop)
        q = builder.phi(index)
        totals = [builder.phi(sums8) for _ in places]
        weight = [
            builder.load(builder.gep(weights, [builder.add(builder.mul(q, index(vectors)), index(v))]), align=2)
            for v in range(vectors)
        ]
        added = []
        for row in range(ROWS):
            place = builder.gep(inputs, [builder.add(builder.mul(q, index(ROWS)), index(row))])
            pair = builder.insert_element(ir.Constant(sums8, ir.Undefined), builder.load(place, align=4), sum_(0))
            repeated = builder.shuffle_vector(pair, ir.Constant(sums8, ir.Undefined), ir.Constant(sums8, [0] * 8))
            row16 = builder.bitcast(repeated, levels16)
            added += [
                builder.add(totals[row * vectors + v], add_pairs(builder, row16, weight[v])) for v in range(vectors)
            ]
        following = builder.add(q, index(1))
        for phi, first, last in zip([q, *totals], [index(0), *begin], [following, *added], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(last, loop)
        builder.cbranch(builder.icmp_signed("<", following, num_pairs), loop, after)
        builder.position_at_end(after)
        for place, total in zip(places, added, strict=True):
            builder.store(total, place, align=4)
        return context.get_dummy_value()

    @intrinsic
    def vector_tile(
        typing: Any, left: Any, left_start: Any, right: Any, num_pairs: Any, sums: Any, sums_start: Any
    ) -> Any:
        arguments = (left, types.intp, right, types.intp, sums, types.intp)
        return types.none(*arguments), codegen

    tile: Callable[..., None] = vector_tile
    return tile
