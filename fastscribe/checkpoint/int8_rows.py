"""Storage of matrices in 8 bits, with a scale per row: half the size of bfloat16. They are float32 as soon as they are read.

A tensor W of rows R is stored as int8 values, and as W.row_scales, [R] in float32. Only fastscribe's own folders have these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.errors import CheckpointError

if TYPE_CHECKING:
    import torch

INT8 = "int8"
_SUFFIX = ".row_scales"
_LEVELS = 127  # on either side of zero
_MIN_COLUMNS = 32  # shorter rows would save little
_MIN_SCALE = 1e-30  # of a row of zeros


def is_stored_in_rows(source: TensorSource) -> bool:
    """Return True for a matrix, or a convolution's kernel, with long rows."""
    return len(source.shape) > 1 and source.num_elements >= _MIN_COLUMNS * source.shape[0] > 0


def quantised(
    sources: Mapping[str, TensorSource], dtype: torch.dtype
) -> tuple[dict[str, TensorSource], dict[str, torch.dtype]]:
    """Return the tensors to store and their dtypes: matrices with long rows in 8 bits with their scales, others in `dtype`."""
    import torch

    stored: dict[str, TensorSource] = {}
    dtypes: dict[str, torch.dtype] = {}
    for name, source in sources.items():
        if is_stored_in_rows(source):
            scales = name + _SUFFIX
            stored[name] = TensorSource(INT8, source.shape, partial(_values, source))
            stored[scales] = TensorSource("float32", source.shape[:1], partial(_scales, source))
            dtypes[name], dtypes[scales] = torch.int8, torch.float32
        else:
            stored[name], dtypes[name] = source, dtype
    return stored, dtypes


def _scales(source: TensorSource) -> torch.Tensor:
    return source.read().float().flatten(1).abs().amax(dim=1).div(_LEVELS).clamp_(min=_MIN_SCALE)


def _values(source: TensorSource) -> torch.Tensor:
    import torch

    rows = source.read().float().flatten(1) / _scales(source)[:, None]
    return rows.round().to(torch.int8).view(source.shape)


def restored(sources: Mapping[str, TensorSource], where: object) -> dict[str, TensorSource]:
    """Return the tensors of a file with those in 8 bits as float32; reads no values.

    Raises:
        CheckpointError: the scales of a tensor in 8 bits are missing or do not fit.
    """
    found = {}
    for name, source in sources.items():
        if source.dtype == INT8:
            scales = sources.get(name + _SUFFIX)
            if scales is None or scales.dtype != "float32" or not source.shape or scales.shape != source.shape[:1]:
                raise CheckpointError(where, f"damaged weights: {name[:120]} has 8 bits and not one scale for each row")
            found[name] = TensorSource("float32", source.shape, partial(_product, source, scales), INT8)
        elif (values := sources.get(name.removesuffix(_SUFFIX))) is None or values.dtype != INT8:
            found[name] = source
    return found


def _product(source: TensorSource, scales: TensorSource) -> torch.Tensor:
    rows = source.read().float()
    return rows.mul_(scales.read().view(-1, *[1] * (len(source.shape) - 1)))
