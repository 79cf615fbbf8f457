"""The form in which a CPU computes a model: its dtype, and its matrices quantised and packed."""

from __future__ import annotations

import torch
from torch import nn

from fastscribe._system.processors import has_native_bf16
from fastscribe.families.blocks.forms import FusedOnCpu, PackedOnCpu
from fastscribe.families.blocks.packed import pack_linears_


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of everything that is not quantised."""
    if name == "int8":
        return torch.bfloat16 if has_native_bf16() else torch.float32
    return torch.float32 if name == "fp32" else torch.bfloat16


def to_cpu_form_(part: nn.Module, dtype: str, *, quantises: bool) -> None:
    """Convert a part of a model, which is in float32 on the CPU, in place.

    Args:
        part: The part, in its inference form (`optimise_`).
        dtype: The name of the model's dtype.
        quantises: int8 is for this part too: it is the encoder's.
    """
    if dtype == "int8" and quantises:
        from fastscribe.families.blocks.int8 import quantise_int8_

        quantise_int8_(part)
    rest = torch_dtype(dtype)
    for module in list(part.modules()):
        if isinstance(module, FusedOnCpu):
            module.fuse_for_cpu_(rest)
    part.to(rest)
    pack_linears_(part, rest)
    for module in list(part.modules()):
        if isinstance(module, PackedOnCpu):
            module.pack_for_cpu_(rest)
