"""int8 products without VNNI: sums are exact whatever the shape, the threads and the levels, and a tile is what it says."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe._system.jit import loop_options, rebind
from fastscribe._system.processors import has_avx2
from fastscribe.families.blocks import int8, int8_avx2
from fastscribe.families.blocks.int8 import Int8Linear, int8_linear, quantise_and_pack, quantise_rows, quantise_weight
from fastscribe.families.blocks.int8_avx2 import COLUMNS, ROWS, multiply, pack, product
from tests.conftest import torch_threads

SHIFT = 128


def case(rows: int, inputs: int, outputs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return levels and weights of all values, the most extreme ones beside each other, and scales."""
    random = torch.Generator().manual_seed(seed)
    levels_RK = torch.randint(0, 256, (rows, inputs), dtype=torch.uint8, generator=random)
    weight_NK = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8, generator=random)
    levels_RK[0], weight_NK[0] = 0, -128
    levels_RK[-1], weight_NK[-1] = 255, 127
    return levels_RK, weight_NK, torch.rand(outputs, generator=random) + 0.5


def exact(levels_RK: torch.Tensor, weight_NK: torch.Tensor, scale_N: torch.Tensor) -> torch.Tensor:
    return ((levels_RK.long() - SHIFT) @ weight_NK.long().t()).float() * scale_N


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 230), st.integers(1, 1100), st.integers(1, 70), st.integers(0, 2**31))
def test_sums_are_exact(rows: int, inputs: int, outputs: int, seed: int) -> None:
    levels_RK, weight_NK, scale_N = case(rows, inputs, outputs, seed)
    assert torch.equal(product(levels_RK, pack(weight_NK), scale_N), exact(levels_RK, weight_NK, scale_N))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", [(32, 6), (48, 7), (40, 64)], ids=str)
def test_packing_equals_its_steps(shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one loop or not, levels and scales are those of `quantise_weight`, ties and a row of zeros included."""
    monkeypatch.setattr(int8, "has_native_int8", lambda: False)
    torch.manual_seed(0)
    weight_NK = (torch.randn(shape) * 10.0 ** torch.randint(-3, 2, (shape[0], 1))).to(dtype)
    weight_NK[3], weight_NK[5], weight_NK[5, 4] = 0.0, 2.5, -127.0  # a scale of one: 2.5 is a tie
    levels_NK, wanted_N = quantise_weight(weight_NK)
    packed_PX, scale_N = quantise_and_pack(weight_NK)
    assert torch.equal(packed_PX, pack(levels_NK))
    assert torch.equal(scale_N, wanted_N)
    assert (int8_avx2.quantise_and_pack(weight_NK) is not None) == (shape == (32, 6))


def test_no_rows() -> None:
    levels_RK, weight_NK, scale_N = case(1, 20, 30)
    assert product(levels_RK[:0], pack(weight_NK), scale_N).shape == (0, 30)


def test_threads_share_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    levels_RK, weight_NK, scale_N = case(205, 600, 40)
    monkeypatch.setattr(int8_avx2, "_MIN_PRODUCTS", 1)
    parts: list[tuple[int, int]] = []
    share = int8_avx2.share

    def noted(shares: Any, work: Any) -> None:
        parts.extend(shares)
        share(shares, work)

    monkeypatch.setattr(int8_avx2, "share", noted)
    with torch_threads(3):
        found_RN = product(levels_RK, pack(weight_NK), scale_N)
    assert len(parts) == 3
    assert torch.equal(found_RN, exact(levels_RK, weight_NK, scale_N))


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 17), (ROWS, 2, COLUMNS)], ids=str)
def test_the_slow_tile_is_the_definition(shape: tuple[int, int, int]) -> None:
    """Python runs the same loop with the tile that is written in NumPy."""
    rows, inputs, outputs = shape
    levels_RK, weight_NK, scale_N = case(*shape)
    packed, out_RN = pack(weight_NK), np.full((rows, outputs), np.nan, np.float32)
    pairs, tiles = -(-inputs // 2), -(-rows // ROWS)
    memory = (np.full(tiles * pairs * ROWS, 9, np.int32), np.full(pairs * 2 * COLUMNS, 9, np.int16))
    sums = np.full(tiles * ROWS * COLUMNS, 9, np.int32)
    multiply(levels_RK.numpy().astype(np.int32), packed.numpy(), scale_N.numpy(), out_RN, *memory, sums, 0, rows)
    assert torch.equal(torch.from_numpy(out_RN), exact(levels_RK, weight_NK, scale_N))


def test_a_layer_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "has_native_int8", lambda: False)
    torch.manual_seed(0)
    linear = torch.nn.Linear(300, 70).requires_grad_(False)
    x_BTK = torch.randn(2, 9, 300)
    layer = Int8Linear(linear)
    assert not layer.uses_onednn
    torch.testing.assert_close(layer(x_BTK), int8_linear(x_BTK, linear.weight, linear.bias), rtol=1e-5, atol=1e-5)
    levels_RK = quantise_rows(x_BTK.flatten(0, 1))[0]
    assert layer.product(levels_RK, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.skipif(not has_avx2(), reason="this processor has no AVX2")
def test_a_tile_is_in_registers() -> None:
    """A tile of products is twelve instructions, which LLVM finds in what `add_tile` is written in; with VNNI they add too."""
    import numba

    names = vars(int8_avx2) | {"add_tile": int8_avx2._vector_tile()}
    u8, i8, i16, i32, f32 = numba.uint8, numba.int8, numba.int16, numba.int32, numba.float32
    kinds = (u8[:, ::1], i8[:, ::1], f32[::1], f32[:, ::1], i32[::1], i16[::1], i32[::1], numba.intp, numba.intp)
    loop = numba.njit(kinds, **loop_options())(rebind(multiply, names, "test"))
    assembly = "".join(loop.inspect_asm().values())
    assert assembly.count("vpmaddwd") + assembly.count("vpdpwssd") >= ROWS * COLUMNS // 8
    assert assembly.count("vpmulld") == 0
