"""Beam search of a batch with a transducer: beam.py's, all rows and lanes of a turn at once.

A turn is one joint, one choice of the best K continuations of a row's K lanes, and one predictor step for those that took a
label. What each lane came from and took is kept a turn; the host follows the best lane back. Lanes are compared by a hash of
their labels. A row that is done goes through every turn and changes nothing; so does a lane that is dead (its score is -inf:
at first all but one, later those that were merged). A language model's scores are looked up by its state.

Shapes: B batch, T frames, K lanes, N = B x K, J joint width, V labels with blank, U turns, H, L predictor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fastscribe.decode.beam import max_turns
from fastscribe.decode.greedy import ENDLESS
from fastscribe.decode.label_looping import Network
from fastscribe.text.language_model import Tables
from fastscribe.types import Frames, Hypothesis, Int32Array

_HASH_FACTOR = 6_364_136_223_846_793_005  # odd, and its products wrap around in 64 bits
_MAX_NUMBERS = 1 << 24  # in the largest tensor of rows searched at once, which bounds the memory whatever the batch


@dataclass(frozen=True)
class _Beams:
    score_BK: torch.Tensor  # float32
    facts_N4: torch.Tensor  # frame; labels since it last changed; hash of the labels; the language model's state
    predicted_NJ: torch.Tensor  # what the joint makes of the predictor's output after the labels
    predictor_2LNH: torch.Tensor


@dataclass(frozen=True)
class _Encoded:
    """What does not change from turn to turn."""

    encoded_RJ: torch.Tensor  # R = B x T
    first_frames_N: torch.Tensor  # of a lane's row in encoded_RJ
    first_beams_B1: torch.Tensor  # of a row in N
    last_frame: int
    limit_N: torch.Tensor  # frames
    max_turns_B: torch.Tensor

    @classmethod
    def of(cls, encoded_BTJ: torch.Tensor, limit_B1: torch.Tensor, width: int) -> _Encoded:
        batch, num_frames, _ = encoded_BTJ.shape
        rows_B1 = torch.arange(batch, device=encoded_BTJ.device)[:, None]
        first_frames_N = (rows_B1 * num_frames).expand(-1, width).flatten()
        limit_N = limit_B1.expand(-1, width).flatten()
        turns_B = max_turns(limit_B1[:, 0])
        return cls(encoded_BTJ.flatten(0, 1), first_frames_N, rows_B1 * width, num_frames - 1, limit_N, turns_B)


class BeamDecoder:
    """A Decoder (decoder.py) that keeps `width` hypotheses a row in view."""

    def __init__(self, network: Network, width: int, language_model: Tables | None = None) -> None:
        self.network = network
        self.width = width
        self.language_model = language_model.on(network.device) if language_model else None

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Waits for the device twice a turn. -> for each group of rows: U, [B] best lanes or -1 for a row without an end,
        five times [U, B, K]."""
        encoded_BTJ = self.network.joint.encoder(frames.frames_BTD)
        groups = self._groups(len(encoded_BTJ))
        return torch.cat([self._search(encoded_BTJ[group], frames.lengths_B[group, None]) for group in groups])

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        hypotheses: list[Hypothesis] = []
        for group in self._groups(len(frames.lengths_B)):
            num_turns, batch = int(packed[0]), group.stop - group.start
            end = 1 + batch + 5 * num_turns * batch * self.width
            turns_5UBK = packed[1 + batch : end].reshape(5, num_turns, batch, self.width)
            hypotheses += self._hypotheses(packed[1 : 1 + batch], turns_5UBK)
            packed = packed[end:]
        return hypotheses

    def close(self) -> None:
        """Nothing outlives a call of submit."""

    def _groups(self, batch: int) -> list[slice]:
        """Rows that are searched together."""
        largest = max(self.network.blank_id + 1, self.network.joint_width, self.width)  # beside B x K
        rows = max(1, _MAX_NUMBERS // (self.width * largest))
        return [slice(start, min(start + rows, batch)) for start in range(0, batch, rows)]

    def _search(self, encoded_BTJ: torch.Tensor, limit_B1: torch.Tensor) -> torch.Tensor:
        rows = _Encoded.of(encoded_BTJ, limit_B1, self.width)
        beams = _begin(self.network, self.language_model, len(encoded_BTJ), self.width)
        turns: list[tuple[torch.Tensor, ...]] = []
        # Of a model gone wrong, scores that are no numbers go on, too, as far as their frames: no row depends on another.
        is_endless_B = torch.zeros_like(rows.max_turns_B, dtype=torch.bool)
        while True:
            is_alive_N = (beams.facts_N4[:, 0] < rows.limit_N) & (beams.score_BK.flatten() != -torch.inf)
            is_alive_B = is_alive_N.view_as(beams.score_BK).any(1)
            is_endless_B |= is_alive_B & (rows.max_turns_B <= len(turns))
            if not bool((is_alive_B & ~is_endless_B).any()):
                break
            beams, turn = _turn(self.network, self.language_model, beams, rows)
            turns.append(turn)
        columns = (torch.cat(column) for column in zip(*turns, strict=True))
        flat = (column.view(torch.int32) if column.is_floating_point() else column.int() for column in columns)
        best_B = beams.score_BK.argmax(1).masked_fill_(is_endless_B, -1)
        return torch.cat([best_B.new_full((1,), len(turns)).int(), best_B.int(), *flat])

    def _hypotheses(self, beam_B: Int32Array, turns_5UBK: Int32Array) -> list[Hypothesis]:
        """The way of each row's lane, from its end."""
        _, num_turns, batch, _ = turns_5UBK.shape
        rows_B, is_endless_B = np.arange(batch), beam_B < 0
        taken_4UB = np.empty((4, num_turns, batch), np.int32)
        for turn in range(num_turns - 1, -1, -1):
            taken_4UB[:, turn] = turns_5UBK[1:, turn, rows_B, beam_B]
            beam_B = turns_5UBK[0, turn, rows_B, beam_B]
        return [
            ENDLESS if is_endless_B[row] else _hypothesis(taken_4UB[:, :, row], self.network) for row in range(batch)
        ]


def _begin(network: Network, language_model: Tables | None, batch: int, width: int) -> _Beams:
    like = network.predictor.first_gates_VG
    score_BK = torch.full((batch, width), -torch.inf, device=network.device)
    score_BK[:, 0] = 0.0
    facts_N4 = torch.zeros(batch * width, 4, dtype=torch.long, device=network.device)
    facts_N4[:, 3] = language_model.start if language_model else 0
    before_2LNH = like.new_zeros(2, len(network.predictor.recurrent), batch * width, like.shape[1] // 4)
    output_NH, predictor_2LNH = network.predictor.step(torch.full_like(facts_N4[:, 0], network.blank_id), before_2LNH)
    return _Beams(score_BK, facts_N4, network.joint.predictor(output_NH), predictor_2LNH)


def _turn(
    network: Network, language_model: Tables | None, beams: _Beams, rows: _Encoded
) -> tuple[_Beams, tuple[torch.Tensor, ...]]:
    """The lanes after a turn, and what each came from and took, [N] each: lane of its row, label, frame, duration, logprob."""
    num_tokens, blank_id = network.blank_id + 1, network.blank_id
    frame_N, state_N = beams.facts_N4[:, 0], beams.facts_N4[:, 3]
    encoded_NJ = rows.encoded_RJ.index_select(0, rows.first_frames_N + frame_N.clamp(max=rows.last_frame))
    logits_NX = network.joint(encoded_NJ, beams.predicted_NJ)
    logprobs_NV = logits_NX[:, :num_tokens].log_softmax(-1, dtype=torch.float32)
    score_N = beams.score_BK.flatten()
    duration_N = torch.zeros_like(frame_N)
    score_NV = logprobs_NV + score_N[:, None]
    if network.durations:
        best_N, index_N = logits_NX[:, num_tokens:].log_softmax(-1, dtype=torch.float32).max(-1)
        score_NV += best_N[:, None]
        duration_N = network.durations_X.index_select(0, index_N)
    if language_model:
        score_NV[:, :blank_id] += language_model.added_SV.index_select(0, state_N)
    is_over_N = frame_N >= rows.limit_N
    score_NV.masked_fill_(is_over_N[:, None], -torch.inf)
    score_NV[:, blank_id] = torch.where(is_over_N, score_N, score_NV[:, blank_id])

    score_BK, choice_BK = score_NV.view(len(beams.score_BK), -1).topk(beams.score_BK.shape[1])
    parent_BK = choice_BK // num_tokens
    parent_N = (rows.first_beams_B1 + parent_BK).flatten()
    label_N = (choice_BK % num_tokens).flatten()
    logprob_N = logprobs_NV[parent_N, label_N]
    is_label_N = label_N != blank_id
    took_N = duration_N.index_select(0, parent_N)
    frame_N, in_a_row_N, hash_N, state_N = beams.facts_N4.index_select(0, parent_N).unbind(1)
    advance_N = torch.maximum(took_N, ~is_label_N | (in_a_row_N + 1 >= network.max_symbols))
    next_frame_N = torch.minimum(frame_N + advance_N, rows.limit_N)  # so that what is over stays where it is
    next_hash_N = torch.where(is_label_N, hash_N * _HASH_FACTOR + label_N + 1, hash_N)
    next_in_a_row_N = torch.where(advance_N > 0, 0, in_a_row_N + 1)
    if language_model:
        state_N = torch.where(is_label_N, language_model.next_SV[state_N, label_N.clamp(max=blank_id - 1)], state_N)
    predicted_NJ, predictor_2LNH = _predicted(network, beams, parent_N, label_N, is_label_N)
    new = _Beams(
        score_BK=_merged(score_BK, next_hash_N.view_as(score_BK), next_frame_N.view_as(score_BK)),
        facts_N4=torch.stack((next_frame_N, next_in_a_row_N, next_hash_N, state_N), dim=1),
        predicted_NJ=predicted_NJ,
        predictor_2LNH=predictor_2LNH,
    )
    return new, (parent_BK.flatten(), label_N, frame_N, took_N, logprob_N)


def _predicted(
    network: Network, beams: _Beams, parent_N: torch.Tensor, label_N: torch.Tensor, is_label_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The parents', with a step for the lanes that took a label."""
    predicted_NJ = beams.predicted_NJ.index_select(0, parent_N)
    predictor_2LNH = beams.predictor_2LNH.index_select(2, parent_N)
    stepping_M = is_label_N.nonzero()[:, 0]
    if len(stepping_M):
        before_2LMH = predictor_2LNH.index_select(2, stepping_M)
        output_MH, after_2LMH = network.predictor.step(label_N.index_select(0, stepping_M), before_2LMH)
        predicted_NJ.index_copy_(0, stepping_M, network.joint.predictor(output_MH))
        predictor_2LNH.index_copy_(2, stepping_M, after_2LMH)
    return predicted_NJ, predictor_2LNH


def _merged(score_BK: torch.Tensor, hash_BK: torch.Tensor, frame_BK: torch.Tensor) -> torch.Tensor:
    """The scores, best first, with those of lanes that are the same put together in the first of them, the others -inf."""
    same_BKK = (hash_BK[:, :, None] == hash_BK[:, None]) & (frame_BK[:, :, None] == frame_BK[:, None])
    is_gone_BK = same_BKK.tril(-1).any(-1) | (score_BK == -torch.inf)
    more_BKK = (score_BK[:, None] - score_BK[:, :, None]).masked_fill_(~same_BKK, -torch.inf)
    return (score_BK + more_BKK.exp_().sum(-1).log_()).masked_fill_(is_gone_BK, -torch.inf)


def _hypothesis(taken_4U: Int32Array, network: Network) -> Hypothesis:
    labels, frames, durations, bits = taken_4U[:, taken_4U[0] != network.blank_id]
    logprobs = np.ascontiguousarray(bits).view(np.float32)
    lasted = durations if network.durations else np.ones_like(durations)
    return Hypothesis(tuple(labels.tolist()), tuple(frames.tolist()), tuple(lasted.tolist()), tuple(logprobs.tolist()))
