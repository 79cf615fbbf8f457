"""Streams, events, pinned host memory, a GPU's free memory and stage times, with one interface for CPU and CUDA.

A CPU call has finished when it returns. So on a CPU a stream orders nothing, an event is always complete and host memory
is not pinned, and the engine needs no second code path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch

from fastscribe.errors import first_line, is_out_of_memory
from fastscribe.fast_paths import RefusedPath
from fastscribe.types import AnyArray

_SWITCH_S = 2e-4


def full_float32(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which a GPU computes without TF32 (no_tf32.py). A CPU has none."""
    if device.type != "cuda":
        return nullcontext()
    from fastscribe.cuda.no_tf32 import no_tf32

    return no_tf32(device)


@dataclass(frozen=True)
class Event:
    """A point in a stream. `event` is None on a CPU, where the event is always complete."""

    event: torch.cuda.Event | None

    def synchronize(self) -> None:
        """Block the host until the device has reached this event."""
        if self.event is not None:
            self.event.synchronize()


class Stream:
    """A CUDA stream; on a CPU, a no-op with the same methods.

    Prefer `shared_stream`: torch keeps the workspaces of every stream until the process ends.
    """

    def __init__(self, device: torch.device, high_priority: bool = False) -> None:
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority=-1 if high_priority else 0)

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this the current stream for the block."""
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            yield

    def record_event(self) -> Event:
        """Return an event that completes after all work enqueued on this stream so far."""
        return Event(None if self.stream is None else self.stream.record_event())

    def wait_event(self, event: Event) -> None:
        """Make this stream, not the host, wait for the event."""
        if self.stream is not None and event.event is not None:
            self.stream.wait_event(event.event)


@cache
def shared_stream(device: torch.device, role: Literal["copy", "model", "decode"]) -> Stream:
    """Return the process's one stream for this role; all pipelines on the device share it.

    The decode stream has high priority, because its kernels are short and depend on each other.
    """
    return Stream(device, high_priority=role == "decode")


class StageTimes:
    """Seconds per stage of one batch: measured by CUDA events on a GPU, where calls return early, else by the host."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Time the work that the block enqueues on the current stream."""
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

    def add_to(self, add: Callable[[str, float], None], share: float = 1.0) -> None:
        """Call `add` with each stage and its seconds, or a share of them, once the device has finished the batch."""
        for stage, start, end in self._events:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + start.elapsed_time(end) / 1000.0
        for stage, seconds in self._seconds.items():
            add(stage, share * seconds)


@dataclass
class Unpinned:
    """Memory that the system could not pin. Any thread counts it; the thread that drives the model tells the user (Engine).

    Attributes:
        count: Number of arrays since the process began.
        reason: What the system said of the last one.
    """

    count: int = 0
    reason: str = ""

    def add(self, error: RuntimeError) -> None:
        """Count an array. Raises another error than one of too little memory again."""
        if not is_out_of_memory(error):
            raise error
        self.count, self.reason = self.count + 1, first_line(error)


UNPINNED = Unpinned()


def host_array(shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device) -> AnyArray:
    """Allocate an uninitialised host array for copies to and from `device`, pinned if the device is a GPU.

    torch's pinned-memory allocator reuses the memory. If the system cannot pin more (UNPINNED), the array is ordinary memory:
    copies are correct but block the host.
    """
    if device.type == "cuda":
        try:
            return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True).numpy()
        except RuntimeError as error:
            UNPINNED.add(error)
    return np.empty(shape, dtype)


def to_device(array: AnyArray, device: torch.device) -> torch.Tensor:
    """Start a copy to the device. The caller must keep the array alive until the copy has finished.

    From a pinned array (`host_array`) the copy is asynchronous. From ordinary memory the host waits for the copy and for
    all earlier work on the stream.
    """
    return torch.from_numpy(array).to(device, non_blocking=True)


def small_to_device(values: AnyArray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Start an asynchronous copy from ordinary memory to the device through a pinned buffer.

    For a GPU the values are copied to the buffer first, so the caller need not keep them. On a CPU the result shares
    memory with `values`.
    """
    tensor = torch.as_tensor(values)
    if device.type == "cuda":
        try:
            tensor = tensor.pin_memory()
        except RuntimeError as error:  # see host_array
            UNPINNED.add(error)
    return tensor.to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> AnyArray:
    """Start a copy into pinned host memory; read it after an event recorded behind the copy.

    On a CPU the result shares the tensor's memory. If the system cannot pin more (UNPINNED), the host waits for the copy.
    """
    if tensor.device.type == "cpu":
        return tensor.numpy()
    try:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    except RuntimeError as error:
        UNPINNED.add(error)
        return tensor.cpu().numpy()
    host.copy_(tensor, non_blocking=True)
    return host.numpy()


@contextmanager
def short_switch_interval(device: torch.device) -> Iterator[None]:
    """Shorten the interpreter's switch interval while this thread launches CUDA kernels. No effect on a CPU.

    Each kernel launch releases the GIL. To take it back, the thread waits until another Python thread (a file reader)
    yields: by default up to 5 ms, a thousand times as long as a launch takes (docs/log.md, "who launches kernels").
    """
    before = sys.getswitchinterval()
    if device.type == "cuda":
        sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def synchronize(device: torch.device) -> None:
    """Block the host until the device has finished all work on all streams."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def recover(device: torch.device) -> RuntimeError | None:
    """Clean up after a failed batch: wait for the device and free the batch's memory.

    Returns:
        None if the device is usable. Otherwise its error: after some errors CUDA fails every later call of the process.
    """
    try:
        synchronize(device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    except RuntimeError as error:
        return error
    return None


def free_bytes(device: torch.device) -> int:
    """Bytes available for new tensors on a GPU, including memory that torch's allocator has cached."""
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    allowed = int(torch.cuda.get_per_process_memory_fraction(index) * total)  # less if processes share the GPU
    return max(0, min(free, allowed - own)) + own - torch.cuda.memory_allocated(device)


def register(memory: memoryview, say: Callable[[str], None]) -> int:
    """Pin memory that other processes share, for good, so that copies from it to a GPU are asynchronous.

    Args:
        memory: A segment of it. A copy must not reach into another one.
        say: Called with a line for the user if the driver refuses: copies are correct then but block the host.

    Returns:
        Bytes that are pinned now.
    """
    address = np.frombuffer(memory, np.uint8).ctypes.data
    try:
        runtime = torch.cuda.cudart()
        error = runtime.cudaHostRegister(address, len(memory), 0)
        if error == runtime.cudaError.success:
            return len(memory)
        reason = f"{runtime.cudaGetErrorString(error)}, CUDA error {int(error)}"
    except (RuntimeError, AssertionError) as raised:  # torch has no CUDA, or cannot begin to use it
        reason = first_line(raised)
    say_unpinned(reason, say)
    return 0


def say_unpinned(reason: str, say: Callable[[str], None]) -> None:
    """Say why memory that processes share is not pinned."""
    line = f"the memory that holds the samples cannot be pinned ({reason}): copies to the GPU are slower"
    say(RefusedPath("pinning", reason, line))
