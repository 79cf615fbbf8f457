"""Decoding steps captured in CUDA graphs, so that the host need not drive them: the modes, and what every decoder's share.

full      one graph that repeats the step by itself (cuda/while_loop.py): the host enqueues all steps and is free
chunked   a graph of a few steps, replayed until a flag says that the last of them found nothing more; the flag is read
          one replay late, so that the device never waits for the host
off       no graphs: the steps one by one
auto      the first of these that can be had
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
Room = TypeVar("Room")
Captured = TypeVar("Captured")

_STEPS_PER_TURN = 2  # of the while graph: fewer turns to decide about, at most one step in vain
_STEPS_PER_CHUNK = 8
MAX_STEPS_IN_VAIN = 2 * _STEPS_PER_CHUNK  # after the one that found no other needed, or at all where none was


class Loop(Protocol):
    """Steps until a flag says that no other is needed, enqueued on the current stream. It keeps alive what they work on."""

    def run(self) -> None: ...


# Makes a Loop, of graphs of a generation, for a step and the flag (a scalar bool that the step sets) which says whether
# another one is needed.
LoopMaker = Callable[[Generation, Callable[[], None], torch.Tensor], Loop]


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
        "full": lambda: graphed(partial(WholeLoop, while_loop.toolkit(device))),
        "chunked": lambda: graphed(partial(ChunkedLoop, LateFlag)),
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

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
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
        if key not in self._captured:
            self._order.mark()  # what is dropped to make room for it may still be at work, in this very turn
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
    """One launch."""

    def __init__(
        self, tools: while_loop.Toolkit, generation: Generation, step: Callable[[], None], flag: torch.Tensor
    ) -> None:
        self._kept = step, flag  # graphs know no more than the addresses of what they work on
        graph = generation.capture(step, instantiate=False)
        self._loop = while_loop.WhileGraph(tools, graph.raw_cuda_graph(), flag.data_ptr(), _STEPS_PER_TURN)
        generation.before_drop(self._loop.close)
        self._device = flag.device

    def run(self) -> None:
        self._loop.launch(torch.cuda.current_stream(self._device).cuda_stream)


class Flag(Protocol):
    """A flag on the device that the host reads one turn late."""

    def post(self) -> None:
        """Enqueues a copy to the host."""
        ...

    def previous(self) -> bool:
        """The copy before the latest, once it is there; True where there is none."""
        ...


class ChunkedLoop:
    """Replays until a flag, by then one replay old, says that its chunk was the last one needed."""

    def __init__(
        self,
        make_flag: Callable[[torch.Tensor], Flag],
        generation: Generation,
        step: Callable[[], None],
        flag: torch.Tensor,
    ) -> None:
        self._kept = step, flag  # see WholeLoop
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


class LateFlag:
    """Copies in pinned memory, each with the event that says that it is there."""

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
