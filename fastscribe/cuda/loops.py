"""CUDA graph modes of the decoders, and the code that all graphed decoders share.

full      one graph that loops on the device (cuda/while_loop.py): the host launches it once per batch
chunked   a graph of a few steps, replayed until a flag on the device turns false; the host reads the flag one replay late,
          so that the device never waits for the host
off       no graphs: the host launches every step
auto      the first of these that is available
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, Protocol, TypeVar, get_args

import torch

from fastscribe.config import GraphMode
from fastscribe.cuda import while_loop
from fastscribe.cuda.graph_capture import Generation, GraphCache, GraphsUnavailable, StreamOrder
from fastscribe.decode.decoder import Decoder
from fastscribe.errors import UsageError
from fastscribe.types import Frames, Hypothesis, Int32Array

Key = TypeVar("Key")
Buffers = TypeVar("Buffers")
Captured = TypeVar("Captured")

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


def decoder_for_mode(
    mode: GraphMode,
    device: torch.device,
    say: Callable[[str], None],
    without: Callable[[], Decoder],
    graphed: Callable[[LoopMaker], Decoder],
) -> Decoder:
    """Build a decoder for a CUDA graph mode.

    Args:
        mode: the `--cuda-graphs` option.
        device: the model's device; every mode but `auto` and `off` needs a CUDA device.
        say: with `auto`, gets one line for each better mode that is unavailable, here or at the first batch.
        without: builds the decoder without graphs.
        graphed: builds the decoder whose steps run in the loops of the given LoopMaker.

    Raises:
        UsageError: the requested mode is unavailable. A FallbackDecoder may also raise it at the first batch.
    """
    if mode not in get_args(GraphMode):
        raise UsageError(f"--cuda-graphs {mode}: not one of {', '.join(get_args(GraphMode))}")
    if device.type != "cuda":
        if mode in ("full", "chunked"):
            raise UsageError(f"--cuda-graphs {mode}: needs a CUDA device, not {device.type}")
        return without()
    builders: dict[GraphMode, Callable[[], Decoder]] = {
        "full": lambda: graphed(partial(WhileLoop, while_loop.toolkit(device))),
        "chunked": lambda: graphed(partial(ChunkedLoop, DelayedFlag)),
        "off": without,
    }
    modes: tuple[GraphMode, ...] = ("full", "chunked", "off") if mode == "auto" else (mode,)
    return FallbackDecoder([(name, builders[name]) for name in modes], say)


class FallbackDecoder:
    """A Decoder that uses the first available mode and falls back to the next one when CUDA graphs turn out unavailable.

    Unavailability shows when the decoder is built or when it gets its first batches.
    """

    def __init__(self, choices: Sequence[tuple[GraphMode, Callable[[], Decoder]]], say: Callable[[str], None]) -> None:
        self._choices = list(choices)
        self._say = say
        self._decoder = self._build()

    def submit(self, frames: Frames) -> torch.Tensor:
        while True:
            try:
                return self._decoder.submit(frames)
            except GraphsUnavailable as error:
                self._decoder.close()
                self._drop_first(error)
                self._decoder = self._build()

    def read(self, packed: Int32Array, frames: Frames) -> Sequence[Hypothesis]:
        return self._decoder.read(packed, frames)

    def close(self) -> None:
        self._decoder.close()

    def _build(self) -> Decoder:
        while True:
            try:
                return self._choices[0][1]()
            except GraphsUnavailable as error:
                self._drop_first(error)

    def _drop_first(self, reason: GraphsUnavailable) -> None:
        mode, _ = self._choices[0]
        if len(self._choices) == 1:
            raise UsageError(f"--cuda-graphs {mode}: unavailable: {reason}") from reason
        self._choices.pop(0)
        self._say(f"CUDA graphs: {mode} is unavailable ({reason}); using {self._choices[0][0]}")


class DecoderGraphs(Generic[Key, Buffers, Captured]):
    """Captured decoder states by size, all in the same buffers, because only one batch is decoded at a time.

    The buffers grow to the largest batch so far. Graphs contain addresses, so growing drops all graphs.
    """

    def __init__(self, device: torch.device, new_buffers: Callable[[int], Buffers], max_captures: int) -> None:
        """Create an empty cache of at most `max_captures` states; `new_buffers` allocates buffers of a size, in any unit."""
        self._new_buffers = new_buffers
        self._order = StreamOrder()
        # A replayed graph runs at the priority of the stream it was captured on; decoding is short and others wait for it.
        new_generation = partial(Generation, device, self._order.synchronize, priority=-1)
        self._captured: GraphCache[Key, Captured] = GraphCache(new_generation, max_captures)
        self.buffers: Buffers | None = None
        self.size = 0

    @contextmanager
    def exclusive_use(self, frames: Frames) -> Iterator[None]:
        """Use the buffers for one batch, on the current stream of the frames' device, after the previous batch."""
        with torch.cuda.device_of(frames.frames_BTD):  # StreamOrder uses this device's current stream
            self._order.wait()
            try:
                yield
            finally:
                self._order.record()

    def get(self, key: Key, needed: int, make: Callable[[Buffers, Generation], Captured]) -> Captured:
        """Return the captured state for `key`, in buffers of at least `needed`; call `make` on a miss."""
        if self.buffers is None or self.size < needed:
            self.close()
            self.buffers, self.size = self._new_buffers(needed), needed
        if key not in self._captured:
            self._order.record()  # this batch may still be using the state that is evicted
        return self._captured.get(key, partial(make, self.buffers))

    def close(self) -> None:
        """Wait for the last use and free all graphs and buffers. Garbage collection of the object does the same."""
        self._captured.drop()
        self.buffers, self.size = None, 0


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


class Flag(Protocol):
    """A flag on the device that the host reads one replay late."""

    def post(self) -> None:
        """Enqueue a copy of the flag to the host."""
        ...

    def previous(self) -> bool:
        """Wait for the copy before the latest and return it; True if fewer than two were posted."""
        ...


class ChunkedLoop:
    """A Loop that replays a graph of a few steps until the flag, read one replay late, is false."""

    def __init__(
        self,
        make_flag: Callable[[torch.Tensor], Flag],
        generation: Generation,
        step: Callable[[], None],
        flag: torch.Tensor,
    ) -> None:
        self._kept = step, flag  # see WhileLoop
        self._make_flag = partial(make_flag, flag)
        self._graph = generation.capture(partial(_repeat, step, _STEPS_PER_CHUNK))

    def run(self) -> None:
        flag = self._make_flag()
        while flag.previous():
            self._graph.replay()
            flag.post()


def _repeat(step: Callable[[], None], times: int) -> None:
    for _ in range(times):
        step()


class DelayedFlag:
    """Flag copies in pinned memory, each with the event that completes when the copy has arrived."""

    def __init__(self, flag: torch.Tensor) -> None:
        self._flag = flag
        self._posted: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def post(self) -> None:
        copy = torch.empty((), dtype=torch.bool, pin_memory=True)
        copy.copy_(self._flag, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._posted = [*self._posted[-1:], (copy, event)]

    def previous(self) -> bool:
        if len(self._posted) < 2:
            return True
        copy, event = self._posted[0]
        event.synchronize()
        return bool(copy)
