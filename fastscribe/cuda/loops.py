"""Loops of captured CUDA graphs: a step that repeats until a flag on the device turns false.

WhileLoop     one graph that loops on the device (cuda/while_loop.py): the host launches it once
ChunkedLoop   a graph of a few steps, replayed by the host, which reads the flag one replay late, so that the device never
              waits for it
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from fastscribe.cuda import while_loop
from fastscribe.cuda.graph_capture import Generation

_STEPS_PER_ITERATION = 2  # of the while graph: half as many conditions to evaluate, at most one wasted step
_STEPS_PER_CHUNK = 8
MAX_WASTED_STEPS = 2 * _STEPS_PER_CHUNK  # run after the step that cleared the flag, or from the start if none is needed


class Loop(Protocol):
    """A captured loop that repeats a step while a flag on the device is true. It keeps the step's tensors alive."""

    def run(self) -> None:
        """Enqueue the whole loop on the current stream."""
        ...


# (generation that owns the graphs, step, flag) -> Loop. The step sets the flag, a scalar bool tensor, to whether another
# step is needed.
LoopMaker = Callable[[Generation, Callable[[], None], torch.Tensor], Loop]


def bucket(rows: int) -> int:
    """Round a number of rows up to a captured size: 1, 2, 4 .. 64, then two sizes per octave (96, 128, 192 ..)."""
    size = power_of_two(rows)
    return size * 3 // 4 if size > 64 and rows <= size * 3 // 4 else size


def power_of_two(number: int) -> int:
    """Round up to a power of two."""
    return 1 << max(0, number - 1).bit_length()


class WhileLoop:
    """A Loop in one graph launch; the device evaluates the flag."""

    def __init__(
        self, tools: while_loop.Toolkit, generation: Generation, step: Callable[[], None], flag: torch.Tensor
    ) -> None:
        self._kept = step, flag  # keeps the tensors alive: a graph contains only their addresses
        graph = generation.capture(step, instantiate=False)
        self._loop = while_loop.WhileGraph(tools, graph.raw_cuda_graph(), flag.data_ptr(), _STEPS_PER_ITERATION)
        generation.before_drop(self._loop.close)
        self._device = flag.device

    def run(self) -> None:
        self._loop.launch(torch.cuda.current_stream(self._device).cuda_stream)


class ChunkedLoop:
    """A Loop that replays a graph of a few steps until the flag, read one replay late, is false."""

    def __init__(
        self,
        make_flag: Callable[[torch.Tensor], DelayedFlag],
        generation: Generation,
        step: Callable[[], None],
        flag: torch.Tensor,
    ) -> None:
        self._kept = step, flag  # see WhileLoop
        self._make_flag = partial(make_flag, flag)

        def steps() -> None:
            for _ in range(_STEPS_PER_CHUNK):
                step()

        self._graph = generation.capture(steps)

    def run(self) -> None:
        flag = self._make_flag()
        while flag.previous():
            self._graph.replay()
            flag.post()


class DelayedFlag:
    """A flag on the device that the host reads one replay late.

    Its copies lie in pinned memory, each with the event that completes when the copy has arrived.
    """

    def __init__(self, flag: torch.Tensor) -> None:
        self._flag = flag
        self._posted: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def post(self) -> None:
        """Enqueue a copy of the flag to the host."""
        copy = torch.empty((), dtype=torch.bool, pin_memory=True)
        copy.copy_(self._flag, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._posted = [*self._posted[-1:], (copy, event)]

    def previous(self) -> bool:
        """Wait for the copy before the latest and return it; True if fewer than two were posted."""
        if len(self._posted) < 2:
            return True
        copy, event = self._posted[0]
        event.synchronize()
        return bool(copy)
