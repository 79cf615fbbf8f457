"""Transducer decoding with the steps of label_looping.py captured in CUDA graphs, so that the host need not drive them.

    full      one graph that repeats the step by itself (cuda_while.py): the host enqueues a batch and is free
    chunked   a graph of a few steps, replayed until a flag says that the last of them found nothing more; the flag is read
              one replay late, so that the device never waits for the host
    off       no graphs: the steps one by one
    auto      the first of these that can be had

One state a bucket of rows is captured, whatever the length: smaller batches leave rows empty. All of them share the flat
arrays, which grow with the largest batch so far; as graphs hold addresses, everything is then captured anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, get_args

import numpy as np
import torch

from fastscribe.config import GraphMode
from fastscribe.decode import cuda_while
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.label_looping import (
    LabelLooping,
    Network,
    Slots,
    State,
    begin_,
    pack,
    slots_needed,
    step,
)
from fastscribe.errors import UsageError
from fastscribe.graph_capture import Generation, GraphCache, GraphsUnavailable, StreamOrder
from fastscribe.model.transducer import Transducer
from fastscribe.types import Frames, Hypothesis

_STEPS_PER_TURN = 2  # of the while graph: fewer turns to decide about, at most one step in vain
_STEPS_PER_CHUNK = 8
_MAX_CAPTURES = 24  # all buckets up to 16,384 rows
# Enough for 32,768 padded frames in rows of one frame, each of which takes two slots: 86 MB with a joint of 640 in bf16.
_LEAST_SLOTS = 65_536


class Loop(Protocol):
    """All the steps that a state needs, enqueued on the current stream."""

    def run(self) -> None: ...


# Makes a Loop, of graphs of a generation, for a step and the flag (a scalar bool that the step sets) which says whether
# another one is needed.
LoopMaker = Callable[[Generation, Callable[[], None], torch.Tensor], Loop]


def build_decoder(transducer: Transducer, device: torch.device, mode: GraphMode, say: Callable[[str], None]) -> Decoder:
    """A Decoder for a model that is on its device in its dtype and stays there. As `in_mode`."""
    network = Network.prepare(transducer)
    return in_mode(mode, device, say, lambda: LabelLooping(network), partial(GraphedDecoder, network))


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


@dataclass(frozen=True)
class _Captured:
    state: State
    loop: Loop


class GraphedDecoder:
    """Batches go into the state captured for their number of rows; packed results are tensors of their own."""

    def __init__(self, network: Network, make_loop: LoopMaker) -> None:
        self._network = network
        self._make_loop = make_loop
        self._order = StreamOrder()
        # A replayed graph runs at the priority of the stream it was captured on; decoding is short and others wait for it.
        new_generation = partial(Generation, network.device, self._order.synchronize, priority=-1)
        self._captured: GraphCache[int, _Captured] = GraphCache(new_generation, _MAX_CAPTURES)
        self._slots: Slots | None = None

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        batch, num_frames, _ = frames.frames_BTD.shape
        with torch.cuda.device_of(frames.frames_BTD):  # whose current stream is meant from here on
            self._order.wait()
            try:
                captured = self._for(bucket(batch), slots_needed(frames))
                begin_(self._network, captured.state, frames)
                captured.loop.run()
                return pack(captured.state, batch, num_frames + 1)
            finally:
                self._order.mark()

    def read(self, packed: np.ndarray, frames: Frames) -> list[Hypothesis]:
        """A batch with a row that found more labels than frames is decoded again, with room that grows."""
        return LabelLooping(self._network).read(packed, frames)

    def close(self) -> None:
        """Happens by itself when the object goes."""
        self._captured.drop()
        self._slots = None

    def _for(self, rows: int, num_slots: int) -> _Captured:
        if self._slots is None or self._slots.capacity < num_slots:
            self.close()
            self._slots = Slots.allocate(self._network, max(_LEAST_SLOTS, _power_of_two(num_slots)))
        return self._captured.get(rows, partial(self._make, rows, self._slots))

    def _make(self, rows: int, slots: Slots, generation: Generation) -> _Captured:
        state = State.allocate(self._network, rows, slots)
        return _Captured(state, self._make_loop(generation, partial(step, self._network, state), state.active))


def bucket(rows: int) -> int:
    """The number of rows captured for so many: 1, 2, 4 .. 64, then two sizes an octave (96, 128, 192 ..)."""
    size = _power_of_two(rows)
    return size * 3 // 4 if size > 64 and rows <= size * 3 // 4 else size


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


class WholeLoop:
    """One launch a batch."""

    def __init__(
        self, tools: cuda_while.Toolkit, generation: Generation, step: Callable[[], None], flag: torch.Tensor
    ) -> None:
        graph = generation.capture(step, instantiate=False)
        self._loop = cuda_while.WhileGraph(tools, graph.raw_cuda_graph(), flag.data_ptr(), _STEPS_PER_TURN)
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
