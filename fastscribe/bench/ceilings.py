"""What the device can do at best: the denominators of everything else. Random data, because zeros run faster."""

from __future__ import annotations

import torch

from fastscribe.bench.timing import time_call


def matmul(device: torch.device, m: int, k: int, n: int, dtype: torch.dtype) -> dict[str, float]:
    """[m, k] x [k, n], the second stored as nn.Linear stores it."""
    a = torch.randn(m, k, device=device, dtype=dtype)
    b = torch.randn(n, k, device=device, dtype=dtype)
    return _rate(time_call(lambda: a @ b.t(), device).row(), m, k, n)


def scaled_matmul(device: torch.device, m: int, k: int, n: int, scales: str) -> dict[str, float]:
    """The same in fp8 (e4m3) with bf16 results; `scales` is "tensor" or "row"."""
    a = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
    shape_a, shape_b = ((m, 1), (1, n)) if scales == "row" else ((), ())
    scale_a, scale_b = torch.ones(shape_a, device=device), torch.ones(shape_b, device=device)

    def call() -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)

    return _rate(time_call(call, device).row(), m, k, n)


def _rate(row: dict[str, float], m: int, k: int, n: int) -> dict[str, float]:
    return {"tflop_per_s": 2e-9 * m * k * n / row["ms"], **row}


def copy(device: torch.device, num_bytes: int) -> dict[str, float]:
    """Device to device; bytes read and bytes written both count."""
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    row = time_call(lambda: target.copy_(source), device).row()
    return {"gb_per_s": 2e-6 * num_bytes / row["ms"], **row}


def host_to_device(device: torch.device, num_bytes: int, pinned: bool) -> dict[str, float]:
    source = torch.zeros(num_bytes, dtype=torch.uint8)
    if pinned:
        source = source.pin_memory()
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    row = time_call(lambda: target.copy_(source, non_blocking=True), device).row()
    return {"gb_per_s": 1e-6 * num_bytes / row["ms"], **row}
