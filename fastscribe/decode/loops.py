"""Decoding steps captured in CUDA graphs, so that the host need not drive them: the modes, and what every decoder's share.

    full      one graph that repeats the step by itself (cuda_while.py): the host enqueues a batch and is free
    chunked   a graph of a few steps, replayed until a flag says that the last of them found nothing more; the flag is read
              one replay late, so that the device never waits for the host
    off       no graphs: the steps one by one
    auto      the first of these that can be had

A decoder whose steps change as it goes on (aed_graphs.py) has several graphs, of which one after the other is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, Protocol, TypeVar, get_args

import numpy as np
import torch

from fastscribe.config import GraphMode
from fastscribe.decode import cuda_while
from fastscribe.decode.decoder import Decoder
from fastscribe.errors import UsageError
from fastscribe.graph_capture import Generation, GraphCache, GraphsUnavailable, StreamOrder
from fastscribe.types import Frames, Hypothesis

Key = TypeVar("Key")
Room = TypeVar("Room")
Captured = TypeVar("Captured")

_STEPS_PER_TURN = 2  # of the while graph: fewer turns to decide about, at most one step in vain
_STEPS_PER_CHUNK = 8
MOST_STEPS_IN_VAIN = 2 * _STEPS_PER_CHUNK  # of one kind, after the one that found no more of them needed


class Loop(Protocol):
    """All the steps that a state needs, enqueued on the current stream. It keeps alive all that they work on."""

    def run(self) -> None: ...


# Makes a Loop, of graphs of a generation, for one kind of step or more, and flags (bools, one a kind, of which at most one
# is true; every step sets them) that say of which kind another one is needed. The first kind is needed first.
LoopMaker = Callable[[Generation, Sequence[Callable[[], None]], torch.Tensor], Loop]


def in_mode(
    mode: GraphMode,
    device: torch.device,
    say: Callable[[str], None],
    without: Callable[[], Decoder],
    graphed: Callable[[LoopMaker], Decoder],
) -> Decoder:
    """A Decoder without graphs, or with its steps in the loops that it is given.

    With `auto`, `say` gets a line for each better mode that cannot be had, now or at the first batch. Raises UsageError
    (at once or at the first batch) where another mode cannot be had.
    """
    if mode not in get_args(GraphMode):
        raise UsageError(f"--cuda-graphs {mode}: not one of {', '.join(get_args(GraphMode))}")
    if device.type != "cuda":
        if mode in ("full", "chunked"):
            raise UsageError(f"--cuda-graphs {mode}: needs a CUDA device, not {device.type}")
        return without()
    builders: dict[GraphMode, Callable[[], Decoder]] = {
        "full": lambda: graphed(partial(WholeLoop, cuda_while.toolkit(device))),
        "chunked": lambda: graphed(partial(ChunkedLoop, LateFlags)),
        "off": without,
    }
    modes: tuple[GraphMode, ...] = ("full", "chunked", "off") if mode == "auto" else (mode,)
    return FirstOf([(name, builders[name]) for name in modes], say)


class FirstOf:
    """The Decoder that is the first of some which can be had, found out by building it and by giving it batches."""

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

    def read(self, packed: np.ndarray, frames: Frames) -> list[Hypothesis]:
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
            raise UsageError(f"--cuda-graphs {mode}: cannot be had here: {reason}") from reason
        self._choices.pop(0)
        self._say(f"CUDA graphs: {mode} cannot be had here ({reason}); going on with {self._choices[0][0]}")


class CapturedStates(Generic[Key, Room, Captured]):
    """What a decoder has captured, by size, and the memory in which it all lies, one state upon the other, since one batch
    at a time is decoded. It grows with the largest batch so far; as graphs hold addresses, everything is then captured anew.
    """

    def __init__(self, device: torch.device, new_room: Callable[[int], Room], most: int) -> None:
        """`new_room` makes memory of a size, in any unit; at most `most` states are captured at a time."""
        self._new_room = new_room
        self._order = StreamOrder()
        # A replayed graph runs at the priority of the stream it was captured on; decoding is short and others wait for it.
        new_generation = partial(Generation, device, self._order.synchronize, priority=-1)
        self._captured: GraphCache[Key, Captured] = GraphCache(new_generation, most)
        self.room: Room | None = None
        self.size = 0

    @contextmanager
    def turn(self, frames: Frames) -> Iterator[None]:
        """In which one batch may use the memory: after the one before, on the current stream of the frames' device."""
        with torch.cuda.device_of(frames.frames_BTD):  # whose current stream is meant from here on
            self._order.wait()
            try:
                yield
            finally:
                self._order.mark()

    def get(self, key: Key, needed: int, make: Callable[[Room, Generation], Captured]) -> Captured:
        """What `make` made for the key, now or before, in a room of the size `needed` or larger."""
        if self.room is None or self.size < needed:
            self.close()
            self.room, self.size = self._new_room(needed), needed
        return self._captured.get(key, partial(make, self.room))

    def close(self) -> None:
        """Happens by itself when the object goes."""
        self._captured.drop()
        self.room, self.size = None, 0


def bucket(rows: int) -> int:
    """The number of rows captured for so many: 1, 2, 4 .. 64, then two sizes an octave (96, 128, 192 ..)."""
    size = power_of_two(rows)
    return size * 3 // 4 if size > 64 and rows <= size * 3 // 4 else size


def power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


class WholeLoop:
    """One launch a batch for each kind of step. A kind that is not needed after all makes one turn in vain."""

    def __init__(
        self,
        tools: cuda_while.Toolkit,
        generation: Generation,
        steps: Sequence[Callable[[], None]],
        flags: torch.Tensor,
    ) -> None:
        self._kept = steps, flags  # graphs know no more than the addresses of what they work on
        self._loops: list[cuda_while.WhileGraph] = []
        for one_step, flag in zip(steps, flags, strict=True):
            graph = generation.capture(one_step, instantiate=False)
            loop = cuda_while.WhileGraph(tools, graph.raw_cuda_graph(), flag.data_ptr(), _STEPS_PER_TURN)
            generation.before_drop(loop.close)
            self._loops.append(loop)
        self._device = flags.device

    def run(self) -> None:
        for loop in self._loops:
            loop.launch(torch.cuda.current_stream(self._device).cuda_stream)


class Flags(Protocol):
    """Flags on the device that the host reads one turn late."""

    def post(self) -> None:
        """Enqueues a copy to the host."""
        ...

    def previous(self) -> list[bool]:
        """The copy before the latest, once it is there; only the first is true where there is none."""
        ...


class ChunkedLoop:
    """Replays until the flags, by then one replay old, say that its chunk was the last one needed."""

    def __init__(
        self,
        make_flags: Callable[[torch.Tensor], Flags],
        generation: Generation,
        steps: Sequence[Callable[[], None]],
        flags: torch.Tensor,
    ) -> None:
        self._kept = steps, flags  # see WholeLoop
        self._make_flags = partial(make_flags, flags)
        self._graphs = [generation.capture(partial(_repeat, kind, _STEPS_PER_CHUNK)) for kind in steps]

    def run(self) -> None:
        flags = self._make_flags()
        while any(needed := flags.previous()):
            self._graphs[needed.index(True)].replay()
            flags.post()


def _repeat(step: Callable[[], None], times: int) -> None:
    for _ in range(times):
        step()


class LateFlags:
    """Copies in pinned memory, each with the event that says that it is there."""

    def __init__(self, flags: torch.Tensor) -> None:
        self._flags = flags
        self._posted: list[tuple[torch.Tensor, torch.cuda.Event]] = []

    def post(self) -> None:
        copy = torch.empty(len(self._flags), dtype=torch.bool, pin_memory=True)
        copy.copy_(self._flags, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._posted = [*self._posted[-1:], (copy, event)]

    def previous(self) -> list[bool]:
        if len(self._posted) < 2:
            return [True] + [False] * (len(self._flags) - 1)
        copy, event = self._posted[0]
        event.synchronize()
        return copy.tolist()
