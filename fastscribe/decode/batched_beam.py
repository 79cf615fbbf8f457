"""Beam search of a batch with a transducer, all rows and beams at once.

Alignment-length synchronous (Saon et al. 2020, "Alignment-length synchronous decoding for RNN transducer"): each step
extends every hypothesis by one label or one blank, at whatever frame it is, and keeps the `width` most probable ones.
TDT (Xu et al. 2023) uses the most probable duration and adds its log-probability to the score. Hypotheses that have reached
the last frame wait for the others. Two hypotheses with the same labels and frame are merged: the more probable one stays,
with the sum of both probabilities. `max_symbols` works as in greedy.py, and a width of one is greedy decoding. A search
that exceeds `max_steps` has no transcript.

Shallow fusion (decoder.FusedModel) adds a weighted language model log-probability and a bonus to the score, but not to the
labels' log-probabilities. With it, a width of one differs from greedy decoding. Phrases to boost add to the score in the same
way. A hypothesis that ends in the middle of a phrase loses what the phrase gave it. Tokens that are left out extend no
hypothesis. The labels that stay share their probability in proportion to their own, so that blanks are as likely as before.
tests/helpers/beam_search.py searches one utterance by the same rules.

Each step calls the joint network once, selects the best K extensions of a row's K beams, and calls the predictor for the
beams that took a label. Each step records every beam's parent and extension; the host backtracks from the beams that it
returns. Beams are compared by a hash of their labels. Finished rows go through every step unchanged, and so do dead beams,
whose score is -inf: all but one at first, then merged ones. Scores of language models and of phrases are looked up by state.

Shapes: B batch, T frames, K beams, R of them returned, N = B x K, J joint width, V labels with blank, U steps, H, L predictor,
F fields of a beam: four, and a state in each list of phrases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fastscribe.decode.decoder import ENDLESS, Decoder, max_steps
from fastscribe.decode.label_looping import Network
from fastscribe.types import BoolArray, Float32Array, Frames, Hypothesis, Int32Array

if TYPE_CHECKING:
    from fastscribe.context.boosting import Boost, BoostTables
    from fastscribe.context.vocabulary_mask import VocabularyMask
    from fastscribe.decode.decoder import FusedModel

_NUM_FIELDS = 4  # of a beam without phrases
_HASH_FACTOR = 6_364_136_223_846_793_005  # odd, and its products wrap around in 64 bits
# A CPU's predictor steps a power of two of rows up to this, and multiples above: oneDNN keeps compiled code and memory for
# each number of rows that it has seen, which were 300 MB and more of a run.
_ROWS_ON_CPU = 32
_MAX_ELEMENTS = 1 << 24  # of the largest tensor; larger batches are searched in groups of rows


@dataclass(frozen=True)
class _Beams:
    score_BK: torch.Tensor  # float32
    # Frame, labels at that frame, hash of all labels, language model state, states in lists of phrases.
    fields_NF: torch.Tensor
    predicted_NJ: torch.Tensor  # predictor output after the joint's projection
    predictor_2LNH: torch.Tensor


@dataclass(frozen=True)
class _Encoded:
    """Tensors that do not change from step to step."""

    encoded_RJ: torch.Tensor  # R = B x T
    first_frames_N: torch.Tensor  # index of each row's first frame in encoded_RJ
    first_beams_B1: torch.Tensor  # index of each row's first beam in N
    last_frame: int
    limit_N: torch.Tensor  # number of frames
    max_steps_B: torch.Tensor

    @classmethod
    def of(cls, encoded_BTJ: torch.Tensor, limit_B1: torch.Tensor, width: int) -> _Encoded:
        batch, num_frames, _ = encoded_BTJ.shape
        rows_B1 = torch.arange(batch, device=encoded_BTJ.device)[:, None]
        first_frames_N = (rows_B1 * num_frames).expand(-1, width).flatten()
        limit_N = limit_B1.expand(-1, width).flatten()
        steps_B = max_steps(limit_B1[:, 0])
        return cls(encoded_BTJ.flatten(0, 1), first_frames_N, rows_B1 * width, num_frames - 1, limit_N, steps_B)


class BeamDecoder(Decoder):
    """A decoder that keeps `width` hypotheses per row.

    Args:
        network: predictor and joint network.
        width: hypotheses kept after each step.
        language_model: tables for shallow fusion.
        has_nbest: return every hypothesis of the last beam (Hypothesis.nbest), not only the best.
    """

    def __init__(
        self, network: Network, width: int, language_model: FusedModel | None = None, has_nbest: bool = False
    ) -> None:
        self.network = network
        self.width = width
        self.num_returned = width if has_nbest else 1
        self.language_model = language_model.to(network.device) if language_model else None

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Search a batch; waits for the device twice per step.

        Returns:
            For each group of rows: U, [B, R] beams to return, best first (-1: none; first -1: ENDLESS), their scores' bits, and
            five times [U, B, K].
        """
        encoded_BTJ = self.network.joint.encoder(frames.frames_BTD)
        groups = self._groups(len(encoded_BTJ))
        return torch.cat(
            [
                self._search(
                    encoded_BTJ[group],
                    frames.lengths_B[group, None],
                    None if frames.boost is None else frames.boost.part(group),
                    None if frames.mask is None else frames.mask.part(group),
                )
                for group in groups
            ]
        )

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        hypotheses: list[Hypothesis] = []
        for group in self._groups(len(frames.lengths_B)):
            num_steps, batch = int(packed[0]), group.stop - group.start
            begin = 1 + 2 * batch * self.num_returned
            end = begin + 5 * num_steps * batch * self.width
            best_2BR = packed[1:begin].reshape(2, batch, self.num_returned)
            hypotheses += self._hypotheses(best_2BR, packed[begin:end].reshape(5, num_steps, batch, self.width))
            packed = packed[end:]
        return hypotheses

    def _groups(self, batch: int) -> list[slice]:
        """Split the rows into groups that respect _MAX_ELEMENTS."""
        largest = max(self.network.blank_id + 1, self.network.joint_width, self.width)  # beside B x K
        rows = max(1, _MAX_ELEMENTS // (self.width * largest))
        return [slice(start, min(start + rows, batch)) for start in range(0, batch, rows)]

    def _search(
        self, encoded_BTJ: torch.Tensor, limit_B1: torch.Tensor, boost: Boost | None, mask: VocabularyMask | None
    ) -> torch.Tensor:
        rows = _Encoded.of(encoded_BTJ, limit_B1, self.width)
        excluded_NV = None if mask is None else mask.excluded().repeat_interleave(self.width, 0)
        beams = _initial_beams(self.network, self.language_model, boost, len(encoded_BTJ), self.width)
        tables = boost.tables if boost is not None else None
        steps: list[tuple[torch.Tensor, ...]] = []
        # NaN scores are not special: they run to the end of their row, because rows must not depend on each other.
        is_endless_B = torch.zeros_like(rows.max_steps_B, dtype=torch.bool)
        while True:
            is_alive_N = (beams.fields_NF[:, 0] < rows.limit_N) & (beams.score_BK.flatten() != -torch.inf)
            is_alive_B = is_alive_N.view_as(beams.score_BK).any(1)
            is_endless_B |= is_alive_B & (rows.max_steps_B <= len(steps))
            if not bool((is_alive_B & ~is_endless_B).any()):
                break
            beams, step = _step(self.network, self.language_model, tables, excluded_NV, beams, rows)
            steps.append(step)
        columns = (torch.cat(column) for column in zip(*steps, strict=True))
        flat = (column.view(torch.int32) if column.is_floating_point() else column.int() for column in columns)
        score_BK = beams.score_BK
        if tables is not None:
            score_BK = score_BK - tables.at_risk(beams.fields_NF[:, _NUM_FIELDS:]).view_as(score_BK)
        score_BK, order_BK = score_BK.sort(dim=1, descending=True, stable=True)
        score_BR, best_BR = score_BK[:, : self.num_returned].contiguous(), order_BK[:, : self.num_returned]
        best_BR = best_BR.masked_fill(is_endless_B[:, None] | (score_BR == -torch.inf), -1)
        header = (
            best_BR.new_full((1,), len(steps)).int(),
            best_BR.int().flatten(),
            score_BR.view(torch.int32).flatten(),
        )
        return torch.cat([*header, *flat])

    def _hypotheses(self, best_2BR: Int32Array, steps_5UBK: Int32Array) -> list[Hypothesis]:
        """Backtrack from each row's beams."""
        _, num_steps, batch, _ = steps_5UBK.shape
        beam_BR, score_BR = best_2BR[0], np.ascontiguousarray(best_2BR[1]).view(np.float32)
        is_there_BR, rows_B1 = beam_BR >= 0, np.arange(batch)[:, None]
        path_4UBR = np.empty((4, num_steps, *beam_BR.shape), np.int32)
        for step in range(num_steps - 1, -1, -1):
            path_4UBR[:, step] = steps_5UBK[1:, step, rows_B1, beam_BR]
            beam_BR = steps_5UBK[0, step, rows_B1, beam_BR]
        return [self._row(path_4UBR[:, :, row], score_BR[row], is_there_BR[row]) for row in range(batch)]

    def _row(self, path_4UR: Int32Array, score_R: Float32Array, is_there_R: BoolArray) -> Hypothesis:
        """Return a row's best hypothesis, with the others if they are wanted."""
        found = tuple(
            _hypothesis(path_4UR[:, :, place], float(score_R[place]), self.network)
            for place in np.flatnonzero(is_there_R)
        )
        if not found:
            return ENDLESS
        return replace(found[0], nbest=found) if self.num_returned > 1 else found[0]


def _initial_beams(
    network: Network, language_model: FusedModel | None, boost: Boost | None, batch: int, width: int
) -> _Beams:
    like = network.predictor.first_gates_VG
    score_BK = torch.full((batch, width), -torch.inf, device=network.device)
    score_BK[:, 0] = 0.0
    fields_NF = torch.zeros(batch * width, _NUM_FIELDS, dtype=torch.long, device=network.device)
    fields_NF[:, 3] = language_model.start if language_model else 0
    if boost is not None:
        fields_NF = torch.cat((fields_NF, boost.starts().repeat_interleave(width, 0)), 1)
    before_2LNH = like.new_zeros(2, len(network.predictor.recurrent), batch * width, like.shape[1] // 4)
    output_NH, predictor_2LNH = network.predictor.step(torch.full_like(fields_NF[:, 0], network.blank_id), before_2LNH)
    return _Beams(score_BK, fields_NF, network.joint.predictor(output_NH), predictor_2LNH)


def _step(
    network: Network,
    language_model: FusedModel | None,
    boost: BoostTables | None,
    excluded_NV: torch.Tensor | None,
    beams: _Beams,
    rows: _Encoded,
) -> tuple[_Beams, tuple[torch.Tensor, ...]]:
    """Return the next beams and, [N] each, their parent's index in the row, label, frame, duration and logprob."""
    num_tokens, blank_id = network.blank_id + 1, network.blank_id
    frame_N, state_N = beams.fields_NF[:, 0], beams.fields_NF[:, 3]
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
        score_NV[:, :blank_id] += language_model.scores(state_N)
    if excluded_NV is not None:
        labels_NV = logprobs_NV[:, :blank_id]
        kept_N1 = labels_NV.masked_fill(excluded_NV, -torch.inf).logsumexp(1, keepdim=True)
        score_NV[:, :blank_id] += labels_NV.logsumexp(1, keepdim=True) - kept_N1
    phrases_NL = beams.fields_NF[:, _NUM_FIELDS:]
    if boost is not None:
        next_NLV = boost.following(phrases_NL)
        score_NV[:, :blank_id] += boost.scores(phrases_NL, next_NLV)
    if excluded_NV is not None:
        score_NV[:, :blank_id].masked_fill_(excluded_NV, -torch.inf)
    is_finished_N = frame_N >= rows.limit_N
    score_NV.masked_fill_(is_finished_N[:, None], -torch.inf)
    score_NV[:, blank_id] = torch.where(is_finished_N, score_N, score_NV[:, blank_id])

    score_BK, choice_BK = score_NV.view(len(beams.score_BK), -1).topk(beams.score_BK.shape[1])
    parent_BK = choice_BK // num_tokens
    parent_N = (rows.first_beams_B1 + parent_BK).flatten()
    label_N = (choice_BK % num_tokens).flatten()
    logprob_N = logprobs_NV[parent_N, label_N]
    is_label_N = label_N != blank_id
    taken_duration_N = duration_N.index_select(0, parent_N)
    fields_NF = beams.fields_NF.index_select(0, parent_N)
    frame_N, labels_at_frame_N, hash_N, state_N = fields_NF[:, :_NUM_FIELDS].unbind(1)
    advance_N = torch.maximum(taken_duration_N, ~is_label_N | (labels_at_frame_N + 1 >= network.max_symbols))
    next_frame_N = torch.minimum(frame_N + advance_N, rows.limit_N)  # finished beams stay at the limit
    next_hash_N = torch.where(is_label_N, hash_N * _HASH_FACTOR + label_N + 1, hash_N)
    next_labels_at_frame_N = torch.where(advance_N > 0, 0, labels_at_frame_N + 1)
    if language_model:
        state_N = torch.where(is_label_N, language_model.after(state_N, label_N.clamp(max=blank_id - 1)), state_N)
    next_phrases_NL = fields_NF[:, _NUM_FIELDS:]
    if boost is not None:
        after_NL = boost.advance(next_NLV.index_select(0, parent_N), label_N.clamp(max=blank_id - 1))
        next_phrases_NL = torch.where(is_label_N[:, None], after_NL, next_phrases_NL)
    predicted_NJ, predictor_2LNH = _step_predictor(network, beams, parent_N, label_N, is_label_N)
    new = _Beams(
        score_BK=_merge_duplicates(score_BK, next_hash_N.view_as(score_BK), next_frame_N.view_as(score_BK)),
        fields_NF=torch.cat(
            (torch.stack((next_frame_N, next_labels_at_frame_N, next_hash_N, state_N), dim=1), next_phrases_NL), dim=1
        ),
        predicted_NJ=predicted_NJ,
        predictor_2LNH=predictor_2LNH,
    )
    return new, (parent_BK.flatten(), label_N, frame_N, taken_duration_N, logprob_N)


def _step_predictor(
    network: Network, beams: _Beams, parent_N: torch.Tensor, label_N: torch.Tensor, is_label_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy the parents' predictor state and advance it for the beams that took a label."""
    predicted_NJ = beams.predicted_NJ.index_select(0, parent_N)
    predictor_2LNH = beams.predictor_2LNH.index_select(2, parent_N)
    stepping_M = is_label_N.nonzero()[:, 0]
    if len(stepping_M):
        if network.device.type == "cpu":
            multiple = min(_ROWS_ON_CPU, 1 << (len(stepping_M) - 1).bit_length())
            spare = stepping_M[-1:].expand(-len(stepping_M) % multiple)
            stepping_M = torch.cat((stepping_M, spare))  # the same beam again, which gets the same values
        before_2LMH = predictor_2LNH.index_select(2, stepping_M)
        output_MH, after_2LMH = network.predictor.step(label_N.index_select(0, stepping_M), before_2LMH)
        predicted_NJ.index_copy_(0, stepping_M, network.joint.predictor(output_MH))
        predictor_2LNH.index_copy_(2, stepping_M, after_2LMH)
    return predicted_NJ, predictor_2LNH


def _merge_duplicates(score_BK: torch.Tensor, hash_BK: torch.Tensor, frame_BK: torch.Tensor) -> torch.Tensor:
    """Add the scores of equal beams to the first of them, and set the others to -inf. Scores are sorted, best first."""
    same_BKK = (hash_BK[:, :, None] == hash_BK[:, None]) & (frame_BK[:, :, None] == frame_BK[:, None])
    is_gone_BK = same_BKK.tril(-1).any(-1) | (score_BK == -torch.inf)
    more_BKK = (score_BK[:, None] - score_BK[:, :, None]).masked_fill_(~same_BKK, -torch.inf)
    return (score_BK + more_BKK.exp_().sum(-1).log_()).masked_fill_(is_gone_BK, -torch.inf)


def _hypothesis(path_4U: Int32Array, score: float, network: Network) -> Hypothesis:
    labels, frames, durations, bits = path_4U[:, path_4U[0] != network.blank_id]
    logprobs = np.ascontiguousarray(bits).view(np.float32)
    token_durations = durations if network.durations else np.ones_like(durations)
    return Hypothesis(
        tuple(labels.tolist()),
        tuple(frames.tolist()),
        tuple(token_durations.tolist()),
        tuple(logprobs.tolist()),
        score=score,
    )
