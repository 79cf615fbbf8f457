"""CUDA graph capture that restores streams, allocator and random generator when a capture fails.

Graphs belong to generations. Each generation has its own stream and memory pool and is dropped as a whole, for two reasons:
since torch 2.12 the reset of one graph frees the stream's cuBLAS workspace, to which the stream's other graphs still write;
and a pool handle is invalid once the last of its graphs is reset. A GraphCache holds the current generation and starts a
new one at its limit or after a failure. Streams are reused, because cuBLAS keeps a workspace for every stream it has seen.

This module calls capture_begin and capture_end directly instead of torch.cuda.graph. That context manager empties the
allocator's cache, which costs milliseconds per capture. If its body raises, it leaves the capture stream current; if the
capture was invalid, it also leaves the allocator in capture mode, so memory used on two streams is never freed.
"""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import torch

from fastscribe.errors import first_line

Key = TypeVar("Key")
T = TypeVar("T")

_WARM_UPS = 2  # the first run chooses kernels and allocates workspaces; the second shows that the choice is made
_NUM_TORCH_STREAMS = 32  # for each device and priority; torch hands them out in turn, again and again

# Held while capturing or dropping: freeing a graph or collecting garbage invalidates another thread's capture.
# Reentrant, because a finaliser may drop a generation while its thread is warming up another one.
_LOCK = threading.RLock()
_IDLE: defaultdict[tuple[torch.device, int], list[torch.cuda.Stream]] = defaultdict(list)
_LEASED: set[torch.cuda.Stream] = set()
# Graphs whose capture failed are never freed: torch's pinned-memory allocator still points to them.
_BROKEN: list[torch.cuda.CUDAGraph] = []


class GraphsUnavailable(RuntimeError):
    """CUDA graphs, or one mode of them, are unavailable; str() is the reason, in one line."""


class StreamOrder:
    """Orders uses of the same memory across streams.

    `wait` and `record` use the current stream of the current device, so make the memory's device current around them.
    """

    def __init__(self) -> None:
        self._last: torch.cuda.Event | None = None

    def wait(self) -> None:
        if self._last is not None:
            self._last.wait()

    def record(self) -> None:
        self._last = torch.cuda.Event()
        self._last.record()

    def synchronize(self) -> None:
        if self._last is not None:
            self._last.synchronize()


class Generation:
    """Graphs that share a stream and a memory pool and are freed together.

    No two of them may run at the same time. The creator must call `drop`.
    """

    def __init__(self, device: torch.device, wait: Callable[[], None], priority: int = 0) -> None:
        """Lease a stream and a memory pool.

        Args:
            device: a CUDA device.
            wait: returns when the device has finished with all graphs.
            priority: stream priority at which the graphs run.

        Raises:
            GraphsUnavailable: all of torch's streams are in use.
        """
        self._device, self._priority, self._wait = device, priority, wait
        self._stream = _lease(device, priority)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._before_drop: list[Callable[[], None]] = []
        self._is_dropped = False

    def capture(self, function: Callable[[], object], instantiate: bool = True) -> torch.cuda.CUDAGraph:
        """Capture the work that `function` enqueues. It also runs twice before the capture, as a warm-up.

        Args:
            function: enqueues work on the current stream; must be safe to repeat.
            instantiate: False if the caller only needs `raw_cuda_graph()`.

        Raises:
            GraphsUnavailable: the capture failed.
            torch.OutOfMemoryError: no memory left. After any exception the caller must drop the generation.
        """
        assert not self._is_dropped
        with _LOCK:
            caller = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(caller)
            try:
                with torch.cuda.stream(self._stream):
                    for _ in range(_WARM_UPS):
                        function()
                    self._stream.synchronize()  # an error of the warm-up must not look like one of the capture
                    try:
                        graph = self._record(function)
                        if instantiate:
                            graph.instantiate()
                    except torch.OutOfMemoryError:
                        raise
                    except Exception as error:
                        raise _as_capture_error(error) from error
            finally:
                caller.wait_stream(self._stream)  # it may free what the warm-up still works on
        return graph

    def before_drop(self, call: Callable[[], None]) -> None:
        """Register a call that `drop` makes before it frees the graphs, once the device has finished with them."""
        self._before_drop.append(call)

    def drop(self) -> None:
        """Wait for the last use and free all graphs. torch.cuda.empty_cache() then returns their memory."""
        with _LOCK:
            if self._is_dropped:
                return
            self._wait()
            self._is_dropped = True
            while self._before_drop:
                self._before_drop.pop()()
            while self._graphs:
                self._graphs.pop().reset()
            _IDLE[self._device, self._priority].append(self._stream)

    def _record(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with _no_garbage_collection():
            try:
                # thread_local: other threads load and copy during the capture, which must not invalidate it.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                function()
                graph.capture_end()
            except BaseException:
                self._abandon(graph)
                raise
        self._graphs.append(graph)
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a failed capture and make stream, allocator and random generator usable again."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the graph is empty
                graph.capture_end()
            self._graphs.append(graph)
        except RuntimeError:
            _write_off(graph, self._stream, self._pool)
            _capture_nothing(self._device)


class GraphCache(Generic[Key, T]):
    """A cache of captured graphs, all in one generation. Garbage collection of the cache drops them."""

    def __init__(self, new_generation: Callable[[], Generation], limit: int) -> None:
        self._new_generation = new_generation
        self._limit = limit
        self._made: dict[Key, T] = {}
        self._generations: list[Generation] = []  # one or none
        self._finalizer = weakref.finalize(self, _drop, self._generations, self._made)
        self._finalizer.atexit = False  # the driver has shut down by then and has freed everything

    def __contains__(self, key: Key) -> bool:
        return key in self._made

    def get(self, key: Key, make: Callable[[Generation], T]) -> T:
        """Return the value for `key`; call `make` on a miss. The value must keep its graphs' memory alive.

        At the limit the whole cache is dropped first. If `make` runs out of memory, the cache is dropped and `make` is
        called once more. Any exception from it leaves the cache empty.
        """
        if key not in self._made:
            if len(self._made) >= self._limit:
                self.drop()
            self._made[key] = self._make(make)
        return self._made[key]

    def drop(self) -> None:
        """Wait for the last use and free everything."""
        _drop(self._generations, self._made)

    def _make(self, make: Callable[[Generation], T]) -> T:
        for _ in range(2):
            try:
                return make(self._generation())
            except torch.OutOfMemoryError as error:
                problem = first_line(error)
            except BaseException:
                self.drop()
                raise
            # Outside the except block, so that the traceback's frames no longer hold tensors.
            self.drop()
        raise torch.OutOfMemoryError(problem)

    def _generation(self) -> Generation:
        if not self._generations:
            self._generations.append(self._new_generation())
        return self._generations[0]


def _drop(generations: list[Generation], made: dict[Key, T]) -> None:
    """Drop the generation and empty the allocator's cache, which cannot reuse the memory of a dropped pool."""
    with _LOCK:
        if generations:
            generations[0].drop()
            generations.clear()
            made.clear()
            torch.cuda.empty_cache()


def _lease(device: torch.device, priority: int) -> torch.cuda.Stream:
    """Return a stream on which no other generation captures."""
    with _LOCK:
        idle = _IDLE[device, priority]
        if idle:
            return idle.pop()
        for _ in range(_NUM_TORCH_STREAMS):
            stream = torch.cuda.Stream(device, priority=priority)
            if stream not in _LEASED:
                _LEASED.add(stream)
                return stream
    raise GraphsUnavailable(f"all {_NUM_TORCH_STREAMS} streams of {device} have captured graphs already")


def _as_capture_error(error: Exception) -> Exception:
    """Return what `capture` promises to raise.

    No context manager made of a generator raises it: where one replaces an exception, Python 3.12 and 3.13 keep the frames
    below it, and with them their tensors, until garbage is collected.
    """
    if "out of memory" in str(error):  # of the driver, not of torch's allocator
        return torch.OutOfMemoryError(first_line(error))
    return GraphsUnavailable(f"capture failed: {first_line(error)}")


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: a finaliser that frees a graph or an event invalidates a running capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _write_off(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> None:
    """Tell torch's allocator that a capture has ended; torch raised before it did so itself."""
    _BROKEN.append(graph)
    # Two blocks, because one call may fail where the other is needed. Both are private and may be renamed.
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(stream.device.index, pool)
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_releasePool(stream.device.index, pool)


def _capture_nothing(device: torch.device) -> None:
    """Run one successful capture, because some versions of torch leave the random generator in capture mode until then.

    It uses a stream without other graphs, because the graph is reset at once. A failure here is ignored.
    """
    try:
        stream = _lease(device, 0)
    except GraphsUnavailable:
        return
    graph, pool = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        try:
            number = torch.zeros((), device=device)
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            number.add_(1)
            graph.capture_end()
        except RuntimeError:
            _write_off(graph, stream, pool)
            return  # without putting the stream back
    graph.reset()
    _IDLE[device, 0].append(stream)
