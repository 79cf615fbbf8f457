"""Transducer decoding with the steps of label_looping.py captured in CUDA graphs (cuda/loops.py).

One state a bucket of rows is captured, whatever the length: smaller batches leave rows empty. All of them share the flat
arrays, which grow with the largest batch so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from fastscribe.config import GraphMode
from fastscribe.cuda.graph_capture import Generation
from fastscribe.cuda.loops import DecoderGraphs, Loop, LoopMaker, bucket, decoder_for_mode, power_of_two
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.label_looping import (
    LabelLooping,
    LoopState,
    Network,
    Slots,
    load_batch_,
    pack,
    slots_needed,
    step,
)
from fastscribe.model.transducer import Transducer
from fastscribe.types import Frames, Hypothesis, Int32Array

_MAX_CAPTURES = 24  # all buckets up to 16,384 rows
# Enough for 32,768 padded frames in rows of one frame, each of which takes two slots: 86 MB with a joint of 640 in bf16.
_MIN_SLOTS = 65_536


def build_decoder(transducer: Transducer, device: torch.device, mode: GraphMode, say: Callable[[str], None]) -> Decoder:
    """A Decoder for a model that is on its device in its dtype and stays there. As `decoder_for_mode`."""
    network = Network.prepare(transducer)
    return decoder_for_mode(mode, device, say, lambda: LabelLooping(network), partial(GraphedDecoder, network))


@dataclass(frozen=True)
class _CapturedState:
    state: LoopState
    loop: Loop


class GraphedDecoder:
    """Batches go into the state captured for their number of rows; packed results are tensors of their own."""

    def __init__(self, network: Network, make_loop: LoopMaker) -> None:
        self._network = network
        self._make_loop = make_loop
        self.captured: DecoderGraphs[int, Slots, _CapturedState]
        self.captured = DecoderGraphs(network.device, partial(Slots.allocate, network), _MAX_CAPTURES)

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        batch, num_frames, _ = frames.frames_BTD.shape
        with self.captured.exclusive_use(frames):
            rows, num_slots = bucket(batch), max(_MIN_SLOTS, power_of_two(slots_needed(frames)))
            captured = self.captured.get(rows, num_slots, partial(self._make, rows))
            load_batch_(self._network, captured.state, frames)
            captured.loop.run()
            return pack(captured.state, batch, num_frames + 1)

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        """A batch with a row that found more labels than frames is decoded again, with room that grows."""
        return LabelLooping(self._network).read(packed, frames)

    def close(self) -> None:
        """Happens by itself when the object goes."""
        self.captured.close()

    def _make(self, rows: int, slots: Slots, generation: Generation) -> _CapturedState:
        state = LoopState.allocate(self._network, rows, slots)
        one_step = partial(step, self._network, state)
        return _CapturedState(state, self._make_loop(generation, one_step, state.active))
