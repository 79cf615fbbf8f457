"""`quantise_rows` of families/blocks/fp8.py as one Triton kernel: each row is read and written once. Needs triton to import.

Shapes: R rows, K columns.
"""

# The kernel is Triton's language, whose types are not Python's.
# mypy: allow-untyped-decorators, disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastscribe.cuda.fp8_format import FP8, MAX_VALUE, MIN_MAXIMUM


@triton.jit
def quantise_rows_kernel(
    x_ptr, out_ptr, scale_ptr, width, MAX_VALUE: tl.constexpr, MIN_MAXIMUM: tl.constexpr, COLUMNS: tl.constexpr
):
    """Quantise one row; COLUMNS is its width rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    inside = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x)), MIN_MAXIMUM) / MAX_VALUE
    tl.store(scale_ptr + row, scale)
    tl.store(out_ptr + row * width + columns, (x / scale).to(out_ptr.dtype.element_ty), mask=inside)


def quantise_rows(x_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise contiguous rows to (fp8 [R, K], float32 scale [R, 1])."""
    assert x_RK.is_contiguous()
    num_rows, width = x_RK.shape
    out_RK = torch.empty_like(x_RK, dtype=FP8)
    scale_R1 = x_RK.new_empty(num_rows, 1, dtype=torch.float32)
    if num_rows:
        columns = triton.next_power_of_2(width)
        warps = min(8, max(1, columns // 512))  # sixteen elements a thread
        with torch.cuda.device_of(x_RK):  # Triton launches on the current device
            quantise_rows_kernel[(num_rows,)](
                x_RK,
                out_RK,
                scale_R1,
                width,
                MAX_VALUE,
                MIN_MAXIMUM,
                columns,
                num_warps=warps,
                enable_fp_fusion=True,  # the default before Triton 3.10
            )
    return out_RK, scale_R1
