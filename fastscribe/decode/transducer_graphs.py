"""Transducer decoding with the steps of label_looping.py captured in CUDA graphs (cuda/loops.py).

One state is captured per bucket of rows, for any length; smaller batches are padded. All states share the flat arrays, which
grow with the largest batch so far. With phrases to boost, a state also belongs to the sizes of the tables that its graphs read;
the tables of a batch are copied there. Tokens that are left out are read where their table lies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from fastscribe.config import GraphMode
from fastscribe.cuda.graph_capture import Generation
from fastscribe.cuda.loops import Loop, LoopMaker, bucket, power_of_two
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.graph_modes import DecoderGraphs, decoder_for_mode
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
from fastscribe.families.blocks.heads import Transducer
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import Frames, Int32Array

if TYPE_CHECKING:
    from fastscribe.context.boosting import BoostTables, FixedTables

_MAX_CAPTURES = 24  # all buckets up to 16,384 rows
# Rows, lists of phrases of a row, what tells their tables apart, address of the table of tokens that are left out or 0.
_Key = tuple[int, int, Hashable, int]
# Enough for 32,768 rows of one frame, which take two slots each: 86 MB with a joint of 640 in bf16.
_MIN_SLOTS = 65_536


def build_on_gpu(transducer: Transducer, device: torch.device, mode: GraphMode, say: Callable[[str], None]) -> Decoder:
    """Build the decoder of a model on a GPU, which must stay there in its dtype. Arguments as in decoder_for_mode."""
    network = Network.prepare(transducer)
    return decoder_for_mode(mode, device, say, lambda: LabelLooping(network), partial(GraphedDecoder, network))


@dataclass(frozen=True)
class _CapturedState:
    state: LoopState
    loop: Loop


class GraphedDecoder:
    """A Decoder (decoder.py) that loads each batch into the captured state of its number of rows."""

    def __init__(self, network: Network, make_loop: LoopMaker) -> None:
        self._network = network
        self._make_loop = make_loop
        self.captured: DecoderGraphs[_Key, Slots, _CapturedState]
        self.captured = DecoderGraphs(network.device, partial(Slots.allocate, network), _MAX_CAPTURES)
        self._place: FixedTables | None = None  # of phrases to boost

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        batch, num_frames, _ = frames.frames_BTD.shape
        with self.captured.exclusive_use(frames):
            rows, num_slots = bucket(batch), max(_MIN_SLOTS, power_of_two(slots_needed(frames)))
            num_lists, tables, sizes = 0, None, None
            if frames.boost is not None:
                self._place = self._place or frames.boost.new_place()
                num_lists, (tables, sizes) = frames.boost.start_BK.shape[1], self._place.load(frames.boost)
            excluded_LV = None if frames.mask is None else frames.mask.excluded_LV
            key = rows, num_lists, sizes, 0 if excluded_LV is None else excluded_LV.data_ptr()
            captured = self.captured.get(key, num_slots, partial(self._make, rows, num_lists, tables, excluded_LV))
            load_batch_(self._network, captured.state, frames)
            captured.loop.run()
            return pack(captured.state, batch, num_frames + 1)

    def read(self, packed: Int32Array, frames: Frames) -> HypothesisColumns:
        """Unpack a batch; if a row has more labels than slots, decode it again with growing slots."""
        return LabelLooping(self._network).read(packed, frames)

    def close(self) -> None:
        """Free graphs and buffers; garbage collection does the same."""
        self.captured.close()
        self._place = None

    def _make(
        self,
        rows: int,
        num_lists: int,
        tables: BoostTables | None,
        excluded_LV: torch.Tensor | None,
        slots: Slots,
        generation: Generation,
    ) -> _CapturedState:
        state = LoopState.allocate(self._network, rows, slots, num_lists)
        one_step = partial(step, self._network, state, tables, excluded_LV)
        return _CapturedState(state, self._make_loop(generation, one_step, state.active))
