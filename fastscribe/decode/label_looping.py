"""Greedy transducer decoding of a batch: label-looping (Bataev et al. 2024), with a window of frames and a single loop.

Each step runs the predictor once, evaluates the joint network on a window of W encoder frames per row, and skips each row's
blanks inside the window. A step yields at most one label per row, so the number of steps is about the number of labels of
the longest row, whatever the batch size. Plain label-looping has an inner loop that waits for the slowest row instead.

Encoder frames and labels lie in flat arrays with a run of slots per row, so that only the number of rows is a shape.
`load_batch_` writes a batch into a state of any size. `step` works in place, changes no shape and never waits for the
device, so CUDA graphs capture the same functions (transducer_graphs.py). The result must equal that of greedy.py.

With phrases to boost or tokens that are left out (context/), another label may replace the model's where the chain of blanks
ends. `step` chooses it in `_choose_label`, the one place where anything may come between the model's
scores and the label.

Finished rows, and rows of the state beyond the batch, go through every step without effect: they may read their
neighbour's slots, their labels are dropped, and they write to a spare slot.

Shapes: B batch, T frames, S slots per row (T+1), N slots of all rows and the spare one, J joint width, W window, E offsets at
which a chain of blanks can end: the window's and those of the longest jump out of it, V labels with blank, X V plus
durations, P picks (label, and for TDT a duration), C packed columns (the picks, frame, log-probability), H, L predictor, K
lists of phrases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from fastscribe.config import LABELS_PER_FRAME_GUARD
from fastscribe.decode.decoder import ENDLESS, Decoder, max_labels
from fastscribe.families.blocks.heads import FastPredictor, Joint, Transducer
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import Frames, Int32Array

if TYPE_CHECKING:
    from fastscribe.context.boosting import BoostTables

STATUS_NEEDS_SLOTS, STATUS_ENDLESS = 1, 2  # of a row: it is out of label slots; it exceeds max_labels


@dataclass(frozen=True)
class Network:
    """A transducer prepared for the loop, with its constants on the device. Read-only."""

    predictor: FastPredictor
    joint: Joint
    joint_width: int
    blank_id: int
    max_symbols: int
    durations: tuple[int, ...]
    window: int
    offsets_W: torch.Tensor
    blank_next_offset_WX: torch.Tensor  # offset after a blank, per offset and duration (one column for RNN-T)
    durations_X: torch.Tensor

    @classmethod
    @torch.inference_mode()
    def prepare(cls, transducer: Transducer, window: int | None = None) -> Network:
        """Prepare a transducer.

        Args:
            transducer: the model, on its device in its dtype.
            window: frames per row and step; None: by vocabulary size.

        Returns:
            The network.
        """
        weight = transducer.predictor.embedding.weight
        device = weight.device
        window = window or (8 if transducer.blank_id < 4096 else 4)
        offsets_W = torch.arange(window, device=device)
        durations_X = torch.tensor(transducer.durations or (0,), device=device)
        return cls(
            predictor=FastPredictor(transducer.predictor),
            joint=transducer.joint,
            joint_width=transducer.joint.predictor(weight[:1]).shape[1],
            blank_id=transducer.blank_id,
            max_symbols=transducer.max_symbols or LABELS_PER_FRAME_GUARD,
            durations=transducer.durations,
            window=window,
            offsets_W=offsets_W,
            blank_next_offset_WX=offsets_W[:, None] + durations_X.clamp(min=1),
            durations_X=durations_X,
        )

    @property
    def device(self) -> torch.device:
        return self.offsets_W.device

    @property
    def num_offsets(self) -> int:
        """Number of offsets at which a chain of blanks can end: the window's and those of jumps out of it."""
        return self.window + max((1, *self.durations))

    @property
    def num_picks(self) -> int:
        return 2 if self.durations else 1


@dataclass(frozen=True)
class Slots:
    """The flat arrays. The last slot is spare: it takes the writes of rows beyond the batch."""

    encoded_NJ: torch.Tensor  # longer than the others, because a window may extend beyond the last row
    picks_PN: torch.Tensor  # label, and for TDT the index of its duration
    times_N: torch.Tensor  # slot of each label's frame in encoded_NJ
    earlier_times_N: torch.Tensor  # view of the same memory, max_symbols - 1 slots earlier
    logprobs_N: torch.Tensor

    @classmethod
    @torch.inference_mode()
    def allocate(cls, network: Network, num_slots: int) -> Slots:
        device, like = network.device, network.predictor.first_gates_VG
        lead = network.max_symbols - 1
        times = torch.full((lead + num_slots + 1,), -1, device=device)
        return cls(
            encoded_NJ=like.new_zeros(num_slots + 1 + network.num_offsets + network.window, network.joint_width),
            picks_PN=torch.zeros(network.num_picks, num_slots + 1, dtype=torch.long, device=device),
            times_N=times[lead:],
            earlier_times_N=times[: num_slots + 1],
            logprobs_N=torch.zeros(num_slots + 1, device=device),
        )

    @property
    def capacity(self) -> int:
        return len(self.logprobs_N) - 1


@dataclass(frozen=True)
class LoopState:
    """Tensors that `step` updates in place."""

    slots: Slots
    rows_B: torch.Tensor  # 0, 1, 2 ...
    position_2B: torch.Tensor  # slots of the current frame and of the next label
    limit_2B: torch.Tensor  # end of the row's frames and of its label slots
    max_labels_B: torch.Tensor  # limit of the label slots' growth
    label_B: torch.Tensor  # the row's last label, blank at first
    predictor_2LBH: torch.Tensor  # state before that label
    picks_PBE: torch.Tensor  # arg maxes of the window's frames; beyond it: blank
    next_offset_BE: torch.Tensor  # next offset after each offset; beyond the window: the same offset
    active: torch.Tensor  # scalar bool: True if some row may have more labels
    boost_BK: torch.Tensor  # states in the lists of phrases
    language_B: torch.Tensor  # places in the table of tokens that are left out

    @classmethod
    @torch.inference_mode()
    def allocate(cls, network: Network, rows: int, slots: Slots, num_lists: int = 0) -> LoopState:
        """Allocate a state of `rows` finished rows, each with `num_lists` lists of phrases."""
        device, spare_slot = network.device, slots.capacity
        lstm = network.predictor
        hidden = lstm.first_gates_VG.shape[1] // 4
        rows_B = torch.arange(rows, device=device)
        picks_PBE = torch.zeros(network.num_picks, rows, network.num_offsets, dtype=torch.long, device=device)
        picks_PBE[0] = network.blank_id
        return cls(
            slots=slots,
            rows_B=rows_B,
            position_2B=torch.full((2, rows), spare_slot, device=device),
            limit_2B=torch.full((2, rows), spare_slot, device=device),
            max_labels_B=torch.zeros_like(rows_B),
            label_B=torch.full_like(rows_B, network.blank_id),
            predictor_2LBH=lstm.first_gates_VG.new_zeros(2, len(lstm.recurrent), rows, hidden),
            picks_PBE=picks_PBE,
            next_offset_BE=torch.arange(network.num_offsets, device=device).repeat(rows, 1),
            active=torch.zeros((), dtype=torch.bool, device=device),
            boost_BK=torch.zeros(rows, num_lists, dtype=torch.long, device=device),
            language_B=torch.zeros_like(rows_B),
        )


def slots_needed(frames: Frames) -> int:
    batch, num_frames, _ = frames.frames_BTD.shape
    return batch * (num_frames + 1)


@torch.inference_mode()
def load_batch_(network: Network, state: LoopState, frames: Frames) -> None:
    """Load a batch into a state with enough rows and slots. A row gets label slots for the longest row's frames or
    max_labels, whichever is smaller."""
    batch, num_frames, _ = frames.frames_BTD.shape
    slots, spare_slot = state.slots, state.slots.capacity
    encoded_BTJ = network.joint.encoder(frames.frames_BTD)
    encoded_BSJ = slots.encoded_NJ[: slots_needed(frames)].view(batch, num_frames + 1, encoded_BTJ.shape[2])
    encoded_BSJ[:, :num_frames].copy_(encoded_BTJ)
    slots.times_N.fill_(-1)
    first_B = state.rows_B[:batch] * (num_frames + 1)
    state.position_2B[:, :batch] = first_B
    state.limit_2B[0, :batch] = first_B + frames.lengths_B
    state.max_labels_B[:batch] = max_labels(frames.lengths_B)
    state.limit_2B[1, :batch] = first_B + state.max_labels_B[:batch].clamp(max=num_frames)
    state.position_2B[:, batch:] = spare_slot
    state.limit_2B[:, batch:] = spare_slot
    state.label_B.fill_(network.blank_id)
    state.predictor_2LBH.zero_()
    if frames.boost is not None:
        state.boost_BK[:batch] = frames.boost.starts()
        state.boost_BK[batch:] = 0
    if frames.mask is not None:
        state.language_B[:batch] = frames.mask.places()
        state.language_B[batch:] = 0


@torch.inference_mode()
def step(
    network: Network, state: LoopState, boost: BoostTables | None = None, excluded_LV: torch.Tensor | None = None
) -> None:
    """Run the predictor, find each row's next label within its window and record it.

    A row without a free label slot stops before its next label; `grow_slots` lets it go on.

    Args:
        network: the model.
        state: updated in place.
        boost: phrases to boost; the state has a list of them.
        excluded_LV: the table of tokens that are left out; the state has the rows' places in it.
    """
    output_BH, predictor_2LBH = network.predictor.step(state.label_B, state.predictor_2LBH)
    slots_BW = state.position_2B[0][:, None] + network.offsets_W
    encoded_BWJ = F.embedding(slots_BW, state.slots.encoded_NJ)
    logits_BWX = network.joint(encoded_BWJ, network.joint.predictor(output_BH)[:, None])
    end_offset_B1 = _skip_blanks(network, state, logits_BWX)
    picked_PB = state.picks_PBE.gather(2, end_offset_B1.expand(network.num_picks, -1, 1))[..., 0]
    position_B = state.position_2B[0]
    torch.minimum(position_B + end_offset_B1[:, 0], state.limit_2B[0], out=position_B)
    ahead_B = (state.position_2B < state.limit_2B).all(0)
    torch.any(ahead_B, out=state.active)
    found_B = ahead_B & (picked_PB[0] != network.blank_id)
    logits_BV = _end_logits(network, logits_BWX, end_offset_B1)
    if boost is not None or excluded_LV is not None:
        picked_PB[0] = _choose_label(network, state, boost, excluded_LV, found_B, picked_PB[0], logits_BV)
    logprobs_B = logits_BV.log_softmax(1, dtype=torch.float32).gather(1, picked_PB[0][:, None])[:, 0]
    _record(state, picked_PB, logprobs_B)
    _advance(network, state, found_B, picked_PB)
    torch.where(found_B, picked_PB[0], state.label_B, out=state.label_B)
    torch.where(found_B[:, None], predictor_2LBH, state.predictor_2LBH, out=state.predictor_2LBH)


def _skip_blanks(network: Network, state: LoopState, logits_BWX: torch.Tensor) -> torch.Tensor:
    """Return the offset [B, 1] in the window of each row's first frame with a label, or an offset beyond the window.

    Pointer doubling: next_offset_BE maps an offset with a blank to the offset after it and every other offset to itself, so
    squaring the map log2(W) times follows chains of up to W blanks. A chain may run past the row's last frame; then the row
    is finished, whatever label is there.
    """
    window, num_tokens = network.window, network.blank_id + 1
    labels_BW = state.picks_PBE[0, :, :window]
    next_offset_BW = network.blank_next_offset_WX[:, 0]
    torch.argmax(logits_BWX[..., :num_tokens], -1, out=labels_BW)
    if network.durations:
        durations_BW = state.picks_PBE[1, :, :window]
        torch.argmax(logits_BWX[..., num_tokens:], -1, out=durations_BW)
        next_offset_BWX = network.blank_next_offset_WX.expand(len(durations_BW), -1, -1)
        next_offset_BW = next_offset_BWX.gather(2, durations_BW[..., None])[..., 0]
    is_blank_BW = labels_BW == network.blank_id
    torch.where(is_blank_BW, next_offset_BW, network.offsets_W, out=state.next_offset_BE[:, :window])
    next_offset_BE = state.next_offset_BE
    for _ in range((window - 1).bit_length()):
        next_offset_BE = next_offset_BE.gather(1, next_offset_BE)
    return next_offset_BE[:, :1]


def _end_logits(network: Network, logits_BWX: torch.Tensor, end_offset_B1: torch.Tensor) -> torch.Tensor:
    """Return the logits [B, V] of labels and blank where the chain of blanks ends; meaningless for rows without a label."""
    index_B1V = end_offset_B1.clamp(max=network.window - 1)[:, :, None].expand(-1, -1, network.blank_id + 1)
    return logits_BWX.gather(1, index_B1V)[:, 0]


def _choose_label(
    network: Network,
    state: LoopState,
    boost: BoostTables | None,
    excluded_LV: torch.Tensor | None,
    found_B: torch.Tensor,
    label_B: torch.Tensor,
    logits_BV: torch.Tensor,
) -> torch.Tensor:
    """Return each row's best label of those that stay, with the boost, and go to the states after it.

    Rows without a label keep what they have.
    """
    scores_BV = logits_BV[:, : network.blank_id]
    if boost is not None:
        next_BKV = boost.following(state.boost_BK)
        scores_BV = scores_BV + boost.scores(state.boost_BK, next_BKV)
    if excluded_LV is not None:
        scores_BV = scores_BV.masked_fill(excluded_LV[state.language_B], -torch.inf)
    chosen_B = scores_BV.argmax(1)
    if boost is not None:
        torch.where(found_B[:, None], boost.advance(next_BKV, chosen_B), state.boost_BK, out=state.boost_BK)
    return torch.where(found_B, chosen_B, label_B)


def _record(state: LoopState, picked_PB: torch.Tensor, logprobs_B: torch.Tensor) -> None:
    """Write to the next label slot of every row. Rows without a label do not advance, so a later step overwrites it."""
    position_B, slot_B = state.position_2B
    state.slots.picks_PN.index_copy_(1, slot_B, picked_PB)
    state.slots.times_N.index_copy_(0, slot_B, position_B)
    state.slots.logprobs_N.index_copy_(0, slot_B, logprobs_B)


def _advance(network: Network, state: LoopState, found_B: torch.Tensor, picked_PB: torch.Tensor) -> None:
    """Advance by the label's duration, and by at least one frame after max_symbols labels at this frame.

    The row has max_symbols labels at this frame if the label max_symbols - 1 slots earlier has the same frame. If the row has
    fewer labels, that slot is a neighbour's or unused, and its time is never a frame of this row.
    """
    position_B, slot_B = state.position_2B
    advance_B = state.slots.earlier_times_N[slot_B] == position_B
    if network.durations:
        advance_B = torch.maximum(network.durations_X[picked_PB[1]], advance_B)
    position_B.addcmul_(found_B, advance_B)
    slot_B.add_(found_B)


@torch.inference_mode()
def pack(state: LoopState, batch: int, row_slots: int) -> torch.Tensor:
    """Return int32: [B] number of labels, [B] status, then [B, S] of each pick, frame and logprob.

    The status is STATUS_NEEDS_SLOTS, STATUS_ENDLESS or 0. Frames are slots of encoded_NJ; log-probabilities are the bits
    of a float32.
    """
    outputs = slice(0, batch * row_slots)
    count_B, needs_slots_B, is_endless_B = _count_and_status(state, batch, row_slots)
    parts = [
        count_B,
        needs_slots_B * STATUS_NEEDS_SLOTS + is_endless_B * STATUS_ENDLESS,
        *state.slots.picks_PN[:, outputs],
        state.slots.times_N[outputs],
        state.slots.logprobs_N[outputs].view(torch.int32),
    ]
    return torch.cat([part.int() for part in parts])


def _count_and_status(state: LoopState, batch: int, row_slots: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return [B] each: number of labels; whether the row needs more slots; whether it exceeds max_labels."""
    count_B = state.position_2B[1, :batch] - state.rows_B[:batch] * row_slots
    is_stopped_B = state.position_2B[0, :batch] < state.limit_2B[0, :batch]
    is_full_B = count_B >= state.max_labels_B[:batch]
    return count_B, is_stopped_B & ~is_full_B, is_stopped_B & is_full_B


def unpack(packed: Int32Array, frames: Frames, durations: tuple[int, ...]) -> HypothesisColumns | None:
    """Unpack a host copy of the result of `pack`: copies, one row per row, or None if some row ran out of label slots."""
    batch, num_frames, _ = frames.frames_BTD.shape
    counts, status = packed[:batch], packed[batch : 2 * batch]
    if (status == STATUS_NEEDS_SLOTS).any():
        return None
    columns_CBS = packed[2 * batch :].reshape(4 if durations else 3, batch, -1)
    is_label_BS = np.arange(columns_CBS.shape[2]) < counts[:, None]
    ids_N, *picks_1N, times_N, logprobs_N = (column_BS[is_label_BS] for column_BS in columns_CBS)
    frames_N = times_N - np.repeat(np.arange(batch, dtype=np.int32) * np.int32(num_frames + 1), counts)
    durations_N = np.asarray(durations, np.int32)[picks_1N[0]] if durations else np.ones_like(ids_N)
    found = HypothesisColumns(counts.copy(), ids_N, frames_N, durations_N, logprobs_N.view(np.float32))
    return found.with_problem(status == STATUS_ENDLESS, ENDLESS.problem)


class LabelLooping(Decoder):
    """The decoder that launches the steps one by one and reads `active` after each."""

    def __init__(self, network: Network) -> None:
        self.network = network

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Decode a batch; waits for the device at every step. Label slots grow if a row needs more."""
        batch, num_frames, _ = frames.frames_BTD.shape
        row_slots = num_frames + 1
        boost, mask = frames.boost, frames.mask
        num_lists = boost.start_BK.shape[1] if boost else 0
        state = LoopState.allocate(self.network, batch, Slots.allocate(self.network, slots_needed(frames)), num_lists)
        load_batch_(self.network, state, frames)
        while True:
            step(self.network, state, boost.tables if boost else None, mask.excluded_LV if mask else None)
            if not state.active:
                _, needs_slots_B, _ = _count_and_status(state, batch, row_slots)
                if not needs_slots_B.any():
                    return pack(state, batch, row_slots)
                state, row_slots = grow_slots(self.network, state, row_slots), 2 * row_slots

    def read(self, packed: Int32Array, frames: Frames) -> HypothesisColumns:
        """Unpack a batch, and decode it again if a row ran out of label slots, as it can in captured loops."""
        hypotheses = unpack(packed, frames, self.network.durations)
        return self.read(self.submit(frames).cpu().numpy(), frames) if hypotheses is None else hypotheses


def grow_slots(network: Network, state: LoopState, row_slots: int) -> LoopState:
    """Double the label slots of a state without rows beyond the batch. Frames keep their slots."""
    old, batch = state.slots, len(state.rows_B)
    new = Slots.allocate(network, 2 * batch * row_slots)
    outputs = slice(0, batch * row_slots)
    for before, after in (
        (old.picks_PN, new.picks_PN),
        (old.times_N[None], new.times_N[None]),
        (old.logprobs_N[None], new.logprobs_N[None]),
    ):
        after[:, : 2 * batch * row_slots].unflatten(1, (batch, -1))[..., :row_slots] = before[:, outputs].unflatten(
            1, (batch, -1)
        )
    shift_B = state.rows_B * row_slots  # a row's label slots begin at twice the old slot, so its labels move by this
    limit_B = 2 * state.rows_B * row_slots + state.max_labels_B.clamp(max=2 * row_slots - 1)
    return replace(
        state,
        slots=replace(new, encoded_NJ=old.encoded_NJ),
        position_2B=torch.stack([state.position_2B[0], state.position_2B[1] + shift_B]),
        limit_2B=torch.stack([state.limit_2B[0], limit_B]),
    )


def decode(transducer: Transducer, frames: Frames, window: int | None = None) -> HypothesisColumns:
    """Submit and read a batch: one Hypothesis per row."""
    decoder = LabelLooping(Network.prepare(transducer, window))
    return decoder.read(decoder.submit(frames).cpu().numpy(), frames)
