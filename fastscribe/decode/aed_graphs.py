"""The steps of aed.py captured in CUDA graphs (loops.py).

One state for each pair of sizes (rows, frames) is captured; smaller batches leave rows and places empty. Most sentences are
far shorter than the room for them, so the step is captured for a few numbers of places, and each batch goes through them
as far as its longest sentence does.
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
from fastscribe.decode.loops import MOST_STEPS_IN_VAIN, CapturedStates, Loop, LoopMaker, bucket, in_mode
from fastscribe.decode.prompt import Prompt
from fastscribe.graph_capture import Generation
from fastscribe.model.aed import AttentionDecoder
from fastscribe.types import Frames, Hypothesis

_MAX_CAPTURES = 24  # pairs of sizes, of which a run that goes from long to short recordings meets a dozen
_LEAST_FRAMES = 16
_FIRST_STAGE = 64  # tokens after the prompt, about ten seconds of speech
_STAGE_FACTOR = 3
_ALIGNED = 8  # places, as attention kernels like them


def build_aed_decoder(
    model: AttentionDecoder, prompt: Prompt, device: torch.device, mode: GraphMode, say: Callable[[str], None]
) -> Decoder:
    """A Decoder for a model that is on its device in its dtype and stays there. As loops.in_mode."""
    return in_mode(mode, device, say, lambda: AedDecoder(model, prompt), partial(GraphedAed, model, prompt))


@dataclass(frozen=True)
class _CapturedState:
    state: State
    loop: Loop


class GraphedAed:
    """Batches go into the state captured for their size; packed results are tensors of their own."""

    def __init__(self, model: AttentionDecoder, prompt: Prompt, make_loop: LoopMaker) -> None:
        self._model, self._prompt, self._make_loop = model, prompt, make_loop
        like = model.embedding.weight
        self.captured: CapturedStates[tuple[int, int], torch.Tensor, _CapturedState]
        self.captured = CapturedStates(like.device, lambda size: like.new_zeros(size), _MAX_CAPTURES)

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        batch, num_frames, _ = frames.frames_BTD.shape
        with self.captured.turn(frames):
            captured = self._for(bucket(batch), bucket(max(_LEAST_FRAMES, num_frames)))
            begin_(self._model, self._prompt, captured.state, frames)
            captured.loop.run()
            return pack(captured.state, frames, len(self._prompt.ids))

    def read(self, packed: np.ndarray, frames: Frames) -> list[Hypothesis]:
        return aed.read(self._model, self._prompt, packed, len(frames.lengths_B))

    def close(self) -> None:
        """Happens by itself when the object goes."""
        self.captured.close()

    def _for(self, rows: int, num_frames: int) -> _CapturedState:
        sizes = (rows, num_frames, _aligned(places_needed(self._model, self._prompt, num_frames)))
        needed = self._model.new_memory(*sizes, partial(torch.empty, device="meta")).num_elements
        return self.captured.get((rows, num_frames), needed, partial(self._make, sizes))

    def _make(self, sizes: tuple[int, int, int], room: torch.Tensor, generation: Generation) -> _CapturedState:
        memory = self._model.new_memory(*sizes, _pieces_of(room))
        state = State.allocate(self._model, self._prompt, memory, sizes[2])
        ends = _stages(len(self._prompt.ids), sizes[2])
        device = state.at_1.device
        ends_S, flags_S = torch.tensor(ends, device=device), torch.zeros(len(ends), dtype=torch.bool, device=device)
        begins_S = torch.tensor((0, *ends[:-1]), device=device)

        def one_step(num_keys: int) -> None:
            step(self._model, self._prompt, state, num_keys)
            torch.logical_and(begins_S <= state.at_1, state.at_1 < ends_S, out=flags_S)
            flags_S.logical_and_(state.active)

        steps = [partial(one_step, min(sizes[2], _aligned(end + MOST_STEPS_IN_VAIN))) for end in ends]
        return _CapturedState(state, self._make_loop(generation, steps, flags_S))


def _stages(num_prompt: int, num_places: int) -> tuple[int, ...]:
    """The places before which each kind of step ends: the first ones look at few places, as few are filled by then."""
    ends = [num_prompt + _FIRST_STAGE]
    while ends[-1] + MOST_STEPS_IN_VAIN < num_places:
        ends.append(num_prompt + _STAGE_FACTOR * (ends[-1] - num_prompt))
    return (*ends[:-1], num_places)


def _aligned(num_places: int) -> int:
    return -(-num_places // _ALIGNED) * _ALIGNED


def _pieces_of(room: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Makes tensors of a shape that lie one after the other in the flat one."""
    taken = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal taken
        first, taken = taken, taken + math.prod(shape)
        return room[first:taken].view(shape)

    return take
