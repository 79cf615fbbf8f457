"""The recursion on a GPU: pass torch tensors to numba's kernels and launch them.

The counterpart of cpu.py. Numba gets the tensors' memory without a copy, on torch's current
stream; nothing here waits for the GPU. Importing this file imports no numba; the first loss does, and compiles the kernels
for the GPU in a second or two.

As on the CPU, lattices and losses are float64, and everything over a row of logits is float32. A cell takes a handful of
float64 additions, little beside its row even on a GPU with slow float64; exponentials and logarithms are float32.

Shapes as in recursion.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastscribe.cuda.device import small_to_device
from fastscribe.errors import UsageError, first_line
from fastscribe.training.loss import layout
from fastscribe.training.loss.cpu import DTYPES
from fastscribe.training.loss.layout import steps_of
from fastscribe.training.loss.recursion import Arcs, Batch
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


class Lattice(layout.Lattice):
    """A lattice whose kernels run on torch's current stream."""

    def read_arcs(self, logits_CW: torch.Tensor) -> None:
        if num_blocks := len(self.log_likelihood_B) * self._num_rows:
            with _current(logits_CW.device) as stream:
                device_batch, arcs, _ = self._arrays
                kernel = _kernels(DTYPES[self.dtype])["read_arcs"]
                kernel[num_blocks, (WARP_THREADS, WARPS), stream](
                    _cells(logits_CW), device_batch, self.rules, arcs, self._num_rows
                )

    def sum_paths(self) -> None:
        """Other blocks compute alpha beside beta."""
        batch_size, max_labels = len(self.log_likelihood_B), int(self.batch.num_labels_B.max(initial=0))
        if batch_size:
            with _current(self.log_likelihood_B.device) as stream:
                device_batch, arcs, sums = self._arrays
                threads = min(MAX_THREADS, -(-(max_labels + 1) // WARP_THREADS) * WARP_THREADS)
                kernel = _kernels(DTYPES[self.dtype])["fill_lattices"]
                kernel[(batch_size, 2 if len(self.alpha_C) else 1), threads, stream](device_batch, arcs, *sums)

    def write_gradient(self, logits_CW: torch.Tensor, scale_B: torch.Tensor) -> None:
        if num_blocks := len(scale_B) * self._num_rows:
            scale_B = scale_B.to(logits_CW.device, torch.float32).contiguous()
            with _current(logits_CW.device) as stream:
                device_batch, arcs, sums = self._arrays
                kernel = _kernels(DTYPES[self.dtype])["write_gradient"]
                kernel[num_blocks, (WARP_THREADS, WARPS), stream](
                    _cells(logits_CW), device_batch, self.rules, arcs, *sums, as_array(scale_B), self._num_rows
                )

    @cached_property
    def _arrays(self) -> tuple[DeviceBatch, Arcs, tuple[Any, ...]]:
        """Return the batch, the arcs, and alpha_C, beta_C and log_likelihood_B as the kernels take them.

        The batch and the arcs' steps are copied to the device in one small transfer.
        """
        batch = self.batch
        parts = [batch.first_cell_B, batch.stride_B, _rows(batch), batch.num_frames_B, batch.num_labels_B]
        parts += [batch.labels_BU.ravel(), *steps_of(self.config)]
        sent = small_to_device(np.concatenate(parts), self.beta_C.device)
        *columns, labels, blank_steps_K, label_steps_K = sent.split([len(part) for part in parts])
        labels_BU = as_array(labels.view(batch.labels_BU.shape))
        device_batch = _usable().DeviceBatch(*map(as_array, columns), labels_BU)
        arcs = Arcs._make((*map(_cells, self.arcs), as_array(blank_steps_K), as_array(label_steps_K)))
        return device_batch, arcs, (_cells(self.alpha_C), _cells(self.beta_C), as_array(self.log_likelihood_B))

    @cached_property
    def _num_rows(self) -> int:
        """Frames of the longest utterance, including padding."""
        return int(_rows(self.batch).max(initial=0))


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


def _rows(batch: Batch) -> Int64Array:
    """Frames of each utterance in the logits, including padding."""
    return np.bincount(batch.line_utterance_L, minlength=len(batch.num_frames_B)).astype(np.int64)
