"""The recursion on a GPU: pass torch tensors to numba's kernels and launch them.

The counterpart of cpu.py, with the same two functions. Numba gets the tensors' memory without a copy, on torch's current
stream; nothing here waits for the GPU. Importing this file imports no numba; the first loss does, and compiles the kernels
for the GPU in a second or two.

As on the CPU, lattices and losses are float64, and everything over a row of logits is float32. A cell takes a handful of
float64 additions, little beside its row even on a GPU with slow float64; exponentials and logarithms are float32.

Shapes as in recursion.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastscribe.cuda.device import small_to_device
from fastscribe.errors import UsageError, first_line
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.loss.cpu import DTYPES, rules_of, steps_of
from fastscribe.training.loss.recursion import Arcs, Batch, Rules
from fastscribe.types import Int64Array

if TYPE_CHECKING:
    from fastscribe.training.loss.cuda_kernels import DeviceBatch

WARP_THREADS = 32
WARPS = 8  # per block over the cells of one frame
MAX_THREADS = 512  # per block over an anti-diagonal
_TYPESTRS = {
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.int64: "<i8",
    torch.float16: "<u2",
    torch.bfloat16: "<u2",
}


@dataclass(frozen=True)
class Lattice:
    """The arrays that `losses` keeps for `write_gradient` on the device; none is as wide as the logits."""

    device_batch: DeviceBatch
    rules: Rules
    arcs: Arcs
    alpha_C: Any
    beta_C: Any
    log_likelihood_B: Any
    num_rows: int


def losses(
    logits_CW: torch.Tensor,
    batch: Batch,
    *,
    num_tokens: int,
    blank_id: int,
    config: TransducerLossConfig,
    wants_gradient: bool = True,
) -> tuple[torch.Tensor, Lattice]:
    """Compute the losses as cpu.losses does, on the logits' device. Raises UsageError if numba cannot use the GPU.

    write_gradient needs `wants_gradient`: other blocks compute alpha beside beta.
    """
    rules = rules_of(config, num_tokens, blank_id)
    batch_size = len(batch.num_frames_B)
    max_labels, max_rows = int(batch.num_labels_B.max(initial=0)), int(_rows(batch).max(initial=0))
    with _current(logits_CW.device) as stream:
        kernels = _kernels(DTYPES[logits_CW.dtype])
        device_batch, arcs = _to_device_batch(batch, logits_CW.device), _empty_arcs(logits_CW, config)
        log_likelihood_B = torch.empty(batch_size, dtype=torch.float64, device=logits_CW.device)
        beta_C = _empty(logits_CW, len(logits_CW), torch.float64)
        alpha_C = _empty(logits_CW, len(logits_CW) if wants_gradient else 0, torch.float64)
        lattice = Lattice(device_batch, rules, arcs, alpha_C, beta_C, as_array(log_likelihood_B), max_rows)
        if batch_size and max_rows:
            warps = (batch_size * max_rows, (WARP_THREADS, WARPS), stream)
            kernels["read_arcs"][warps](_cells(logits_CW), device_batch, rules, arcs, max_rows)
        if batch_size:
            threads = min(MAX_THREADS, -(-(max_labels + 1) // WARP_THREADS) * WARP_THREADS)
            diagonals = ((batch_size, 2 if wants_gradient else 1), threads, stream)
            kernels["fill_lattices"][diagonals](device_batch, arcs, alpha_C, beta_C, lattice.log_likelihood_B)
    return (log_likelihood_B * -(1.0 + config.fastemit)).float(), lattice


def write_gradient(lattice: Lattice, logits_CW: torch.Tensor, scale_B: torch.Tensor) -> None:
    """Write the gradient as cpu.write_gradient does."""
    if not len(scale_B) or not lattice.num_rows:
        return
    scale_B = scale_B.to(logits_CW.device, torch.float32).contiguous()
    with _current(logits_CW.device) as stream:
        ways = (lattice.alpha_C, lattice.beta_C, lattice.log_likelihood_B, as_array(scale_B), lattice.num_rows)
        kernel = _kernels(DTYPES[logits_CW.dtype])["write_gradient"]
        blocks = len(scale_B) * lattice.num_rows
        kernel[blocks, (WARP_THREADS, WARPS), stream](
            _cells(logits_CW), lattice.device_batch, lattice.rules, lattice.arcs, *ways
        )


def check_usable() -> None:
    """Raise UsageError, with a remedy, if numba cannot use a GPU."""
    if not _usable().SIMULATED:
        _compile_one()


@cache
def _usable() -> ModuleType:
    try:
        from numba import cuda

        from fastscribe.training.loss import cuda_kernels
    except ImportError as error:
        raise UsageError(
            f"the transducer loss on a GPU needs numba-cuda ({first_line(error)}): {_remedy()}, or train on --device cpu"
        ) from error
    if not cuda.is_available():
        problem = " ".join(str(cuda.cuda_error() or "").split())
        if problem:
            raise UsageError(f"the transducer loss on a GPU needs numba, which finds no CUDA driver: {problem}")
        raise UsageError(f"the transducer loss on a GPU needs numba, which finds no CUDA compiler: {_remedy()}")
    return cuda_kernels


@cache
def _compile_one() -> None:
    """Compile a kernel: numba finds a wrong or missing toolkit only then. Raises UsageError for it."""
    from numba import cuda
    from numba.cuda.cudadrv import error

    try:
        cuda.jit("void(float32[::1])")(_nothing)
    except (ImportError, RuntimeError, OSError, error.NvvmError, error.CudaDriverError, error.NvrtcError) as problem:
        raise UsageError(
            f"numba cannot compile for this GPU ({' '.join(str(problem).split())[:300]}): {_remedy()}"
        ) from problem


def _nothing(values: Any) -> None:
    values[0] = 0.0


def _remedy() -> str:
    """The extra with the compiler of torch's CUDA version, which the driver supports."""
    extra = "cu12" if (torch.version.cuda or "13").startswith("12") else "cu13"
    return f"pip install 'numba-cuda[{extra}]'"


@cache
def _kernels(dtype: str) -> dict[str, Any]:
    check_usable()
    kernels: dict[str, Any] = _usable().kernels(dtype)
    return kernels


@contextmanager
def _current(device: torch.device) -> Iterator[Any]:
    """Make the device numba's current one, as its kernels and arrays need; yield torch's stream there."""
    if _usable().SIMULATED:
        yield 0
        return
    from numba import cuda

    handle = torch.cuda.current_stream(device).cuda_stream
    with cuda.gpus[device.index], torch.cuda.device(device):
        yield cuda.external_stream(handle) if handle else 0


class _Memory:
    """A tensor in numba's array interface, 16-bit floats as uint16: torch's own interface lacks bfloat16."""

    def __init__(self, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        assert tensor.is_contiguous()
        self.tensor = tensor  # keeps the memory alive as long as the array
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": _TYPESTRS[tensor.dtype],
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 2,
        }


def as_array(tensor: torch.Tensor, num_rows: int | None = None) -> Any:
    """View the same memory as numba's array; on a GPU with num_rows as the first axis if it is given."""
    tensor = tensor.detach()
    if _usable().SIMULATED:
        return (tensor.view(torch.int16).numpy().view(np.uint16)) if tensor.itemsize == 2 else tensor.numpy()
    from numba import cuda

    shape = tuple(tensor.shape) if num_rows is None else (num_rows, *tensor.shape[1:])
    return cuda.as_cuda_array(_Memory(tensor, shape), sync=False)


def _cells(tensor_C: torch.Tensor) -> Any:
    """View cells as an array of one: kernels do not check bounds, and numba keeps every shape it sees for ever."""
    return as_array(tensor_C, 1)


def _empty(like: torch.Tensor, shape: int | tuple[int, ...], dtype: torch.dtype) -> Any:
    """An uninitialised array of cells."""
    return _cells(torch.empty(shape, dtype=dtype, device=like.device))


def _empty_arcs(logits_CW: torch.Tensor, config: TransducerLossConfig) -> Arcs:
    num_cells, num_durations = len(logits_CW), 0 if config.as_rnnt else len(config.durations)
    normaliser_C, blank_C, label_C = (_empty(logits_CW, num_cells, torch.float32) for _ in range(3))
    durations_CK = _empty(logits_CW, (num_cells, num_durations), torch.float32)
    blank_steps_K, label_steps_K = (
        as_array(small_to_device(steps_K, logits_CW.device)) for steps_K in steps_of(config)
    )
    return Arcs(normaliser_C, blank_C, label_C, durations_CK, blank_steps_K, label_steps_K)


def _to_device_batch(batch: Batch, device: torch.device) -> DeviceBatch:
    """Copy the batch to the device in one small transfer."""
    columns = (batch.first_cell_B, batch.stride_B, _rows(batch), batch.num_frames_B, batch.num_labels_B)
    batch_size, num_labels = batch.labels_BU.shape
    sent = small_to_device(np.concatenate([*columns, batch.labels_BU.ravel()]), device)
    parts = sent[: 5 * batch_size].view(5, batch_size).unbind(0)
    labels_BU = sent[5 * batch_size :].view(batch_size, num_labels)
    device_batch: DeviceBatch = _usable().DeviceBatch(*(as_array(part) for part in parts), as_array(labels_BU))
    return device_batch


def _rows(batch: Batch) -> Int64Array:
    """Frames of each utterance in the logits, including padding."""
    return np.bincount(batch.line_utterance_L, minlength=len(batch.num_frames_B)).astype(np.int64)
