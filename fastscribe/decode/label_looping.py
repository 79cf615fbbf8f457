"""Greedy transducer decoding of a batch: label-looping (Bataev et al. 2024) in a windowed form with one loop.

Each turn takes one predictor step, looks at a window of W encoder frames a row with the row's predictor output, and lets
every row walk its own blanks and durations inside the window. A turn yields at most one label a row, so there are about
as many turns as the longest row has labels, however large the batch; plain label-looping waits in an inner loop for the
slowest row instead.

Encoder frames and labels lie in flat arrays, a run of slots a row, so that only the number of rows is a shape: `load_batch_`
writes a batch into a State of any size, and `step` works on it in place, changes no shape and asks the host nothing. The
very same functions are captured in CUDA graphs (cuda/transducer_graphs.py). greedy.py is what the result must equal.

Rows that are finished, and rows of the State beyond the batch, go through every step and change nothing: what they look
at may lie in their neighbour's slots, what they find is dropped, and what they write goes to a slot that is free.

Shapes: B batch, T frames, S a row's slots (T+1), N slots of all rows, J joint width, W window, E window and the longest
jump out of it, V labels with blank, X V and the durations, P picks (label, and for TDT a duration), H, L predictor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from fastscribe.config import LABELS_PER_FRAME_GUARD
from fastscribe.decode.fast_predictor import FastPredictor
from fastscribe.decode.greedy import ENDLESS, max_labels
from fastscribe.model.transducer import Joint, Transducer
from fastscribe.types import Frames, Hypothesis, Int32Array

_NEEDS_SLOTS, _ENDLESS = 1, 2  # for room for more labels; beyond max_labels


@dataclass(frozen=True)
class Network:
    """A transducer as the loop wants it: weights prepared, constants on the device. Never written to."""

    predictor: FastPredictor
    joint: Joint
    joint_width: int
    blank_id: int
    max_symbols: int
    durations: tuple[int, ...]
    window: int
    offsets_W: torch.Tensor
    blank_next_offset_WX: torch.Tensor  # offset where a blank at an offset leads, for every duration (one for RNN-T)
    durations_X: torch.Tensor

    @classmethod
    @torch.inference_mode()
    def prepare(cls, transducer: Transducer, window: int | None = None) -> Network:
        """`window` frames are looked at a turn; by default fewer for larger vocabularies."""
        weight = transducer.predictor.embedding.weight
        device = weight.device
        window = window or default_window(transducer.blank_id + 1)
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
        """Offsets that a walk can end at: the window's, and those that a jump out of it reaches."""
        return self.window + max((1, *self.durations))

    @property
    def num_picks(self) -> int:
        return 2 if self.durations else 1


def default_window(num_tokens: int) -> int:
    return 8 if num_tokens <= 4096 else 4


@dataclass(frozen=True)
class Slots:
    """The flat arrays. The last slot belongs to no row: it takes the writes of rows beyond the batch."""

    encoded_NJ: torch.Tensor  # longer than the others by what a walk may look at beyond the last row
    picks_PN: torch.Tensor  # label, and for TDT the index of its duration
    times_N: torch.Tensor  # each label's frame, as its slot in encoded_NJ
    earlier_times_N: torch.Tensor  # the same memory, max_symbols - 1 slots before
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
    rows_B: torch.Tensor  # 0, 1, 2 ..
    position_2B: torch.Tensor  # the slots of the frame a row looks at and of the next label it finds
    limit_2B: torch.Tensor  # where its frames end and its room for labels ends
    max_labels_B: torch.Tensor  # that room may be made for
    label_B: torch.Tensor  # the row's last label, blank at first
    predictor_2LBH: torch.Tensor  # before that label
    picks_PBE: torch.Tensor  # what the frames of the window say; beyond it: blank
    next_offset_BE: torch.Tensor  # where a walk goes from each offset; from beyond the window: nowhere
    active: torch.Tensor  # scalar bool: some row may have more to find

    @classmethod
    @torch.inference_mode()
    def allocate(cls, network: Network, rows: int, slots: Slots) -> LoopState:
        """A state of so many rows, all of them finished."""
        device, trash = network.device, slots.capacity
        lstm = network.predictor
        hidden = lstm.first_gates_VG.shape[1] // 4
        rows_B = torch.arange(rows, device=device)
        picks_PBE = torch.zeros(network.num_picks, rows, network.num_offsets, dtype=torch.long, device=device)
        picks_PBE[0] = network.blank_id
        return cls(
            slots=slots,
            rows_B=rows_B,
            position_2B=torch.full((2, rows), trash, device=device),
            limit_2B=torch.full((2, rows), trash, device=device),
            max_labels_B=torch.zeros_like(rows_B),
            label_B=torch.full_like(rows_B, network.blank_id),
            predictor_2LBH=lstm.first_gates_VG.new_zeros(2, len(lstm.recurrent), rows, hidden),
            picks_PBE=picks_PBE,
            next_offset_BE=torch.arange(network.num_offsets, device=device).repeat(rows, 1),
            active=torch.zeros((), dtype=torch.bool, device=device),
        )


def slots_needed(frames: Frames) -> int:
    batch, num_frames, _ = frames.frames_BTD.shape
    return batch * (num_frames + 1)


@torch.inference_mode()
def load_batch_(network: Network, state: LoopState, frames: Frames) -> None:
    """Puts a batch into a state with enough rows and slots. Room for labels is one a frame of the longest row (see `step`),
    but no more than max_labels."""
    batch, num_frames, _ = frames.frames_BTD.shape
    slots, trash = state.slots, state.slots.capacity
    encoded_BTJ = network.joint.encoder(frames.frames_BTD)
    encoded_BSJ = slots.encoded_NJ[: slots_needed(frames)].view(batch, num_frames + 1, encoded_BTJ.shape[2])
    encoded_BSJ[:, :num_frames].copy_(encoded_BTJ)
    slots.times_N.fill_(-1)
    first_B = state.rows_B[:batch] * (num_frames + 1)
    state.position_2B[:, :batch] = first_B
    state.limit_2B[0, :batch] = first_B + frames.lengths_B
    state.max_labels_B[:batch] = max_labels(frames.lengths_B)
    state.limit_2B[1, :batch] = first_B + state.max_labels_B[:batch].clamp(max=num_frames)
    state.position_2B[:, batch:] = trash
    state.limit_2B[:, batch:] = trash
    state.label_B.fill_(network.blank_id)
    state.predictor_2LBH.zero_()


@torch.inference_mode()
def step(network: Network, state: LoopState) -> None:
    """One turn: advance the predictor, find each row's next label within its window, record it.

    A row whose room for labels is full waits in front of the label that it has no room for.
    """
    output_BH, predictor_2LBH = network.predictor.step(state.label_B, state.predictor_2LBH)
    logits_BWX = _joint_window(network, state, network.joint.predictor(output_BH))
    end_offset_B1 = _skip_blanks(network, state, logits_BWX)
    picked_PB = state.picks_PBE.gather(2, end_offset_B1.expand(network.num_picks, -1, 1))[..., 0]
    position_B = state.position_2B[0]
    torch.minimum(position_B + end_offset_B1[:, 0], state.limit_2B[0], out=position_B)
    ahead_B = (state.position_2B < state.limit_2B).all(0)
    torch.any(ahead_B, out=state.active)
    found_B = ahead_B & (picked_PB[0] != network.blank_id)
    _record(network, state, picked_PB, _logprobs(network, logits_BWX, end_offset_B1, picked_PB[0]))
    _move_on(network, state, found_B, picked_PB)
    torch.where(found_B, picked_PB[0], state.label_B, out=state.label_B)
    torch.where(found_B[:, None], predictor_2LBH, state.predictor_2LBH, out=state.predictor_2LBH)


def _joint_window(network: Network, state: LoopState, predicted_BJ: torch.Tensor) -> torch.Tensor:
    slots_BW = state.position_2B[0][:, None] + network.offsets_W
    logits_BWV: torch.Tensor = network.joint(F.embedding(slots_BW, state.slots.encoded_NJ), predicted_BJ[:, None])
    return logits_BWV


def _skip_blanks(network: Network, state: LoopState, logits_BWX: torch.Tensor) -> torch.Tensor:
    """Offset [B, 1] from the window's start where each row's chain of blanks ends: at a label, or beyond the window.

    Pointer doubling: next_offset_BE maps an offset to where a blank there leads and every other offset to itself, so squaring
    the map log2(W) times follows chains of up to W blanks. A chain may run past the row's last frame; whatever it finds
    there, the row is finished.
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


def _logprobs(
    network: Network, logits_BWX: torch.Tensor, end_offset_B1: torch.Tensor, label_B: torch.Tensor
) -> torch.Tensor:
    """float32 [B] over labels and blank; meaningless for rows that found none."""
    at_B1V = end_offset_B1.clamp(max=network.window - 1)[:, :, None].expand(-1, -1, network.blank_id + 1)
    logits_BV = logits_BWX.gather(1, at_B1V)[:, 0]
    return logits_BV.log_softmax(1, dtype=torch.float32).gather(1, label_B[:, None])[:, 0]


def _record(network: Network, state: LoopState, picked_PB: torch.Tensor, logprobs_B: torch.Tensor) -> None:
    """Every row writes to the slot of its next label; only a row that found one will move on from it."""
    position_B, slot_B = state.position_2B
    state.slots.picks_PN.index_copy_(1, slot_B, picked_PB)
    state.slots.times_N.index_copy_(0, slot_B, position_B)
    state.slots.logprobs_N.index_copy_(0, slot_B, logprobs_B)


def _move_on(network: Network, state: LoopState, found_B: torch.Tensor, picked_PB: torch.Tensor) -> None:
    """By the label's duration; by one frame at least where this frame has given max_symbols labels.

    It has if the label max_symbols - 1 before this one lies at the same frame. Where the row has fewer labels, that slot
    is a neighbour's, or none: the times there are never one of this row's frames.
    """
    position_B, slot_B = state.position_2B
    advance_B = state.slots.earlier_times_N[slot_B] == position_B
    if network.durations:
        advance_B = torch.maximum(network.durations_X[picked_PB[1]], advance_B)
    position_B.addcmul_(found_B, advance_B)
    slot_B.add_(found_B)


@torch.inference_mode()
def pack(state: LoopState, batch: int, row_slots: int) -> torch.Tensor:
    """-> int32: [B] labels found, [B] _NEEDS_SLOTS, _ENDLESS or 0, then [B, S] of each pick, frame and logprob.

    Frames count from the row's first slot of encoded_NJ, log-probabilities are the bits of a float32.
    """
    outputs = slice(0, batch * row_slots)
    count_B, waits_B, is_endless_B = _progress(state, batch, row_slots)
    parts = [
        count_B,
        waits_B * _NEEDS_SLOTS + is_endless_B * _ENDLESS,
        *state.slots.picks_PN[:, outputs],
        state.slots.times_N[outputs],
        state.slots.logprobs_N[outputs].view(torch.int32),
    ]
    return torch.cat([part.int() for part in parts])


def _progress(state: LoopState, batch: int, row_slots: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[B] each: labels found; whether the row waits for room; whether it has more labels than a row may have."""
    count_B = state.position_2B[1, :batch] - state.rows_B[:batch] * row_slots
    is_stopped_B = state.position_2B[0, :batch] < state.limit_2B[0, :batch]
    is_full_B = count_B >= state.max_labels_B[:batch]
    return count_B, is_stopped_B & ~is_full_B, is_stopped_B & is_full_B


def unpack(packed: Int32Array, frames: Frames, durations: tuple[int, ...]) -> list[Hypothesis] | None:
    """What `pack` made -> one Hypothesis a row; None if some row ran out of room for labels."""
    batch, num_frames, _ = frames.frames_BTD.shape
    counts, progress = packed[:batch], packed[batch : 2 * batch]
    if (progress == _NEEDS_SLOTS).any():
        return None
    columns_CBS = packed[2 * batch :].reshape(4 if durations else 3, batch, -1)
    is_label_BS = np.arange(columns_CBS.shape[2]) < counts[:, None]
    ids, *picked_durations, times, logprobs = (column_BS[is_label_BS] for column_BS in columns_CBS)
    ends = np.cumsum(counts)
    times = times - np.repeat(np.arange(batch) * (num_frames + 1), counts)
    lasted = np.asarray(durations)[picked_durations[0]] if durations else np.ones_like(ids)
    columns = (values.tolist() for values in (ids, times, lasted, logprobs.view(np.float32)))
    found_ids, frames_of, durations_of, logprobs_of = columns
    spans = [slice(end - count, end) for count, end in zip(counts.tolist(), ends.tolist(), strict=True)]
    return [
        ENDLESS
        if is_endless
        else Hypothesis(tuple(found_ids[s]), tuple(frames_of[s]), tuple(durations_of[s]), tuple(logprobs_of[s]))
        for s, is_endless in zip(spans, (progress == _ENDLESS).tolist(), strict=True)
    ]


class LabelLooping:
    """The Decoder that runs the steps one by one and asks after each whether it was the last."""

    def __init__(self, network: Network) -> None:
        self.network = network

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Waits for the device at every step. Room for labels grows where a row needs more."""
        batch, num_frames, _ = frames.frames_BTD.shape
        row_slots = num_frames + 1
        state = LoopState.allocate(self.network, batch, Slots.allocate(self.network, slots_needed(frames)))
        load_batch_(self.network, state, frames)
        while True:
            step(self.network, state)
            if not state.active:
                _, waits_B, _ = _progress(state, batch, row_slots)
                if not waits_B.any():
                    return pack(state, batch, row_slots)
                state, row_slots = grow_slots(self.network, state, row_slots), 2 * row_slots

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        """Where some row ran out of room, which only another way of running the steps lets happen, decodes anew."""
        hypotheses = unpack(packed, frames, self.network.durations)
        return self.read(self.submit(frames).cpu().numpy(), frames) if hypotheses is None else hypotheses

    def close(self) -> None:
        """Nothing outlives a call of submit."""


def grow_slots(network: Network, state: LoopState, row_slots: int) -> LoopState:
    """The same state, every row of it in the batch, with twice the slots for labels; frames stay where they are."""
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
    shift_B = state.rows_B * row_slots
    room_B = 2 * state.rows_B * row_slots + state.max_labels_B.clamp(max=2 * row_slots - 1)
    return replace(
        state,
        slots=replace(new, encoded_NJ=old.encoded_NJ),
        position_2B=torch.stack([state.position_2B[0], state.position_2B[1] + shift_B]),
        limit_2B=torch.stack([state.limit_2B[0], room_B]),
    )


def decode(transducer: Transducer, frames: Frames, window: int | None = None) -> list[Hypothesis]:
    """Frames -> one Hypothesis a row, at once."""
    decoder = LabelLooping(Network.prepare(transducer, window))
    return decoder.read(decoder.submit(frames).cpu().numpy(), frames)
