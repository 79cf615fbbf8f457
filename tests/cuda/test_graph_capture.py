"""Generations of graphs: graphs captured together are freed together, and failures leave nothing behind.

No GPU is needed: a simulated CUDA device (tests/fakes/cuda.py) records graphs and replays them on the CPU.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fastscribe.cuda import graph_capture
from fastscribe.cuda.graph_capture import Generation, GraphCache, GraphsUnavailable, StreamOrder
from tests.fakes.cuda import STREAMS, SimulatedCuda

DEVICE = torch.device("cuda", 0)


class Adder:
    """Increment a number with a graph."""

    def __init__(self, generation: Generation) -> None:
        self.number = torch.zeros(())
        self.graph = generation.capture(self.add)
        self.number.zero_()

    def add(self) -> None:
        self.number.add_(1)

    def run(self) -> float:
        self.graph.replay()
        return float(self.number)


def cache(limit: int, order: StreamOrder | None = None) -> GraphCache[int, Adder]:
    order = order or StreamOrder()
    return GraphCache(lambda: Generation(DEVICE, order.synchronize), limit)


def test_generation_freed_together(simulated_cuda: SimulatedCuda) -> None:
    adders = cache(2)
    first, second = adders.get(1, Adder), adders.get(2, Adder)
    assert adders.get(1, Adder) is first and len(simulated_cuda.captured) == 2
    assert [first.run(), second.run(), first.run()] == [1, 1, 2]
    assert set(simulated_cuda.pools.values()) == {2}
    simulated_cuda.completed = simulated_cuda.enqueued
    assert adders.get(3, Adder).run() == 1
    assert 1 not in adders and 2 not in adders and len(simulated_cuda.live) == 1
    assert adders.get(1, Adder).run() == 1
    assert simulated_cuda.streams_made == 1  # the second generation reuses it
    simulated_cuda.completed = simulated_cuda.enqueued
    adders.drop()
    adders.drop()
    assert not simulated_cuda.live and not +simulated_cuda.pools


def test_drop_waits_for_last_use(simulated_cuda: SimulatedCuda) -> None:
    order = StreamOrder()
    adders = cache(2, order)
    adders.get(1, Adder).run()
    order.record()
    del adders
    gc.collect()
    assert simulated_cuda.completed == simulated_cuda.enqueued == 1 and not simulated_cuda.live


def test_before_drop_runs_first(simulated_cuda: SimulatedCuda) -> None:
    generation = Generation(DEVICE, lambda: None)
    generation.capture(lambda: torch.zeros(3).add_(1), instantiate=False)
    live: list[int] = []
    generation.before_drop(lambda: live.append(len(simulated_cuda.live)))
    assert not simulated_cuda.captured[0].is_instantiated
    generation.drop()
    generation.drop()
    assert live == [1]


def test_generations_have_separate_streams(simulated_cuda: SimulatedCuda) -> None:
    """torch reuses its streams round-robin."""
    generations = [Generation(DEVICE, lambda: None) for _ in range(3)]
    for _ in range(STREAMS - 2):
        torch.cuda.Stream(DEVICE)
    generations += [Generation(DEVICE, lambda: None) for _ in range(STREAMS - 3)]
    assert len({generation._stream for generation in generations}) == STREAMS
    with pytest.raises(GraphsUnavailable, match="all 32 streams"):
        Generation(DEVICE, lambda: None)
    Generation(DEVICE, lambda: None, priority=-1)
    generations.pop().drop()
    Generation(DEVICE, lambda: None)


FAILURES = {
    "capture_begin": ([RuntimeError("operation not permitted")], 0),
    "capture_end": ([RuntimeError("invalidated"), RuntimeError("invalidated")], 1),
    "instantiate": ([RuntimeError("CUDA error: not supported")], 0),
}


@pytest.mark.parametrize("method", FAILURES)
def test_failure_drops_generation(simulated_cuda: SimulatedCuda, method: str) -> None:
    adders = cache(8)
    adders.get(1, Adder)
    errors, num_broken = FAILURES[method]
    simulated_cuda.failures[method] = list(errors)
    with pytest.raises(GraphsUnavailable, match=f"capture failed: {errors[0]}"):
        adders.get(2, Adder)
    assert not simulated_cuda.live and not simulated_cuda.capturing and not +simulated_cuda.pools
    assert simulated_cuda.current.number == ("default",) and gc.isenabled()
    assert len(graph_capture._BROKEN) == num_broken
    assert adders.get(1, Adder).run() == 1


def test_missing_private_functions(simulated_cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending the allocation and releasing the pool are tried independently."""
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool")
    released: list[object] = []
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: released.append(pool))
    simulated_cuda.failures["capture_end"] = [RuntimeError("invalidated")] * 2
    generation = Generation(DEVICE, lambda: None)
    monkeypatch.setattr(graph_capture, "_capture_nothing", lambda device: None)
    with pytest.raises(GraphsUnavailable, match="invalidated"):
        generation.capture(lambda: None)
    assert len(released) == 1


def test_failed_capture_keeps_workspace(simulated_cuda: SimulatedCuda) -> None:
    generation = Generation(DEVICE, lambda: None)
    first = Adder(generation)
    simulated_cuda.failures["capture_begin"] = [RuntimeError("no")]
    with pytest.raises(GraphsUnavailable):
        Adder(generation)
    simulated_cuda.failures["capture_end"] = [RuntimeError("no")] * 2
    with pytest.raises(GraphsUnavailable):
        Adder(generation)
    assert first.run() == 1  # may still run when the other one fails


OUT_OF_MEMORY = [torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError("CUDA error: out of memory")]


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
@pytest.mark.parametrize("method", ["capture_begin", "instantiate"])
def test_out_of_memory_retry(simulated_cuda: SimulatedCuda, method: str, error: Exception) -> None:
    adders = cache(8)
    adders.get(1, Adder)
    simulated_cuda.failures[method] = [error]
    assert adders.get(2, Adder).run() == 1
    assert 1 not in adders and simulated_cuda.cache_emptied == 1 and len(simulated_cuda.live) == 1


class Intermediate:
    """An object held by the stack frame of a capture."""


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_out_of_memory_frees_tensors(
    simulated_cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Neither the emptied cache nor the raised error keeps the capture's tensors."""
    held: list[weakref.ref] = []
    alive_when_emptied: list[int] = []

    def empty_cache() -> None:
        alive_when_emptied.append(sum(ref() is not None for ref in held))

    def make(generation: Generation) -> Adder:
        block = Intermediate()
        held.append(weakref.ref(block))
        simulated_cuda.failures["instantiate"] = [type(error)(str(error))]
        return Adder(generation)

    adders = cache(8)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    gc.disable()
    try:
        with pytest.raises(torch.OutOfMemoryError, match="out of memory") as raised:
            adders.get(1, make)
    finally:
        gc.enable()
    assert len(held) == 2 and alive_when_emptied == [0, 0]
    assert raised.value.__context__ is None and raised.value.__cause__ is None
    assert not simulated_cuda.live and 1 not in adders


def test_failed_warm_up_is_waited_for(simulated_cuda: SimulatedCuda) -> None:
    """The caller frees memory that the warm-up on another stream may still use."""

    def fail() -> None:
        raise ValueError("on purpose")

    generation = Generation(DEVICE, lambda: None)
    with pytest.raises(ValueError, match="on purpose"):
        generation.capture(fail)
    assert simulated_cuda.waits[-1] == (("default",), generation._stream.number)


def test_threads_capture_in_turn(simulated_cuda: SimulatedCuda) -> None:
    busy: list[int] = []

    def work() -> None:
        assert not busy
        busy.append(1)
        threading.Event().wait(0.001)
        busy.pop()

    def capture(_: int) -> None:
        for _ in range(3):
            generation = Generation(DEVICE, lambda: None)
            generation.capture(work)
            generation.drop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(capture, range(4)))


# On a GPU.


@pytest.mark.cuda
def test_device_threads_capture() -> None:
    def work(steps: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                generation = Generation(torch.device("cuda", 0), torch.cuda.current_stream().synchronize)
                number = torch.zeros(64, 64, device="cuda")
                graph = generation.capture(lambda number=number: number.copy_(steps(number)))
                number.fill_(1.0)
                graph.replay()
                assert number[0, 0].item() == steps(torch.ones(64, 64))[0, 0].item()
                generation.drop()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (lambda x: x + 1, lambda x: x @ x)))
