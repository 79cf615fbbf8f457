"""Attention decoding with the steps of decode/aed.py captured in CUDA graphs (cuda/loops.py).

A batch runs in blocks of steps, between which the host reads its progress. Self-attention reads only the positions that may
be filled by the end of the block, and a batch with few unfinished rows moves to a smaller state. A state is allocated for
each bucket of rows and frames, and a graph is captured for each number of positions, on first use; smaller batches are padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from fastscribe.config import GraphMode
from fastscribe.cuda.device import small_to_device
from fastscribe.cuda.graph_capture import Generation
from fastscribe.cuda.loops import MAX_WASTED_STEPS, Loop, LoopMaker, bucket
from fastscribe.decode.aed import AedDecoder, AedState, load_batch_, pack, positions_needed, step, store_rows
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.graph_modes import DecoderGraphs, decoder_for_mode
from fastscribe.decode.prompt import Prompt
from fastscribe.families.canary.attention_decoder import AttentionDecoder
from fastscribe.types import Frames

if TYPE_CHECKING:
    from fastscribe.context.boosting import Boost, BoostTables, FixedTables

_MAX_CAPTURES = 96  # graphs; a batch needs about six
_MIN_FRAMES = 16
_STEPS_PER_CHECK = 32  # tokens, about ten seconds of speech
_MIN_KEYS = 96  # positions; larger sizes double
_MIN_ROWS = 8  # fewer rows cost the same, because reading the weights dominates
_POSITION_MULTIPLE = 8  # positions, for attention kernels


def build_on_gpu(
    model: AttentionDecoder, prompt: Prompt, device: torch.device, mode: GraphMode, say: Callable[[str], None]
) -> Decoder:
    """Build the decoder of a model on a GPU, which must stay there in its dtype. Arguments as in decoder_for_mode."""
    return decoder_for_mode(mode, device, say, lambda: AedDecoder(model, prompt), partial(GraphedAed, model, prompt))


@dataclass(frozen=True)
class _Buffers:
    flat: torch.Tensor
    states: dict[tuple[int, int, int], AedState]  # views of `flat`, by rows, frames and lists of phrases


# Lists of phrases of a row, their tables, and what tells these apart.
_Phrases: TypeAlias = "tuple[int, BoostTables | None, Hashable]"
_NO_PHRASES: _Phrases = (0, None, None)


@dataclass(frozen=True)
class _CapturedSteps:
    state: AedState
    stop_1: torch.Tensor  # position at which the block of steps ends
    loop: Loop


class GraphedAed(AedDecoder):
    """The decoder that loads each batch into the captured state of its size."""

    def __init__(self, model: AttentionDecoder, prompt: Prompt, make_loop: LoopMaker) -> None:
        super().__init__(model, prompt)
        self._make_loop = make_loop
        like = model.embedding.weight
        self._place: FixedTables | None = None  # of phrases to boost
        self.captured: DecoderGraphs[tuple[int, int, int, int, Hashable], _Buffers, _CapturedSteps]
        self.captured = DecoderGraphs(like.device, lambda size: _Buffers(like.new_zeros(size), {}), _MAX_CAPTURES)

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Decode a batch; waits for the device after each block of steps."""
        batch, num_frames, _ = frames.frames_BTD.shape
        num_prompt, num_frames = len(self.prompt.ids), bucket(max(_MIN_FRAMES, num_frames))
        with self.captured.exclusive_use(frames):
            phrases = _NO_PHRASES if frames.boost is None else self._load(frames.boost)
            captured = self._captured_for(bucket(batch), num_frames, num_prompt, phrases)
            whole = captured.state
            load_batch_(self.model, self.prompt, whole, frames, phrases[1])
            rows_R, position = torch.arange(batch, device=whole.position_1.device), num_prompt
            while True:
                captured.stop_1.fill_(position + _STEPS_PER_CHECK)
                captured.loop.run()
                position, kept = _progress(captured.state, len(rows_R))
                if not kept:
                    break
                rows_R, captured = self._go_on(rows_R, kept, captured, position, whole, phrases)
            store_rows(whole, rows_R, captured.state)
            return pack(whole, frames, num_prompt)

    def close(self) -> None:
        """Free graphs and buffers; garbage collection does the same."""
        self.captured.close()
        self._place = None

    def _load(self, boost: Boost) -> _Phrases:
        """Copy the tables of a batch to where graphs read them."""
        self._place = self._place or boost.new_place()
        return boost.start_BK.shape[1], *self._place.load(boost)

    def _go_on(
        self,
        rows_R: torch.Tensor,
        kept: list[int],
        captured: _CapturedSteps,
        position: int,
        whole: AedState,
        phrases: _Phrases,
    ) -> tuple[torch.Tensor, _CapturedSteps]:
        """Return the unfinished rows, and the captured steps for them at this position."""
        state = captured.state
        rows_now, _, _, num_frames = state.cache.mask_B11T.shape
        rows = bucket(max(_MIN_ROWS, len(kept)))
        if 3 * rows > 2 * rows_now:
            return rows_R, self._captured_for(rows_now, num_frames, position, phrases)
        store_rows(whole, rows_R, state)
        kept_R = small_to_device(np.array(kept), rows_R.device)
        kept_rows = state.rows(kept_R)  # a copy, because the smaller state shares the memory
        captured = self._captured_for(rows, num_frames, position, phrases)
        captured.state.copy_from_(kept_rows)
        return rows_R[kept_R], captured

    def _captured_for(self, rows: int, num_frames: int, position: int, phrases: _Phrases) -> _CapturedSteps:
        """Return the captured steps for a block that begins at this position."""
        num_positions = (
            -(-positions_needed(self.model, self.prompt, num_frames) // _POSITION_MULTIPLE) * _POSITION_MULTIPLE
        )
        num_keys = _MIN_KEYS
        while num_keys < position + _STEPS_PER_CHECK + MAX_WASTED_STEPS:
            num_keys *= 2
        num_keys = min(num_keys, num_positions)
        sizes = (rows, num_frames, num_positions)
        make = partial(self._make, sizes, num_keys, phrases)
        key = rows, num_frames, num_keys, phrases[0], phrases[2]
        return self.captured.get(key, self.model.cache_elements(*sizes), make)

    def _make(
        self, sizes: tuple[int, int, int], num_keys: int, phrases: _Phrases, buffers: _Buffers, generation: Generation
    ) -> _CapturedSteps:
        model, prompt = self.model, self.prompt  # a reference to self would be a cycle
        num_lists, tables, _ = phrases
        state = self._state(sizes, num_lists, buffers)
        stop_1, is_running = torch.zeros_like(state.position_1), torch.zeros_like(state.active)

        def one_step() -> None:
            step(model, prompt, state, num_keys, tables)
            torch.logical_and(state.position_1 < stop_1, state.active, out=is_running.view(1))

        restore = state.snapshot()  # the state may hold a batch, which the warm-up must not change
        state.boost_BK.zero_()  # states of an earlier batch may be beyond these tables
        try:
            return _CapturedSteps(state, stop_1, self._make_loop(generation, one_step, is_running))
        finally:
            restore()

    def _state(self, sizes: tuple[int, int, int], num_lists: int, buffers: _Buffers) -> AedState:
        rows, num_frames, num_positions = sizes
        key = rows, num_frames, num_lists
        if key not in buffers.states:
            cache = self.model.new_cache(*sizes, _allocator(buffers.flat))
            buffers.states[key] = AedState.allocate(self.model, self.prompt, cache, num_positions, num_lists)
        return buffers.states[key]


def _progress(state: AedState, num_rows: int) -> tuple[int, list[int]]:
    """Return the current position and the indices of unfinished rows; waits for the device."""
    position, *is_done = torch.cat([state.position_1, state.is_done_B[:num_rows].long()]).tolist()
    return position, [row for row, done in enumerate(is_done) if not done]


def _allocator(buffers: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return a function that allocates consecutive views of the flat buffer."""
    taken = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal taken
        first, taken = taken, taken + math.prod(shape)
        return buffers[first:taken].view(shape)

    return take
