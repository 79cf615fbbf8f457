"""The steps of aed.py captured in CUDA graphs, with the loops of graphs.py.

One state for each pair of sizes (rows, frames) is captured; smaller batches leave rows and places empty. All states lie in
the same memory, one upon the other, since one batch at a time is decoded; it grows with the largest so far, and as graphs
hold addresses everything is then captured anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fastscribe.config import GraphMode
from fastscribe.decode import aed
from fastscribe.decode.aed import AedDecoder, State, begin_, pack, places_needed, step
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.graphs import Loop, LoopMaker, bucket, in_mode
from fastscribe.decode.prompt import Prompt
from fastscribe.graph_capture import Generation, GraphCache, StreamOrder
from fastscribe.model.aed import AttentionDecoder
from fastscribe.types import Frames, Hypothesis

_MAX_CAPTURES = 24
_LEAST_FRAMES = 64
_ALIGNED = 8  # places, as attention kernels like them


def build_aed_decoder(
    model: AttentionDecoder, prompt: Prompt, device: torch.device, mode: GraphMode, say: Callable[[str], None]
) -> Decoder:
    """A Decoder for a model that is on its device in its dtype and stays there. As graphs.in_mode."""
    return in_mode(mode, device, say, lambda: AedDecoder(model, prompt), partial(GraphedAed, model, prompt))


@dataclass(frozen=True)
class _Captured:
    state: State
    loop: Loop


class GraphedAed:
    """Batches go into the state captured for their size; packed results are tensors of their own."""

    def __init__(self, model: AttentionDecoder, prompt: Prompt, make_loop: LoopMaker) -> None:
        self._model, self._prompt, self._make_loop = model, prompt, make_loop
        self._order = StreamOrder()
        new_generation = partial(Generation, model.embedding.weight.device, self._order.synchronize, priority=-1)
        self._captured: GraphCache[tuple[int, int], _Captured] = GraphCache(new_generation, _MAX_CAPTURES)
        self._room: torch.Tensor | None = None  # in which all states lie

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        batch, num_frames, _ = frames.frames_BTD.shape
        with torch.cuda.device_of(frames.frames_BTD):  # whose current stream is meant from here on
            self._order.wait()
            try:
                captured = self._for(bucket(batch), bucket(max(_LEAST_FRAMES, num_frames)))
                begin_(self._model, self._prompt, captured.state, frames)
                captured.loop.run()
                return pack(captured.state, frames, len(self._prompt.ids))
            finally:
                self._order.mark()

    def read(self, packed: np.ndarray, frames: Frames) -> list[Hypothesis]:
        return aed.read(self._model, self._prompt, packed, len(frames.lengths_B))

    def close(self) -> None:
        """Happens by itself when the object goes."""
        self._captured.drop()
        self._room = None

    def _for(self, rows: int, num_frames: int) -> _Captured:
        num_places = -(-places_needed(self._model, self._prompt, num_frames) // _ALIGNED) * _ALIGNED
        sizes = (rows, num_frames, num_places)
        needed = self._model.new_memory(*sizes, partial(torch.empty, device="meta")).num_elements
        if self._room is None or len(self._room) < needed:
            self.close()
            self._room = self._model.embedding.weight.new_zeros(needed)
        return self._captured.get((rows, num_frames), partial(self._make, sizes, self._room))

    def _make(self, sizes: tuple[int, int, int], room: torch.Tensor, generation: Generation) -> _Captured:
        memory = self._model.new_memory(*sizes, _pieces_of(room))
        state = State.allocate(self._model, self._prompt, memory, sizes[2])
        one_step = partial(step, self._model, self._prompt, state, sizes[2])
        return _Captured(state, self._make_loop(generation, one_step, state.active))


def _pieces_of(room: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Makes tensors of a shape that lie one after the other in the flat one."""
    taken = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal taken
        first, taken = taken, taken + math.prod(shape)
        return room[first:taken].view(shape)

    return take
