"""Greedy transducer decoding of a batch: label-looping (Bataev et al. 2024) in a windowed form with one loop.

Each turn looks at a window of W encoder frames a row with the row's fixed predictor output, lets every row walk its own
blanks and durations inside the window, and takes one predictor step for the rows that found a label. A turn yields at
most one label a row, so there are about as many turns as the longest row has labels, however large the batch; plain
label-looping waits in an inner loop for the slowest row instead.

`begin` makes the state, `step` writes into it in place and never changes a shape or asks the host anything, so that
the very same functions can be captured in a CUDA graph. greedy.py is what the result must equal.

Shapes: B batch, T frames, J joint width, W window, V labels with blank, N most labels a row can have, H, L predictor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fastscribe.decode.greedy import LABELS_PER_FRAME_GUARD
from fastscribe.model.transducer import Transducer
from fastscribe.types import Frames, Hypothesis


@dataclass(frozen=True)
class State:
    """Tensors that `step` updates in place. Slot N of the outputs takes the writes of rows that emit nothing."""

    encoded_BTJ: torch.Tensor
    duration_table: torch.Tensor  # TDT durations in output order; empty for RNN-T
    lengths_B: torch.Tensor
    time_B: torch.Tensor
    predicted_BJ: torch.Tensor
    predictor_2LBH: torch.Tensor
    last_time_B: torch.Tensor  # frame of the row's last label, -1 before the first
    repeats_B: torch.Tensor  # labels in a row at that frame
    count_B: torch.Tensor
    ids_BN: torch.Tensor
    times_BN: torch.Tensor
    durations_BN: torch.Tensor
    logprobs_BN: torch.Tensor
    active: torch.Tensor  # scalar bool: some row still has frames

    @property
    def capacity(self) -> int:
        return self.ids_BN.shape[1] - 1


def decode(transducer: Transducer, frames: Frames, window: int | None = None) -> list[Hypothesis]:
    """Frames -> one Hypothesis a row. `window` frames are looked at a turn; by default fewer for larger vocabularies."""
    window = window or default_window(transducer.blank_id + 1)
    with torch.inference_mode():
        state = begin(transducer, frames)
        while bool(state.active):
            if int(state.count_B.max()) >= state.capacity:
                state = grown(state)
            step(transducer, state, window)
        return hypotheses(state)


def default_window(num_tokens: int) -> int:
    return 8 if num_tokens <= 4096 else 4


def begin(transducer: Transducer, frames: Frames) -> State:
    batch, num_frames, _ = frames.frames_BTD.shape
    device = frames.frames_BTD.device
    encoded_BTJ = transducer.joint.encoder(frames.frames_BTD)
    start_B = torch.full((batch,), transducer.blank_id, device=device)
    output_BH, state_2LBH = transducer.predictor.step(start_B, transducer.predictor.initial_state(batch))
    lengths_B = frames.lengths_B.to(torch.long)
    capacity = max(1, num_frames)

    def zeros(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return State(
        encoded_BTJ=encoded_BTJ,
        duration_table=torch.tensor(transducer.durations, dtype=torch.long, device=device),
        lengths_B=lengths_B,
        time_B=zeros(batch),
        predicted_BJ=transducer.joint.predictor(output_BH),
        predictor_2LBH=state_2LBH,
        last_time_B=zeros(batch) - 1,
        repeats_B=zeros(batch),
        count_B=zeros(batch),
        ids_BN=zeros(batch, capacity + 1),
        times_BN=zeros(batch, capacity + 1),
        durations_BN=zeros(batch, capacity + 1),
        logprobs_BN=zeros(batch, capacity + 1, dtype=torch.float32),
        active=(lengths_B > 0).any(),
    )


def step(transducer: Transducer, state: State, window: int) -> None:
    """One turn: find each row's next label within its window, record it, advance the predictor where there was one."""
    logits_BWX = _look(transducer, state, window)
    num_tokens = transducer.blank_id + 1
    labels_BW = logits_BWX[..., :num_tokens].argmax(-1)
    durations_BW = _durations(transducer, state, logits_BWX, labels_BW)
    landing_B = _walk(labels_BW == transducer.blank_id, durations_BW, state, window)
    at_B1 = landing_B.clamp(max=window - 1)[:, None]
    time_B = state.time_B + landing_B
    found_B = (landing_B < window) & (time_B < state.lengths_B)
    label_B = labels_BW.gather(1, at_B1)[:, 0]
    duration_B = durations_BW.gather(1, at_B1)[:, 0] if transducer.durations else torch.zeros_like(label_B)
    logits_BX = logits_BWX[torch.arange(len(at_B1), device=at_B1.device), at_B1[:, 0]]
    _record(transducer, state, found_B, label_B, time_B, duration_B, logits_BX[:, :num_tokens])
    _advance_time(transducer, state, found_B, time_B, duration_B)
    _advance_predictor(transducer, state, found_B, label_B)


def _look(transducer: Transducer, state: State, window: int) -> torch.Tensor:
    _, num_frames, width = state.encoded_BTJ.shape
    offsets_W = torch.arange(window, device=state.time_B.device)
    times_BW = (state.time_B[:, None] + offsets_W).clamp(max=num_frames - 1)
    encoded_BWJ = state.encoded_BTJ.gather(1, times_BW[:, :, None].expand(-1, -1, width))
    return transducer.joint(encoded_BWJ, state.predicted_BJ[:, None])


def _durations(transducer: Transducer, state: State, logits_BWX: torch.Tensor, labels_BW: torch.Tensor) -> torch.Tensor:
    """Frames each decision moves on by; a blank moves at least one."""
    is_blank_BW = labels_BW == transducer.blank_id
    if not transducer.durations:
        return is_blank_BW.long()
    durations_BW = state.duration_table[logits_BWX[..., transducer.blank_id + 1 :].argmax(-1)]
    return torch.where(is_blank_BW, durations_BW.clamp(min=1), durations_BW)


def _walk(is_blank_BW: torch.Tensor, durations_BW: torch.Tensor, state: State, window: int) -> torch.Tensor:
    """Offset from the window's start where each row's chain of blanks ends: at a label, or beyond the window or row.

    Pointer doubling: `next` maps an offset to where a blank there leads and every other offset to itself, so squaring
    the map log2(W) times follows chains of up to W blanks.
    """
    offsets_W = torch.arange(window, device=durations_BW.device)
    in_row_BW = state.time_B[:, None] + offsets_W < state.lengths_B[:, None]
    next_BW = torch.where(is_blank_BW & in_row_BW, offsets_W + durations_BW, offsets_W)
    for _ in range(max(1, (window - 1).bit_length())):
        beyond_BW = next_BW >= window
        next_BW = torch.where(beyond_BW, next_BW, next_BW.gather(1, next_BW.clamp(max=window - 1)))
    return next_BW[:, 0]


def _record(
    transducer: Transducer,
    state: State,
    found_B: torch.Tensor,
    label_B: torch.Tensor,
    time_B: torch.Tensor,
    duration_B: torch.Tensor,
    logits_BV: torch.Tensor,
) -> None:
    slot_B1 = torch.where(found_B, state.count_B, state.capacity)[:, None]
    logits_BV = logits_BV.float()
    logprob_B = logits_BV.gather(1, label_B[:, None])[:, 0] - logits_BV.logsumexp(1)
    state.ids_BN.scatter_(1, slot_B1, label_B[:, None])
    state.times_BN.scatter_(1, slot_B1, time_B[:, None])
    state.durations_BN.scatter_(1, slot_B1, duration_B[:, None] if transducer.durations else torch.ones_like(slot_B1))
    state.logprobs_BN.scatter_(1, slot_B1, logprob_B[:, None])
    state.count_B.add_(found_B)


def _advance_time(
    transducer: Transducer, state: State, found_B: torch.Tensor, time_B: torch.Tensor, duration_B: torch.Tensor
) -> None:
    repeats_B = torch.where(time_B == state.last_time_B, state.repeats_B + 1, 1)
    state.repeats_B.copy_(torch.where(found_B, repeats_B, state.repeats_B))
    state.last_time_B.copy_(torch.where(found_B, time_B, state.last_time_B))
    max_symbols = transducer.max_symbols or LABELS_PER_FRAME_GUARD
    stuck_B = found_B & (duration_B == 0) & (state.repeats_B >= max_symbols)
    state.time_B.copy_(time_B + found_B * duration_B + stuck_B)
    state.active.copy_((state.time_B < state.lengths_B).any())


def _advance_predictor(transducer: Transducer, state: State, found_B: torch.Tensor, label_B: torch.Tensor) -> None:
    output_BH, new_2LBH = transducer.predictor.step(label_B, state.predictor_2LBH)
    predicted_BJ = transducer.joint.predictor(output_BH)
    state.predicted_BJ.copy_(torch.where(found_B[:, None], predicted_BJ, state.predicted_BJ))
    state.predictor_2LBH.copy_(torch.where(found_B[:, None], new_2LBH, state.predictor_2LBH))


def grown(state: State) -> State:
    """The same state with twice the room for labels."""

    def widen(tensor_BN: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(tensor_BN[:, :-1], (0, state.capacity + 1))

    outputs = ("ids_BN", "times_BN", "durations_BN", "logprobs_BN")
    return replace(state, **{name: widen(getattr(state, name)) for name in outputs})


def hypotheses(state: State) -> list[Hypothesis]:
    """Copies the results to the host at once."""
    longest = int(state.count_B.max()) if len(state.count_B) else 0
    columns = (state.ids_BN, state.times_BN, state.durations_BN, state.logprobs_BN)
    ids, times, durations, logprobs = (column[:, :longest].tolist() for column in columns)
    return [
        Hypothesis(*(tuple(rows[row][:count]) for rows in (ids, times, durations, logprobs)))
        for row, count in enumerate(state.count_B.tolist())
    ]
