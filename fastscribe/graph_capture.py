"""Captures a function's GPU work in a CUDA graph, and leaves everything as it was where that fails.

torch's own context manager (torch.cuda.graph) empties the allocator's cache, which costs milliseconds a capture, and where
its body raises it leaves the capture stream current and, if the capture was invalid, the allocator in capture mode for
good: memory used on two streams would never come back. Hence capture_begin and capture_end are called directly here.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

_WARM_UPS = 2  # the first run chooses kernels and allocates workspaces; the second shows that the choice is made

# Graphs whose capture failed, kept for good: torch's pinned-memory allocator still points to them, and has no way to let go.
_BROKEN: list[torch.cuda.CUDAGraph] = []


class GraphsUnavailable(RuntimeError):
    """CUDA graphs, or one way of using them, cannot be had here; str() is the reason, one line."""


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def capture(
    function: Callable[[], object], stream: torch.cuda.Stream, pool: _POOL_HANDLE | None = None
) -> torch.cuda.CUDAGraph:
    """The graph of what `function` enqueues. It is run twice before, so it must bear repetition.

    `stream` is for this caller's captures alone: cuBLAS keeps a workspace a stream, and two graphs that were captured on
    one stream must not run at the same time. Graphs that share a `pool` (torch.cuda.graph_pool_handle()) must not
    either. The graph is not instantiated yet; its first replay does that, or `raw_cuda_graph()` hands it on.

    Raises GraphsUnavailable, or torch.OutOfMemoryError where memory is short even with all caches emptied.
    """
    pool = pool or torch.cuda.graph_pool_handle()
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            function()
        stream.synchronize()  # an error of the warm-up must not look like one of the capture
        try:
            graph = _capture_once(function, stream, pool)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # during a capture the allocator cannot do this by itself
            graph = _capture_once(function, stream, pool)
    torch.cuda.current_stream(stream.device).wait_stream(stream)
    return graph


def _capture_once(
    function: Callable[[], object], stream: torch.cuda.Stream, pool: _POOL_HANDLE
) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with _no_garbage_collection():
        try:
            # thread_local: what other threads do meanwhile, loading and copying, is no business of this capture.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            function()
            graph.capture_end()
        except BaseException as error:
            _abandon(graph, stream, pool)
            if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, Exception):
                raise
            raise GraphsUnavailable(f"capture failed: {first_line(error)}") from error
    return graph


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


def _abandon(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: _POOL_HANDLE) -> None:
    """Ends a capture that failed, so that stream, allocator and random generator serve others again."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the graph is empty
            graph.capture_end()
        graph.reset()
    except RuntimeError:
        # The stream no longer captures, but torch threw before it told its allocator so.
        _BROKEN.append(graph)
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(stream.device.index, pool)
            torch._C._cuda_releasePool(stream.device.index, pool)
        with suppress(RuntimeError):
            _capture_nothing(stream.device)


def _capture_nothing(device: torch.device) -> None:
    """One capture that succeeds: some versions of torch let the random generator believe in a capture until its end."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    number = torch.zeros((), device=device)
    graph.capture_begin(capture_error_mode="thread_local")
    number.add_(1)
    graph.capture_end()
    graph.reset()
