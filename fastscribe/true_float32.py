"""Products in float32 proper. A process may let CUDA round float32 factors to TF32, whose ten bits of mantissa leave 66 dB
of a signal: well enough for the models that such a setting is meant for, too little for features and resampled audio.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def true_float32(device: torch.device) -> Iterator[None]:
    """Products asked of `device` inside are in float32, whatever the process has allowed.

    torch has no such setting for one call or thread, so the process's own is changed while the calls inside are being
    made, where it must be, and put back. Keep the block short: a product that another thread asks for meanwhile is in
    float32 too.
    """
    matmul = torch.backends.cuda.matmul
    if device.type != "cuda" or matmul.fp32_precision != "tf32":
        yield
        return
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = "tf32"
