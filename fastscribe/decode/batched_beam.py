"""Beam search of a batch with a transducer: beam.py's, all rows and lanes of a turn at once.

A turn is one predictor step, one joint and one choice of the best K continuations of a row's K lanes. What each lane came
from and took is kept a turn; the host follows the best lane back. Lanes are compared by a hash of their labels. A row that
is done goes through every turn and changes nothing; so does a lane that is dead (its score is -inf: at first all but one,
later those that were merged). A language model's scores are looked up by its state.

Shapes: B batch, T frames, K lanes, J joint width, V labels with blank, N turns, H, L predictor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from fastscribe.decode.label_looping import Network
from fastscribe.language_model import Tables
from fastscribe.types import Frames, Hypothesis

_HASH_FACTOR = 6_364_136_223_846_793_005  # odd, and its products wrap around in 64 bits
_NOT_A_LABEL = -1
_MOST_NUMBERS = 1 << 24  # in the largest tensor of rows searched at once, which bounds the memory whatever the batch


@dataclass(frozen=True)
class _Lanes:
    score_BK: torch.Tensor  # float32
    frame_BK: torch.Tensor
    in_a_row_BK: torch.Tensor  # labels since the frame last changed
    hash_BK: torch.Tensor  # of the labels
    label_BK: torch.Tensor  # the last, which the predictor has not yet seen; blank at first
    predictor_2LBKH: torch.Tensor  # before that label
    written_BK: torch.Tensor  # the language model's state


@dataclass(frozen=True)
class _Written:
    """A language model's Tables, on the device."""

    added_SV: torch.Tensor
    next_SV: torch.Tensor
    start: int

    @classmethod
    def on(cls, device: torch.device, tables: Tables) -> _Written:
        added_SV, next_SV = (torch.from_numpy(table).to(device) for table in (tables.added_SV, tables.next_SV))
        return cls(added_SV, next_SV, tables.start)


class BeamDecoder:
    """A Decoder (decoder.py) that keeps `width` hypotheses a row in view."""

    def __init__(self, network: Network, width: int, language_model: Tables | None = None) -> None:
        self.network = network
        self.width = width
        self._written = _Written.on(network.device, language_model) if language_model else None

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Waits for the device at every turn. -> for each group of rows: N, [B] best lanes, five times [N, B, K]."""
        encoded_BTJ = self.network.joint.encoder(frames.frames_BTD)
        groups = self._groups(len(encoded_BTJ))
        return torch.cat([self._search(encoded_BTJ[group], frames.lengths_B[group, None]) for group in groups])

    def read(self, packed: np.ndarray, frames: Frames) -> list[Hypothesis]:
        hypotheses: list[Hypothesis] = []
        for group in self._groups(len(frames.lengths_B)):
            num_turns, batch = int(packed[0]), group.stop - group.start
            end = 1 + batch + 5 * num_turns * batch * self.width
            columns = packed[1 + batch : end].reshape(5, num_turns, batch, self.width)
            hypotheses += _followed_back(packed[1 : 1 + batch], columns)
            packed = packed[end:]
        return hypotheses

    def close(self) -> None:
        """Nothing outlives a call of submit."""

    def _groups(self, batch: int) -> list[slice]:
        """Rows that are searched together."""
        largest = max(self.network.blank_id + 1, self.network.joint_width, self.width)  # beside B x K
        rows = max(1, _MOST_NUMBERS // (self.width * largest))
        return [slice(start, min(start + rows, batch)) for start in range(0, batch, rows)]

    def _search(self, encoded_BTJ: torch.Tensor, limit_B1: torch.Tensor) -> torch.Tensor:
        lanes, turns = _begin(self.network, self._written, len(encoded_BTJ), self.width), []
        # Of a model gone wrong, scores that are no numbers go on, too, as far as their frames: no row depends on another.
        while bool(((lanes.frame_BK < limit_B1) & (lanes.score_BK != -torch.inf)).any()):
            lanes, turn_5BK = _turn(self.network, self._written, lanes, encoded_BTJ, limit_B1)
            turns.append(turn_5BK)
        turns_5NBK = torch.stack(turns, dim=1).flatten() if turns else limit_B1.new_empty(0, dtype=torch.int32)
        return torch.cat([limit_B1.new_tensor([len(turns)]).int(), lanes.score_BK.argmax(1).int(), turns_5NBK])


def _begin(network: Network, written: _Written | None, batch: int, width: int) -> _Lanes:
    like = network.predictor.first_gates_VG
    zeros_BK = torch.zeros(batch, width, dtype=torch.long, device=network.device)
    score_BK = torch.full((batch, width), -torch.inf, device=network.device)
    score_BK[:, 0] = 0.0
    predictor = like.new_zeros(2, len(network.predictor.recurrent), batch, width, like.shape[1] // 4)
    label_BK = torch.full_like(zeros_BK, network.blank_id)
    written_BK = torch.full_like(zeros_BK, written.start if written else 0)
    return _Lanes(score_BK, zeros_BK, zeros_BK, zeros_BK, label_BK, predictor, written_BK)


def _turn(
    network: Network, written: _Written | None, lanes: _Lanes, encoded_BTJ: torch.Tensor, limit_B1: torch.Tensor
) -> tuple[_Lanes, torch.Tensor]:
    """The lanes after a turn, and what each came from and took, int32 [5, B, K]: lane, label, frame, duration, logprob."""
    batch, width = lanes.score_BK.shape
    num_tokens, blank_id = network.blank_id + 1, network.blank_id
    output, predictor = network.predictor.step(lanes.label_BK.flatten(), lanes.predictor_2LBKH.flatten(2, 3))
    predicted_BKJ = network.joint.predictor(output).unflatten(0, (batch, width))
    at_BK = lanes.frame_BK.clamp(max=encoded_BTJ.shape[1] - 1)
    encoded_BKJ = encoded_BTJ.gather(1, at_BK[:, :, None].expand(-1, -1, encoded_BTJ.shape[2]))
    logits_BKX = network.joint(encoded_BKJ, predicted_BKJ)
    logprobs_BKV = logits_BKX[..., :num_tokens].log_softmax(-1, dtype=torch.float32)
    score_BKV = lanes.score_BK[..., None] + logprobs_BKV
    duration_BK = torch.zeros_like(at_BK)
    if network.durations:
        best_BK, index_BK = logits_BKX[..., num_tokens:].log_softmax(-1, dtype=torch.float32).max(-1)
        score_BKV += best_BK[..., None]
        duration_BK = network.durations_X[index_BK]
    if written:
        score_BKV[..., :blank_id] += F.embedding(lanes.written_BK, written.added_SV)
    is_over_BK = lanes.frame_BK >= limit_B1
    waiting_BKV = torch.full_like(score_BKV, -torch.inf)
    waiting_BKV[..., blank_id] = lanes.score_BK
    score_BKV = torch.where(is_over_BK[..., None], waiting_BKV, score_BKV)

    score_BK, choice_BK = score_BKV.flatten(1).topk(width)
    parent_BK, label_BK = choice_BK // num_tokens, choice_BK % num_tokens
    frame_BK, in_a_row_BK, hash_BK, took_BK, last_BK = (
        values.gather(1, parent_BK)
        for values in (lanes.frame_BK, lanes.in_a_row_BK, lanes.hash_BK, duration_BK, lanes.label_BK)
    )
    is_label_BK = label_BK != blank_id
    logprob_BK = logprobs_BKV.flatten(1).gather(1, choice_BK)
    is_full_BK = in_a_row_BK + 1 >= network.max_symbols
    advance_BK = torch.maximum(took_BK, ~is_label_BK | is_full_BK)
    next_frame_BK = torch.minimum(frame_BK + advance_BK, limit_B1)  # so that what is over stays where it is
    next_hash_BK = torch.where(is_label_BK, hash_BK * _HASH_FACTOR + label_BK + 1, hash_BK)
    after_2LBKH = _of_parents(predictor.unflatten(2, (batch, width)), parent_BK)
    before_2LBKH = _of_parents(lanes.predictor_2LBKH, parent_BK)
    new = _Lanes(
        score_BK=_merged(score_BK, next_hash_BK, next_frame_BK),
        frame_BK=next_frame_BK,
        in_a_row_BK=torch.where(advance_BK > 0, 0, in_a_row_BK + 1),
        hash_BK=next_hash_BK,
        label_BK=torch.where(is_label_BK, label_BK, last_BK),
        predictor_2LBKH=torch.where(is_label_BK[..., None], after_2LBKH, before_2LBKH),
        written_BK=_next_written(written, lanes.written_BK.gather(1, parent_BK), label_BK, is_label_BK),
    )
    kept_BK = torch.where(is_label_BK, label_BK, _NOT_A_LABEL)
    lasted_BK = took_BK if network.durations else torch.ones_like(took_BK)
    columns = (parent_BK, kept_BK, frame_BK, lasted_BK)
    return new, torch.stack([*(column_BK.int() for column_BK in columns), logprob_BK.view(torch.int32)])


def _next_written(
    written: _Written | None, state_BK: torch.Tensor, label_BK: torch.Tensor, is_label_BK: torch.Tensor
) -> torch.Tensor:
    if written is None:
        return state_BK
    next_BK = written.next_SV[state_BK, torch.where(is_label_BK, label_BK, 0)]
    return torch.where(is_label_BK, next_BK.long(), state_BK)


def _of_parents(values_2LBKH: torch.Tensor, parent_BK: torch.Tensor) -> torch.Tensor:
    return values_2LBKH.gather(3, parent_BK[None, None, :, :, None].expand_as(values_2LBKH))


def _merged(score_BK: torch.Tensor, hash_BK: torch.Tensor, frame_BK: torch.Tensor) -> torch.Tensor:
    """The scores, best first, with those of lanes that are the same put together in the first of them, the others -inf."""
    same_BKK = (hash_BK[:, :, None] == hash_BK[:, None]) & (frame_BK[:, :, None] == frame_BK[:, None])
    is_later_BK = same_BKK.tril(-1).any(-1)
    together_BK = torch.where(same_BKK, score_BK[:, None], -torch.inf).logsumexp(-1)
    return torch.where(is_later_BK, -torch.inf, together_BK)


def _followed_back(lane_B: np.ndarray, turns_5NBK: np.ndarray) -> list[Hypothesis]:
    """The way of each row's lane, from its end."""
    _, num_turns, batch, _ = turns_5NBK.shape
    rows_B = np.arange(batch)
    taken_4NB = np.empty((4, num_turns, batch), np.int32)
    for turn in range(num_turns - 1, -1, -1):
        taken_4NB[:, turn] = turns_5NBK[1:, turn, rows_B, lane_B]
        lane_B = turns_5NBK[0, turn, rows_B, lane_B]
    return [_hypothesis(taken_4NB[:, :, row]) for row in range(batch)]


def _hypothesis(taken_4N: np.ndarray) -> Hypothesis:
    labels, frames, durations, bits = taken_4N[:, taken_4N[0] != _NOT_A_LABEL]
    logprobs = np.ascontiguousarray(bits).view(np.float32)
    return Hypothesis(
        tuple(labels.tolist()), tuple(frames.tolist()), tuple(durations.tolist()), tuple(logprobs.tolist())
    )
