"""A simulated CUDA device: torch's streams, pools, graphs and copies on a CPU. No GPU takes part.

A capture records the operations with their tensors, and a replay repeats them in the same memory. Silent errors of a real
device raise AssertionError here: replaying a graph after a sibling on its stream was reset (its cuBLAS workspace is freed),
resetting a graph that the device may still run, and using a pool's handle after its last graph was reset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    import pytest

STREAMS = 32


def is_view(func: Any, args: tuple, result: Any) -> bool:
    """Return whether the result is the first argument's memory, unchanged; `reshape` and others may also copy."""
    if not (func.is_view and isinstance(result, torch.Tensor)):
        return False
    return result.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not is_view(func, args, result):
            self.calls.append((func, args, kwargs or {}, result))
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that compilers need not be kept away: each operation would pass through them, and import them first."""
        return False

    @torch.inference_mode()
    def replay(self) -> None:
        for func, args, kwargs, first in self.calls:
            again = func(*args, **kwargs)
            many = isinstance(first, (tuple, list))
            for old, new in zip(first, again, strict=True) if many else [(first, again)]:
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Stream:
    def __init__(self, simulated_cuda: SimulatedCuda, number: tuple[Any, ...]) -> None:
        self.simulated_cuda, self.number, self.device = simulated_cuda, number, torch.device("cuda", 0)
        self.cuda_stream = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)

    def query(self) -> bool:
        return True

    def wait_stream(self, other: Stream) -> None:
        self.simulated_cuda.waits.append((self.number, other.number))

    def record_event(self) -> Event:
        event = Event(self.simulated_cuda)
        event.record()
        return event

    def wait_event(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Event:
    def __init__(self, simulated_cuda: SimulatedCuda) -> None:
        self.simulated_cuda = simulated_cuda

    def record(self) -> None:
        self.point, self.time_s = self.simulated_cuda.enqueued, perf_counter()

    def wait(self) -> None:
        pass

    def synchronize(self) -> None:
        self.simulated_cuda.completed = max(self.simulated_cuda.completed, self.point)

    def elapsed_time(self, end: Event) -> float:
        return 1000.0 * (end.time_s - self.time_s)


class Graph:
    def __init__(self, simulated_cuda: SimulatedCuda, keep_graph: bool) -> None:
        assert keep_graph
        self.simulated_cuda, self.recorder = simulated_cuda, Recorder()
        self.is_recording = self.is_captured = self.is_instantiated = False
        self.replays = 0

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert capture_error_mode == "thread_local" and not self.simulated_cuda.capturing
        self.pool = pool or ("own", id(self))
        assert self.pool not in self.simulated_cuda.dead_pools, "use_count > 0"
        self.simulated_cuda.pools[self.pool] += 1
        self.simulated_cuda.capturing.append(self.pool)
        self.stream = self.simulated_cuda.current
        self.workspace = self.simulated_cuda.workspaces[self.stream]
        self.recorder.__enter__()
        self.is_recording = True
        self.simulated_cuda.fail("capture_begin")

    def capture_end(self) -> None:
        if self.is_recording:
            self.recorder.__exit__(None, None, None)
        self.is_recording = False
        self.simulated_cuda.fail("capture_end")
        self.simulated_cuda.capturing.remove(self.pool)
        self.is_captured = True
        self.simulated_cuda.live.append(self)

    def instantiate(self) -> None:
        self.simulated_cuda.fail("instantiate")
        assert self.is_captured
        self.is_instantiated = True

    def replay(self) -> None:
        assert self.is_instantiated
        self.run()

    def run(self) -> None:
        assert self in self.simulated_cuda.live, "was reset"
        assert self.workspace == self.simulated_cuda.workspaces[self.stream], "a sibling's reset freed the workspace"
        self.replays += 1
        self.simulated_cuda.enqueued += 1
        self.recorder.replay()

    def raw_cuda_graph(self) -> int:
        self.simulated_cuda.steps[id(self)] = self.run
        return id(self)

    def reset(self) -> None:
        if self not in self.simulated_cuda.live:
            return
        assert self.simulated_cuda.completed == self.simulated_cuda.enqueued or not self.replays, (
            "the device may be working on it"
        )
        self.simulated_cuda.live.remove(self)
        self.simulated_cuda.workspaces[self.stream] += 1
        self.simulated_cuda.release(self.pool)


@dataclass(frozen=True)
class Copy:
    """One call of Tensor.to for a CUDA device."""

    shape: tuple[int, ...]
    is_pinned: bool
    non_blocking: bool


def forbid_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call of torch fail that would make a context on a GPU. is_available and device_count are none of them."""

    def make() -> None:
        raise AssertionError("a process that launches no kernels makes a CUDA context")

    monkeypatch.setattr(torch.cuda, "_lazy_init", make)
    monkeypatch.setattr(torch._C, "_cuda_init", make, raising=False)


def record_copies(monkeypatch: pytest.MonkeyPatch, too_little_to_pin: bool = False) -> list[Copy]:
    """Keep copies to a CUDA device on the CPU, and return the list that records them in order.

    Memory counts as pinned where torch was asked to pin it.
    """
    copies: list[Copy] = []
    pinned: dict[int, torch.Tensor] = {}  # by address; kept, so that no address comes back
    to, empty = torch.Tensor.to, torch.empty

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        if too_little_to_pin:
            raise RuntimeError("CUDA error: out of memory")
        pinned[tensor.data_ptr()] = tensor
        return tensor

    def copy_to(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if not any(isinstance(argument, torch.device) and argument.type == "cuda" for argument in arguments):
            return to(tensor, *arguments, **options)
        is_pinned = tensor.data_ptr() in pinned
        copies.append(Copy(tuple(tensor.shape), is_pinned, options.get("non_blocking", False)))
        return tensor.clone()

    def empty_on_cpu(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = empty(*size, **options)
        return pin(tensor) if pin_memory else tensor

    monkeypatch.setattr(torch.Tensor, "to", copy_to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pin(tensor.clone()))
    monkeypatch.setattr(torch, "empty", empty_on_cpu)
    return copies


class SimulatedCuda:
    """`failures` maps a method of graphs to the errors that its next calls raise."""

    def __init__(self) -> None:
        self.current = Stream(self, ("default",))
        self.enqueued = self.completed = 0  # replays
        self.pools: Counter[Any] = Counter()
        self.dead_pools: set[Any] = set()
        self.capturing: list[Any] = []
        self.workspaces: defaultdict[Stream, int] = defaultdict(int)
        self.live: list[Graph] = []
        self.captured: list[Graph] = []
        self.steps: dict[int, Callable[[], None]] = {}
        self.waits: list[tuple[Any, Any]] = []
        self.failures: defaultdict[str, list[Exception]] = defaultdict(list)
        self.streams_made = self.cache_emptied = 0

    @property
    def recorder(self) -> Recorder | None:
        """What records the graph that is being captured."""
        return next((graph.recorder for graph in self.captured if graph.is_recording), None)

    def fail(self, method: str) -> None:
        if self.failures[method]:
            raise self.failures[method].pop(0)

    def release(self, pool: Any) -> None:
        self.pools[pool] -= 1
        assert self.pools[pool] >= 0
        if not self.pools[pool]:
            self.dead_pools.add(pool)

    def make_stream(self, device: torch.device, priority: int = 0) -> Stream:
        self.streams_made += 1
        return Stream(self, (priority, self.streams_made % STREAMS))

    def make_graph(self, keep_graph: bool) -> Graph:
        self.captured.append(Graph(self, keep_graph))
        return self.captured[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def end_allocate_to_pool(self, device: int, pool: Any) -> None:
        if pool not in self.capturing:
            raise RuntimeError("not currently recording")
        self.capturing.remove(pool)

    def empty_cache(self) -> None:
        assert not self.capturing
        self.cache_emptied += 1

    def functions(self) -> dict[str, Any]:
        """Return what takes the place of functions and classes of torch.cuda, by name."""
        handles = iter(range(1, 1_000_000))
        return {
            "Stream": self.make_stream,
            "stream": self.stream,
            "current_stream": lambda device=None: self.current,
            "Event": lambda enable_timing=False: Event(self),
            "CUDAGraph": self.make_graph,
            "graph_pool_handle": lambda: ("shared", next(handles)),
            "empty_cache": self.empty_cache,
        }

    def install(self, monkeypatch: pytest.MonkeyPatch) -> SimulatedCuda:
        """Replace streams, graphs and pools for a test. Its tensors stay those of the CPU."""
        from fastscribe.cuda import graph_capture

        for name, value in self.functions().items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocate_to_pool, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: self.release(pool), raising=False)
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *size, device=None, **rest: zeros(*size, **rest))
        monkeypatch.setattr(graph_capture, "_IDLE", defaultdict(list))
        monkeypatch.setattr(graph_capture, "_LEASED", set())
        monkeypatch.setattr(graph_capture, "_BROKEN", [])
        return self
