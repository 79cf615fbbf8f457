"""The steps of aed.py captured in CUDA graphs (cuda/loops.py).

A batch goes through them in stretches, between which the host looks how far it is. Steps look at no more places than may be
filled by then, and a batch that has few rows left goes on in a smaller state: neither room that is empty nor rows that are
done cost much. A state for each pair of sizes (rows, frames), and a graph for each number of places, are captured when they
are first needed; smaller batches leave rows and places empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fastscribe.config import GraphMode
from fastscribe.cuda.device import small_to_device
from fastscribe.cuda.graph_capture import Generation
from fastscribe.cuda.loops import MAX_WASTED_STEPS, DecoderGraphs, Loop, LoopMaker, bucket, decoder_for_mode
from fastscribe.decode import aed
from fastscribe.decode.aed import AedDecoder, AedState, load_batch_, pack, places_needed, step, store_rows
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.prompt import Prompt
from fastscribe.model.aed import AttentionDecoder
from fastscribe.types import Frames, Hypothesis, Int32Array

_MAX_CAPTURES = 96  # of sizes and places; a batch goes through some six
_MIN_FRAMES = 16
_STEPS_PER_CHECK = 32  # tokens, about ten seconds of speech
_MIN_KEYS = 96  # and twice as many, and so on
_MIN_ROWS = 8  # fewer cost as much: it is the weights that a step reads then
_ALIGNED = 8  # places, as attention kernels like them


def build_aed_decoder(
    model: AttentionDecoder, prompt: Prompt, device: torch.device, mode: GraphMode, say: Callable[[str], None]
) -> Decoder:
    """A Decoder for a model that is on its device in its dtype and stays there. As loops.decoder_for_mode."""
    return decoder_for_mode(mode, device, say, lambda: AedDecoder(model, prompt), partial(GraphedAed, model, prompt))


@dataclass(frozen=True)
class _Buffers:
    flat: torch.Tensor
    states: dict[tuple[int, int], AedState]  # that lie in it, by rows and frames


@dataclass(frozen=True)
class _CapturedSteps:
    state: AedState
    stop_1: torch.Tensor  # the place at which a stretch ends
    loop: Loop


class GraphedAed:
    """Batches go into the state captured for their size; packed results are tensors of their own."""

    def __init__(self, model: AttentionDecoder, prompt: Prompt, make_loop: LoopMaker) -> None:
        self._model, self._prompt, self._make_loop = model, prompt, make_loop
        like = model.embedding.weight
        self.captured: DecoderGraphs[tuple[int, int, int], _Buffers, _CapturedSteps]
        self.captured = DecoderGraphs(like.device, lambda size: _Buffers(like.new_zeros(size), {}), _MAX_CAPTURES)

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """The host waits for the device after each stretch."""
        batch, num_frames, _ = frames.frames_BTD.shape
        num_prompt, num_frames = len(self._prompt.ids), bucket(max(_MIN_FRAMES, num_frames))
        with self.captured.exclusive_use(frames):
            captured = self._for(bucket(batch), num_frames, num_prompt)
            whole = captured.state
            load_batch_(self._model, self._prompt, whole, frames)
            rows_R, at = torch.arange(batch, device=whole.at_1.device), num_prompt
            while True:
                captured.stop_1.fill_(at + _STEPS_PER_CHECK)
                captured.loop.run()
                at, kept = _progress(captured.state, len(rows_R))
                if not kept:
                    break
                rows_R, captured = self._drop_finished(rows_R, kept, captured, at, whole)
            store_rows(whole, rows_R, captured.state)
            return pack(whole, frames, num_prompt)

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        return aed.read(self._model, self._prompt, packed, len(frames.lengths_B))

    def close(self) -> None:
        """Happens by itself when the object goes."""
        self.captured.close()

    def _drop_finished(
        self, rows_R: torch.Tensor, kept: list[int], captured: _CapturedSteps, at: int, whole: AedState
    ) -> tuple[torch.Tensor, _CapturedSteps]:
        """The rows that go on, and what is captured for them at this place."""
        state = captured.state
        rows_now, _, _, num_frames = state.cache.mask_B11T.shape
        rows = bucket(max(_MIN_ROWS, len(kept)))
        if 3 * rows > 2 * rows_now:
            return rows_R, self._for(rows_now, num_frames, at)
        store_rows(whole, rows_R, state)
        kept_R = small_to_device(np.array(kept), rows_R.device)
        kept_rows = state.rows(kept_R)  # copied, because the smaller state lies in the same memory
        captured = self._for(rows, num_frames, at)
        captured.state.take_(kept_rows)
        return rows_R[kept_R], captured

    def _for(self, rows: int, num_frames: int, at: int) -> _CapturedSteps:
        """For a stretch that begins at a place."""
        num_places = _aligned(places_needed(self._model, self._prompt, num_frames))
        num_keys = _MIN_KEYS
        while num_keys < at + _STEPS_PER_CHECK + MAX_WASTED_STEPS:
            num_keys *= 2
        num_keys = min(num_keys, num_places)
        sizes = (rows, num_frames, num_places)
        make = partial(self._make, sizes, num_keys)
        return self.captured.get((rows, num_frames, num_keys), self._model.cache_elements(*sizes), make)

    def _make(
        self, sizes: tuple[int, int, int], num_keys: int, buffers: _Buffers, generation: Generation
    ) -> _CapturedSteps:
        model, prompt = self._model, self._prompt  # what is captured must not hold what holds it
        state = self._state(sizes, buffers)
        stop_1, goes_on = torch.zeros_like(state.at_1), torch.zeros_like(state.active)

        def one_step() -> None:
            step(model, prompt, state, num_keys)
            torch.logical_and(state.at_1 < stop_1, state.active, out=goes_on.view(1))

        restore = state.snapshot()  # a batch may be in it, and is not to go on while its steps are captured
        try:
            return _CapturedSteps(state, stop_1, self._make_loop(generation, one_step, goes_on))
        finally:
            restore()

    def _state(self, sizes: tuple[int, int, int], buffers: _Buffers) -> AedState:
        rows, num_frames, num_places = sizes
        if (rows, num_frames) not in buffers.states:
            cache = self._model.new_cache(*sizes, _allocator(buffers.flat))
            buffers.states[rows, num_frames] = AedState.allocate(self._model, self._prompt, cache, num_places)
        return buffers.states[rows, num_frames]


def _progress(state: AedState, num_rows: int) -> tuple[int, list[int]]:
    """The place that is read next, and which of the first rows are not done. The host waits for the device."""
    at, *is_done = torch.cat([state.at_1, state.is_done_B[:num_rows].long()]).tolist()
    return at, [row for row, done in enumerate(is_done) if not done]


def _aligned(num_places: int) -> int:
    return -(-num_places // _ALIGNED) * _ALIGNED


def _allocator(buffers: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Makes tensors of a shape that lie one after the other in the flat one."""
    taken = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal taken
        first, taken = taken, taken + math.prod(shape)
        return buffers[first:taken].view(shape)

    return take
