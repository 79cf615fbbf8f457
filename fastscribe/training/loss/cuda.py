"""The recursion on a GPU: pass torch tensors to numba's kernels and launch them.

The counterpart of cpu.py, with the same functions. Numba gets the tensors' memory without a copy, on torch's current
stream; nothing here waits for the GPU. Importing this file imports no numba; the first loss does, and compiles the kernels
for the GPU in a second or two.

As on the CPU, lattices and losses are float64, and everything over a row of logits is float32. A cell takes a handful of
float64 additions, little beside its row even on a GPU with slow float64; exponentials and logarithms are float32.

Shapes as in recursion.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastscribe.cuda.device import small_to_device
from fastscribe.errors import UsageError, first_line
from fastscribe.training.loss import layout
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
    """As cpu.Lattice, on the device: the values of the cells as tensors, and again as the arrays that kernels take."""

    batch: Batch
    config: TransducerLossConfig
    rules: Rules
    cells: tuple[torch.Tensor, ...]  # of the arcs, then alpha_C and beta_C
    log_likelihood_B: torch.Tensor
    dtype: torch.dtype
    device_batch: DeviceBatch
    arcs: Arcs
    alpha_C: Any
    beta_C: Any
    num_rows: int  # of the longest utterance, including padding


def new_lattice(
    batch: Batch,
    logits: torch.Tensor,
    *,
    num_tokens: int,
    blank_id: int,
    config: TransducerLossConfig,
    wants_gradient: bool = True,
) -> Lattice:
    """Allocate the lattice of a batch as cpu.new_lattice does. Raises UsageError if numba cannot use the GPU."""
    device, num_cells = logits.device, layout.num_cells(batch)
    num_durations = 0 if config.as_rnnt else len(config.durations)
    normaliser_C, blank_C, label_C = (torch.empty(num_cells, device=device) for _ in range(3))
    durations_CK = torch.empty(num_cells, num_durations, device=device)
    alpha_C, beta_C = (
        torch.empty(n, dtype=torch.float64, device=device) for n in (num_cells if wants_gradient else 0, num_cells)
    )
    log_likelihood_B = torch.empty(len(batch.num_frames_B), dtype=torch.float64, device=device)
    with _current(device):
        steps = tuple(as_array(small_to_device(steps_K, device)) for steps_K in steps_of(config))
        cells = (normaliser_C, blank_C, label_C, durations_CK, alpha_C, beta_C)
        rules = rules_of(config, num_tokens, blank_id)
        return _lattice(batch, config, rules, cells, log_likelihood_B, logits.dtype, steps)


def _lattice(
    batch: Batch,
    config: TransducerLossConfig,
    rules: Rules,
    cells: tuple[torch.Tensor, ...],
    log_likelihood_B: torch.Tensor,
    dtype: torch.dtype,
    steps: tuple[Any, ...],
) -> Lattice:
    """Add what the kernels take."""
    *arcs, alpha_C, beta_C = (_cells(x) for x in cells)
    device_batch, num_rows = _to_device_batch(batch, cells[0].device), int(_rows(batch).max(initial=0))
    given = (batch, config, rules, cells, log_likelihood_B, dtype)
    return Lattice(*given, device_batch, Arcs(*arcs, *steps), alpha_C, beta_C, num_rows)


def frames_of(lattice: Lattice, start: int, stop: int) -> Lattice:
    """View frames as cpu.frames_of does."""
    first_cell, batch = layout.frames_of(lattice.batch, start, stop)
    cells, steps = tuple(x[first_cell:] for x in lattice.cells), lattice.arcs[4:]
    with _current(cells[0].device):
        return _lattice(batch, lattice.config, lattice.rules, cells, lattice.log_likelihood_B, lattice.dtype, steps)


def read_arcs(lattice: Lattice, logits_CW: torch.Tensor) -> None:
    """Read the arcs' weights as cpu.read_arcs does."""
    num_blocks = len(lattice.log_likelihood_B) * lattice.num_rows
    if num_blocks:
        with _current(logits_CW.device) as stream:
            kernel = _kernels(DTYPES[lattice.dtype])["read_arcs"]
            kernel[num_blocks, (WARP_THREADS, WARPS), stream](
                _cells(logits_CW), lattice.device_batch, lattice.rules, lattice.arcs, lattice.num_rows
            )


def losses(lattice: Lattice) -> torch.Tensor:
    """Compute the losses as cpu.losses does, on the device. Other blocks compute alpha beside beta."""
    batch_size, max_labels = len(lattice.log_likelihood_B), int(lattice.batch.num_labels_B.max(initial=0))
    if batch_size:
        with _current(lattice.log_likelihood_B.device) as stream:
            threads = min(MAX_THREADS, -(-(max_labels + 1) // WARP_THREADS) * WARP_THREADS)
            directions = 2 if len(lattice.cells[4]) else 1
            kernel = _kernels(DTYPES[lattice.dtype])["fill_lattices"]
            sums = (lattice.alpha_C, lattice.beta_C, as_array(lattice.log_likelihood_B))
            kernel[(batch_size, directions), threads, stream](lattice.device_batch, lattice.arcs, *sums)
    return (lattice.log_likelihood_B * -(1.0 + lattice.config.fastemit)).float()


def write_gradient(lattice: Lattice, logits_CW: torch.Tensor, scale_B: torch.Tensor) -> None:
    """Write the gradient as cpu.write_gradient does."""
    num_blocks = len(scale_B) * lattice.num_rows
    if not num_blocks:
        return
    scale_B = scale_B.to(logits_CW.device, torch.float32).contiguous()
    with _current(logits_CW.device) as stream:
        sums = (lattice.alpha_C, lattice.beta_C, as_array(lattice.log_likelihood_B))
        kernel = _kernels(DTYPES[lattice.dtype])["write_gradient"]
        kernel[num_blocks, (WARP_THREADS, WARPS), stream](
            _cells(logits_CW),
            lattice.device_batch,
            lattice.rules,
            lattice.arcs,
            *sums,
            as_array(scale_B),
            lattice.num_rows,
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
    """Compile a kernel: numba finds a wrong or missing toolkit or numpy only then. Raises UsageError for it."""
    from numba import cuda

    failures: tuple[type[Exception], ...] = (ImportError, RuntimeError, OSError, AttributeError, *_cuda_errors())
    try:
        cuda.jit("void(float32[::1])")(_nothing)
    except failures as problem:
        said = " ".join(str(problem).split())[:300]
        # numba-cuda 0.30 looks for parts of numpy that 2.5 no longer has.
        is_numpy = isinstance(problem, AttributeError) and "'numpy'" in said
        remedy = "pip install 'numpy<2.5'" if is_numpy else _remedy()
        raise UsageError(f"numba cannot compile for this GPU ({said}): {remedy}") from problem


def _cuda_errors() -> list[type[Exception]]:
    """Return what numba-cuda raises for its compiler and the driver, as far as this version has these names."""
    with suppress(ImportError):
        error: Any = import_module("numba.cuda.cudadrv.error")
        names = ("NvvmError", "CudaDriverError", "NvrtcError")
        return [kind for name in names if (kind := getattr(error, name, None)) is not None]
    return []


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
