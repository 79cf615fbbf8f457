"""Captures a function's GPU work in CUDA graphs, and leaves everything as it was where that fails.

Graphs come in generations, each on a stream and in a memory pool of its own, and a generation is dropped as a whole: since
torch 2.12 the reset of one graph frees the workspace that cuBLAS keeps for the stream, to which the other graphs from that
stream still write, and a pool's handle is dead for good once the last of its graphs is reset. A GraphCache holds what is
captured now; at its limit, and where anything fails, it starts a new generation. Streams are used again, since cuBLAS keeps
a workspace for each that it ever saw.

torch's own context manager (torch.cuda.graph) empties the allocator's cache, which costs milliseconds a capture, and where
its body raises it leaves the capture stream current and, if the capture was invalid, the allocator in capture mode for
good: memory used on two streams would never come back. Hence capture_begin and capture_end are called directly here.
"""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from fastscribe.errors import first_line

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

Key = TypeVar("Key")
T = TypeVar("T")

_WARM_UPS = 2  # the first run chooses kernels and allocates workspaces; the second shows that the choice is made
_STREAMS_OF_TORCH = 32  # for each device and priority; torch hands them out in turn, again and again

# One thread at a time captures or drops: freeing a graph, or collecting garbage, would make another's capture invalid.
# Reentrant, because a finaliser may drop a generation while its own thread is warming another one up.
_LOCK = threading.RLock()
_IDLE: defaultdict[tuple[torch.device, int], list[torch.cuda.Stream]] = defaultdict(list)
_EVER_LEASED: set[torch.cuda.Stream] = set()
# Graphs whose capture failed, kept for good: torch's pinned-memory allocator still points to them, and has no way to let go.
_BROKEN: list[torch.cuda.CUDAGraph] = []


class GraphsUnavailable(RuntimeError):
    """CUDA graphs, or one way of using them, cannot be had here; str() is the reason, one line."""


class StreamOrder:
    """Puts uses of the same memory in order, on whatever stream each of them runs, and waits for the last.

    Streams are the current device's, so make the memory's device current around `wait` and `mark`.
    """

    def __init__(self) -> None:
        self._last: torch.cuda.Event | None = None

    def wait(self) -> None:
        if self._last is not None:
            self._last.wait()

    def mark(self) -> None:
        self._last = torch.cuda.Event()
        self._last.record()

    def synchronize(self) -> None:
        if self._last is not None:
            self._last.synchronize()


class Generation:
    """Graphs that live and die together. No two of them may run at the same time; whoever makes one drops it."""

    def __init__(self, device: torch.device, wait: Callable[[], None], priority: int = 0) -> None:
        """`wait` returns when the device is done with all graphs. They run at `priority`, as a stream's.

        Raises GraphsUnavailable where every stream that torch has is in use.
        """
        self._device, self._priority, self._wait = device, priority, wait
        self._stream = _lease(device, priority)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._before_drop: list[Callable[[], None]] = []
        self._is_dropped = False

    def capture(self, function: Callable[[], object], instantiate: bool = True) -> torch.cuda.CUDAGraph:
        """The graph of what `function` enqueues. It is run twice before, so it must bear repetition.

        Without `instantiate` the graph is for `raw_cuda_graph()` alone. Raises GraphsUnavailable, or
        torch.OutOfMemoryError; after either, and whatever `function` raises, the generation is to be dropped.
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
                    with _reasons():
                        graph = self._record(function)
                        if instantiate:
                            graph.instantiate()
            finally:
                caller.wait_stream(self._stream)  # it may free what the warm-up still works on
        return graph

    def before_drop(self, call: Callable[[], None]) -> None:
        """For what was made of the graphs and must go before them. Called when the device is done with them."""
        self._before_drop.append(call)

    def drop(self) -> None:
        """Waits for the last use, then frees all graphs. The memory is anyone's after torch.cuda.empty_cache()."""
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
                # thread_local: what other threads do meanwhile, loading and copying, is no business of this capture.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                function()
                graph.capture_end()
            except BaseException:
                self._abandon(graph)
                raise
        self._graphs.append(graph)
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed, so that stream, allocator and random generator serve others again."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the graph is empty
                graph.capture_end()
            self._graphs.append(graph)
        except RuntimeError:
            _write_off(graph, self._stream, self._pool)
            _capture_nothing(self._device)


class GraphCache(Generic[Key, T]):
    """What is captured now, by key, all of it in one generation. Dropped with the object, if not before."""

    def __init__(self, new_generation: Callable[[], Generation], limit: int) -> None:
        self._new_generation = new_generation
        self._limit = limit
        self._made: dict[Key, T] = {}
        self._generations: list[Generation] = []  # one or none
        self._finalizer = weakref.finalize(self, _drop, self._generations, self._made)
        self._finalizer.atexit = False  # the driver is gone by then, and takes everything along

    def __contains__(self, key: Key) -> bool:
        return key in self._made

    def get(self, key: Key, make: Callable[[Generation], T]) -> T:
        """What `make` made for the key, now or before; it keeps alive all memory that its graphs work on.

        Where memory is short everything captured is given up and `make` called once more. What it raises in the end
        leaves nothing captured.
        """
        if key not in self._made:
            if len(self._made) >= self._limit:
                self.drop()
            self._made[key] = self._make(make)
        return self._made[key]

    def drop(self) -> None:
        """Waits for the last use, frees everything."""
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
            # Only now have the error's frames let go of what they held.
            self.drop()
        raise torch.OutOfMemoryError(problem)

    def _generation(self) -> Generation:
        if not self._generations:
            self._generations.append(self._new_generation())
        return self._generations[0]


def _drop(generations: list[Generation], made: dict[Key, T]) -> None:
    """The allocator cannot free memory during a capture, and uses a dead pool's for nothing else: hence empty_cache."""
    with _LOCK:
        if generations:
            generations[0].drop()
            generations.clear()
            made.clear()
            torch.cuda.empty_cache()


def _lease(device: torch.device, priority: int) -> torch.cuda.Stream:
    """A stream that nobody else captures on."""
    with _LOCK:
        idle = _IDLE[device, priority]
        if idle:
            return idle.pop()
        for _ in range(_STREAMS_OF_TORCH):
            stream = torch.cuda.Stream(device, priority=priority)
            if stream not in _EVER_LEASED:
                _EVER_LEASED.add(stream)
                return stream
    raise GraphsUnavailable(f"all {_STREAMS_OF_TORCH} streams of {device} have captured graphs already")


@contextmanager
def _reasons() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if "out of memory" in str(error):  # of the driver, not of torch's allocator
            raise torch.OutOfMemoryError(first_line(error)) from error
        raise GraphsUnavailable(f"capture failed: {first_line(error)}") from error


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A finaliser that frees a graph or an event in the middle of a capture would make the capture invalid."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _write_off(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: _POOL_HANDLE) -> None:
    """The stream no longer captures, but torch threw before it told its allocator so."""
    _BROKEN.append(graph)
    # Each by itself, as one may be refused where the other is needed; private, and may be renamed.
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(stream.device.index, pool)
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_releasePool(stream.device.index, pool)


def _capture_nothing(device: torch.device) -> None:
    """One capture that succeeds: some versions of torch let the random generator believe in a capture until its end.

    On a stream without other graphs, as this one is reset at once. Where even this fails nothing more can be done.
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
            return  # and the stream is not for others
    graph.reset()
    _IDLE[device, 0].append(stream)
