"""What a device asks for besides tensors: lanes of work, marks in them, pinned host memory, stage times.

A lane is a CUDA stream. On a CPU a call has done its work when it returns: a lane there orders nothing, a mark is always
reached, and host memory needs no pinning. So the engine is written once and runs on both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch

from fastscribe.pipeline.stats import Stopwatch
from fastscribe.types import AnyArray

_SWITCH_S = 2e-4
_OUT_OF_MEMORY = ("out of memory", "allocate memory", "alloc_failed")


@dataclass(frozen=True)
class Mark:
    """A point in a lane; None where work is done as soon as it is asked for."""

    event: torch.cuda.Event | None

    def wait(self) -> None:
        """The host waits until the device has come this far."""
        if self.event is not None:
            self.event.synchronize()


class Lane:
    """Work that the device does in order. Lanes run beside each other; one of higher priority gets free units first.

    Use `lane`: torch keeps workspaces for every stream as long as the process lives.
    """

    def __init__(self, device: torch.device, high_priority: bool = False) -> None:
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority=-1 if high_priority else 0)

    @contextmanager
    def work(self) -> Iterator[None]:
        """What is asked of the device inside goes into this lane."""
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            yield

    def mark(self) -> Mark:
        return Mark(None if self.stream is None else self.stream.record_event())

    def wait_for(self, mark: Mark) -> None:
        """The lane waits for the mark; the host does not."""
        if self.stream is not None and mark.event is not None:
            self.stream.wait_event(mark.event)


@cache
def lane(device: torch.device, role: Literal["copy", "model", "decode"]) -> Lane:
    """The process's lane for this kind of work: pipelines on one device share it."""
    return Lane(device, high_priority=role == "decode")


class StageTimes:
    """Seconds by stage of one batch: the device's own clock on a GPU, where calls return early, else the host's."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Times what the current lane does inside."""
        if self._on_gpu:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((stage, start, end))
        else:
            begin = perf_counter()
            yield
            self._seconds[stage] = self._seconds.get(stage, 0.0) + perf_counter() - begin

    def add_to(self, stopwatch: Stopwatch) -> None:
        """Call when the device has done all of it."""
        for stage, start, end in self._events:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + start.elapsed_time(end) / 1000.0
        for stage, seconds in self._seconds.items():
            stopwatch.add(stage, seconds)


def host_array(shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device) -> AnyArray:
    """Uninitialised host memory for copies to and from `device`: pinned for a GPU, whose allocator recycles it.

    Where the system has too little left to pin, ordinary memory does: its copies hold up the host, and are as right.
    """
    if device.type == "cuda":
        try:
            return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True).numpy()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
    return np.empty(shape, dtype)


def to_device(array: AnyArray, device: torch.device) -> torch.Tensor:
    """Start a copy; the caller keeps the array until the copy has been made.

    From a pinned array (host_array) the host does not wait. From ordinary memory CUDA copies only when everything that the
    stream was asked for before is done, and the host waits for that.
    """
    return torch.from_numpy(array).to(device, non_blocking=True)


def small_to_device(values: AnyArray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Start a copy from ordinary memory to the device by way of pinned memory, so that the host does not wait.

    On the way to a GPU the values are first copied on the host, so the caller need not keep them. On a CPU the result
    shares their memory.
    """
    tensor = torch.as_tensor(values)
    if device.type == "cuda":
        try:
            tensor = tensor.pin_memory()
        except RuntimeError as error:  # too little memory to pin: see host_array
            if not is_out_of_memory(error):
                raise
    return tensor.to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> AnyArray:
    """A copy on its way into pinned memory, to be read after a mark behind it; on a CPU the tensor's own memory."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    return host.numpy()


@contextmanager
def launching(device: torch.device) -> Iterator[None]:
    """Lets this thread have the interpreter soon after it asks, for as long as it launches kernels.

    Each launch lets go of the interpreter's lock, and takes it again only when other Python threads (readers of files)
    let go of it: by default after up to 5 ms, a thousand times as long as a launch takes (docs/log.md, "who launches kernels").
    """
    before = sys.getswitchinterval()
    if device.type == "cuda":
        sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def free_bytes(device: torch.device) -> int:
    """Memory that new tensors on a GPU can have, what its allocator holds unused included."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def is_out_of_memory(error: BaseException) -> bool:
    """On any device, and as any library says it: torch reports a CPU's as a plain RuntimeError, cuBLAS has words of its own."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def settle(device: torch.device) -> None:
    """The host waits for everything asked of the device, in any lane."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def recover(device: torch.device) -> RuntimeError | None:
    """After a failed batch: nothing of it still runs, and its memory is free again.

    Returns the device's answer where it can do nothing more in this process: CUDA repeats some errors until that ends.
    """
    try:
        settle(device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    except RuntimeError as error:
        return error
    return None
