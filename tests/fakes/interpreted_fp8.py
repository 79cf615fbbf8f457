"""fp8's Triton kernel, run by Triton's interpreter, equals torch's form. test_triton_kernels.py runs this file in a process of
its own: whether kernels are interpreted is settled when Triton is imported. No GPU takes part.
"""

from __future__ import annotations

import pytest
import torch

from fastscribe.cuda import fp8_format, fp8_triton
from fastscribe.families.blocks import fp8


def some_rows(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """A matrix with a row of zeros."""
    torch.manual_seed(0)
    x_RK = torch.randn(shape).mul(7).to(dtype)
    x_RK[0] = 0
    return x_RK


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float32, (7, 100)), (torch.bfloat16, (2, 513))], ids=str)
def test_scales_and_quotients(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """The output is float32, because the interpreter drops the carry if rounding to fp8 reaches the next power of two."""
    x_RK = some_rows(shape, dtype)
    scale_R1, quotient_RK = torch.empty(shape[0], 1), torch.empty(shape)
    columns = 1 << (shape[1] - 1).bit_length()
    fp8_triton.quantise_rows_kernel[(shape[0],)](
        x_RK, quotient_RK, scale_R1, shape[1], fp8_format.MAX_VALUE, fp8_format.MIN_MAXIMUM, columns
    )
    _, expected_R1 = fp8.quantise_rows(x_RK)
    assert torch.equal(scale_R1, expected_R1)
    assert torch.equal(quotient_RK, x_RK.float() / expected_R1)


def test_values_that_need_no_rounding() -> None:
    x_RK = torch.tensor([[448.0, -2.0, 0.0, 0.875, -13.0], [-448.0, 1.0, 2.0**-6, 2.0**-9, 240.0]])
    values_RK, scale_R1 = fp8_triton.quantise_rows(x_RK)
    assert values_RK.dtype == torch.float8_e4m3fn
    assert torch.equal(scale_R1, torch.ones(2, 1))
    assert torch.equal(values_RK.float(), x_RK)


def test_no_rows() -> None:
    values_RK, scale_R1 = fp8_triton.quantise_rows(torch.empty(0, 16))
    assert values_RK.shape == (0, 16)
    assert scale_R1.shape == (0, 1)
