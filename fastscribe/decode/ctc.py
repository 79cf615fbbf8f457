"""Greedy CTC decoding (Graves et al. 2006): the best label of every frame, with repeats merged and blanks dropped.

A token starts at the first frame of its run of equal labels and lasts as long as the run. (NeMo 3.0 gives CTC tokens the
span from the previous token's onset to their own, about one token early; this differs on purpose.) A token's
log-probability is the logarithm of the mean probability over its run.

The device computes each frame's label and probability; the host merges a whole batch in numpy.

With phrases to boost (context/boosting.py), a frame's label depends on those before it: the device goes from frame to frame.
A frame whose best label is blank stays blank. A label that goes on from the frame before keeps the score that it had there.

With tokens that are left out, a frame whose best label is blank stays blank too; else the best label of
those that stay is taken. Probabilities are the model's. tests/helpers/greedy_ctc.py decodes one row by the same rules.

Shapes: B batch, T frames, V labels with blank, R runs of equal labels in all rows, N tokens of all rows, K lists of phrases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fastscribe.decode.decoder import Decoder
from fastscribe.families.blocks.heads import CtcHead, split_for_logits
from fastscribe.types import Float32Array, Frames, Hypothesis, Int32Array

if TYPE_CHECKING:
    from fastscribe.context.boosting import Boost
    from fastscribe.context.vocabulary_mask import VocabularyMask

MIN_PROBABILITY = 1e-38  # its logarithm is finite
MAX_BOOSTED_LOGITS = 1 << 26  # rows beyond it are decoded in parts


class CtcDecoder(Decoder):
    """The decoder of a CTC head."""

    def __init__(self, head: CtcHead, blank_id: int) -> None:
        self.head = head
        self.blank_id = blank_id

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Return int32: [B] lengths, [B, T] labels, [B, T] the bits of their float32 probabilities."""
        parts = split_for_logits(frames.frames_BTD, self.blank_id + 1)
        if frames.boost is not None or frames.mask is not None:
            found = self._chosen(frames.boost, frames.mask, frames.frames_BTD)
        else:
            best = [self.head(part_ND).softmax(-1, dtype=torch.float32).max(-1) for part_ND in parts]
            found = [(part.indices, part.values) for part in best]
        labels, bits = zip(*((labels.int(), probs.view(torch.int32)) for labels, probs in found), strict=True)
        return torch.cat([frames.lengths_B.int(), *labels, *bits])

    def _chosen(
        self, boost: Boost | None, mask: VocabularyMask | None, frames_BTD: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return labels and probabilities, [N] each, of some rows at a time, with phrases to boost or tokens left out."""
        starts_BK = None if boost is None else boost.starts()
        excluded_BV = None if mask is None else mask.excluded()
        batch, num_frames, _ = frames_BTD.shape
        rows, found = max(1, MAX_BOOSTED_LOGITS // (num_frames * (self.blank_id + 1))), []
        for part in (slice(first, first + rows) for first in range(0, batch, rows)):
            logits_BTV = self.head(frames_BTD[part])
            probs_BTV = logits_BTV.softmax(-1, dtype=torch.float32)
            labels_BT = probs_BTV.argmax(-1)
            scores_BTV = probs_BTV.log() if excluded_BV is None else logits_BTV[..., : self.blank_id]
            if excluded_BV is not None:
                scores_BTV = scores_BTV.masked_fill(excluded_BV[part, None], -torch.inf)
            if boost is not None and starts_BK is not None:
                labels_BT = _boosted_rows(boost, scores_BTV, labels_BT, starts_BK[part], self.blank_id)
            else:
                labels_BT = torch.where(labels_BT == self.blank_id, self.blank_id, scores_BTV.argmax(-1))
            found.append((labels_BT.flatten(), probs_BTV.gather(2, labels_BT[..., None]).flatten()))
        return found

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        batch = len(frames.lengths_B)
        labels_BT, probs_BT = packed[batch:].reshape(2, batch, -1)
        return collapse_rows(labels_BT, probs_BT.view(np.float32), packed[:batch], self.blank_id)


def decode(head: CtcHead, frames: Frames, blank_id: int) -> list[Hypothesis]:
    """Submit and read a batch: one Hypothesis per row."""
    decoder = CtcDecoder(head, blank_id)
    return decoder.read(decoder.submit(frames).cpu().numpy(), frames)


def _boosted_rows(
    boost: Boost, scores_BTV: torch.Tensor, best_BT: torch.Tensor, states_BK: torch.Tensor, blank_id: int
) -> torch.Tensor:
    """Return the label of each frame of a batch, [B, T]; `best_BT` are the model's, and say where there is a label."""
    last_B = torch.full_like(best_BT[:, 0], blank_id)
    last_score_B1 = torch.zeros_like(scores_BTV[:, 0, :1])
    labels: list[torch.Tensor] = []
    next_BKV = boost.tables.following(states_BK)
    for best_B, model_BV in zip(best_BT.unbind(1), scores_BTV.unbind(1), strict=True):
        # One column more than labels, for a last label that is blank.
        score_BV = torch.nn.functional.pad(boost.tables.scores(states_BK, next_BKV), (0, 1)).scatter_(
            1, last_B[:, None], last_score_B1
        )
        chosen_B = (model_BV[:, :blank_id] + score_BV[:, :blank_id]).argmax(1)
        label_B = torch.where(best_B == blank_id, blank_id, chosen_B)
        is_new_B1 = ((label_B != blank_id) & (label_B != last_B))[:, None]
        last_score_B1 = score_BV.gather(1, label_B[:, None])
        states_BK = torch.where(is_new_B1, boost.tables.advance(next_BKV, chosen_B), states_BK)
        next_BKV = boost.tables.following(states_BK)
        last_B = label_B
        labels.append(label_B)
    return torch.stack(labels, 1)


def collapse_rows(
    labels_BT: Int32Array, probs_BT: Float32Array, lengths_B: Int32Array, blank_id: int
) -> list[Hypothesis]:
    """Merge the labels of a batch.

    Args:
        labels_BT: best label of each frame.
        probs_BT: float32 probabilities of these labels.
        lengths_B: valid frames of each row.
        blank_id: the blank's label.

    Returns:
        One Hypothesis per row.
    """
    is_valid_BT = np.arange(labels_BT.shape[1]) < lengths_B[:, None]
    labels_BT = np.where(is_valid_BT, labels_BT, blank_id)
    is_start_BT = labels_BT != blank_id
    is_start_BT[:, 1:] &= labels_BT[:, 1:] != labels_BT[:, :-1]
    is_border_BT = is_start_BT.copy()
    is_border_BT[:, 0] = True
    is_border_BT[:, 1:] |= labels_BT[:, 1:] != labels_BT[:, :-1]
    borders_R = np.flatnonzero(is_border_BT)
    is_token_R = is_start_BT.ravel()[borders_R]
    lengths_N = np.diff(borders_R, append=labels_BT.size)[is_token_R]
    sums_R = np.add.reduceat(probs_BT.ravel().astype(np.float64), borders_R) if len(borders_R) else np.zeros(0)
    logprobs_N = np.log(np.maximum(sums_R[is_token_R] / lengths_N, MIN_PROBABILITY))
    starts_N = borders_R[is_token_R]
    flat = (labels_BT.ravel()[starts_N], starts_N % labels_BT.shape[1], lengths_N, logprobs_N)
    ids, starts, lengths, logprobs = (values.tolist() for values in flat)
    ends = np.cumsum(is_start_BT.sum(1)).tolist()
    spans = [slice(first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]
    return [
        Hypothesis(tuple(ids[span]), tuple(starts[span]), tuple(lengths[span]), tuple(logprobs[span])) for span in spans
    ]
