"""The form in which a CPU computes a model: its dtype, and its matrices quantised and packed."""

from __future__ import annotations

import torch
from torch import nn

from fastscribe._system.processors import has_native_bf16
from fastscribe.families.blocks.int8 import quantise_int8_
from fastscribe.families.blocks.packed import pack_linears_
from fastscribe.families.blocks.time_conv import pack_time_convs_
from fastscribe.families.conformer.cpu_subsampling import fuse_subsampling_


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
        quantise_int8_(part)
    rest = torch_dtype(dtype)
    fuse_subsampling_(part, rest)
    part.to(rest)
    pack_linears_(part, rest)
    pack_time_convs_(part, rest)
