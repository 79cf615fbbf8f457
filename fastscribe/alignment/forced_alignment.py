"""CTC forced alignment: the frames of each token of a known text, by the Viterbi algorithm (Rabiner 1989) on CTC's lattice.

A text of N tokens has U = 2 N + 1 states: a blank, the first token, a blank, .. the last token, a blank. A path visits one
state per frame. From one frame to the next it stays, moves to the next state, or skips the blank between two different
tokens. It begins in one of the first two states and ends in one of the last two. Ties go to staying, then to moving. Scores
are float32 sums, and each log-probability is added before candidates are compared. These are the rules of NeMo 3.0
(`viterbi_decoding`), so that equal log-probabilities give equal frames.

`align` requests the log-probabilities chunk by chunk, so that neither [B, T, V] nor the lattice has to fit in memory at once.
tests/helpers/forced_alignment.py aligns one text by the same rules.

Shapes: B batch, T frames, K frames of a block, C frames of a chunk, V labels with blank, N tokens, U states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch

from fastscribe.cuda.device import small_to_device
from fastscribe.types import BoolArray, Int64Array

Span = tuple[int, int]  # a token's first frame, and the frame after its last
# (first frame, frame after the last) -> float32 log-probabilities [B, frames, V]
LogProbs = Callable[[int, int], torch.Tensor]

_MAX_BYTES = 64 << 20  # of a block's moves, and of a chunk's log-probabilities


def frames_needed(token_ids: Sequence[int]) -> int:
    """Return the minimum number of frames for a text: one per token, and a blank between equal tokens."""
    return len(token_ids) + sum(left == right for left, right in pairwise(token_ids))


@torch.inference_mode()
def align(
    logprobs: LogProbs,
    lengths: Sequence[int],
    token_ids: Sequence[Sequence[int]],
    blank_id: int,
    device: torch.device,
    max_bytes: int = _MAX_BYTES,
) -> list[list[Span] | None]:
    """Align a batch of texts. No row depends on the others.

    Args:
        logprobs: computes natural-log probabilities of a chunk of frames, on `device`. Values beyond a row's length are
            ignored. Long recordings request most chunks twice.
        lengths: frames of each row.
        token_ids: tokens of each row, which may be empty.
        blank_id: the blank's label.
        device: device of the scores.
        max_bytes: approximate size of each of the two large buffers.

    Returns:
        For each row the spans of its tokens, which neither overlap nor are empty; None if no path has a finite score, or if
        a score is NaN.
    """
    fitting = [
        tuple(ids) if frames_needed(ids) <= length else () for ids, length in zip(token_ids, lengths, strict=True)
    ]
    if not any(fitting):
        return [None if ids else [] for ids in token_ids]
    lattice = _Lattice(logprobs, lengths, fitting, blank_id, device, max_bytes)
    path_TB, is_finite_B = lattice.best_paths()
    return [
        _spans(path_TB[:length, row], len(ids)) if len(ids) == len(wanted) and is_finite_B[row] else None
        for row, (ids, wanted, length) in enumerate(zip(fitting, token_ids, lengths, strict=True))
    ]


def _spans(path_T: Int64Array, num_tokens: int) -> list[Span]:
    """Find the frames of each token's state by bisection, because the path never decreases."""
    states_N = 2 * np.arange(num_tokens) + 1
    firsts, ends = (np.searchsorted(path_T, states_N, side) for side in ("left", "right"))
    return list(zip(firsts.tolist(), ends.tolist(), strict=True))


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Compute on one thread of a CPU: the steps of a frame are so small that threads would mostly wait for each other."""
    num_threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class _Lattice:
    """The states of a batch's texts and the Viterbi algorithm on them, in blocks of frames.

    The moves of a block take a byte per state. With several blocks, the forward pass keeps only the scores before each
    block, and backtracking computes the moves again.
    """

    def __init__(
        self,
        logprobs: LogProbs,
        lengths: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        blank_id: int,
        device: torch.device,
        max_bytes: int,
    ) -> None:
        rows, num_states = len(token_ids), 2 * max(map(len, token_ids)) + 1
        labels_BU = np.full((rows, num_states), blank_id, np.int64)
        for row, ids in enumerate(token_ids):
            labels_BU[row, 1 : 2 * len(ids) : 2] = ids
        cannot_skip_BU = np.ones(labels_BU.shape, bool)
        cannot_skip_BU[:, 3::2] = labels_BU[:, 3::2] == labels_BU[:, 1:-2:2]
        self._logprobs = logprobs
        self._labels_BU = small_to_device(labels_BU, device)
        self._cannot_skip_BU = small_to_device(cannot_skip_BU, device)
        self._lengths_B = small_to_device(np.array(lengths), device)
        self._last_states_B = np.array([2 * len(ids) for ids in token_ids])
        self._num_frames = max(lengths)
        self._block = max(1, max_bytes // (rows * num_states))
        num_labels = logprobs(0, 1).shape[2]
        self._chunk = max(1, max_bytes // (4 * rows * (2 * num_labels + 4 * num_states)))

    def best_paths(self) -> tuple[Int64Array, BoolArray]:
        """Return states [T, B], and whether each row's best score is finite [B]. The last state pads each row."""
        rows, num_states = self._labels_BU.shape
        # Two unreachable states come first, so that every state has two predecessors.
        scores_BU = torch.full((rows, num_states + 2), -math.inf, device=self._labels_BU.device)
        scores_BU[:, 2] = 0.0
        starts = range(0, self._num_frames, self._block)
        before, moves_KBU = [], None
        for start in starts:
            before.append(scores_BU.clone() if len(starts) > 1 else scores_BU)
            moves_KBU = self._advance(scores_BU, start)
        final_BU = scores_BU[:, 2:].cpu().numpy()
        index_B = np.arange(rows)
        last_but_one_B = np.maximum(self._last_states_B - 1, 0)
        state_B = np.where(
            final_BU[index_B, last_but_one_B] >= final_BU[index_B, self._last_states_B],
            last_but_one_B,
            self._last_states_B,
        )
        is_finite_B = np.isfinite(final_BU[index_B, state_B])
        path_TB = np.empty((self._num_frames, rows), np.int64)
        for start, scores_BU in zip(reversed(starts), reversed(before), strict=True):
            moves = (self._advance(scores_BU, start) if moves_KBU is None else moves_KBU).cpu().numpy()
            moves_KBU = None
            for frame in range(len(moves) - 1, -1, -1):
                path_TB[start + frame] = state_B
                state_B = state_B - moves[frame, index_B, state_B]
        return path_TB, is_finite_B

    def _advance(self, scores_BU: torch.Tensor, start: int) -> torch.Tensor:
        """Advance the scores by a block of frames, in place. Return each best path's moves in states, uint8 [K, B, U]."""
        stop = min(start + self._block, self._num_frames)
        moves_KBU = torch.empty((stop - start, *self._labels_BU.shape), dtype=torch.uint8, device=scores_BU.device)
        staying_BU, moving_BU, skipping_BU = scores_BU[:, 2:], scores_BU[:, 1:-1], scores_BU[:, :-2]
        for first in range(start, stop, self._chunk):
            stay_CBU, move_CBU, skip_CBU = self._emissions(first, min(first + self._chunk, stop))
            with _one_thread(scores_BU.device):
                for frame in range(len(stay_CBU)):
                    stay_BU = staying_BU + stay_CBU[frame]
                    move_BU = moving_BU + move_CBU[frame]
                    skip_BU = skipping_BU + skip_CBU[frame]
                    better_BU = torch.maximum(stay_BU, move_BU)
                    taken_BU = moves_KBU[first - start + frame]
                    torch.gt(move_BU, stay_BU, out=taken_BU)
                    taken_BU.masked_fill_(skip_BU > better_BU, 2)
                    torch.maximum(better_BU, skip_BU, out=staying_BU)
        return moves_KBU

    def _emissions(self, first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log-probabilities [C, B, U] for paths that stay in a state, move to it or skip to it.

        Beyond a row's length staying costs nothing, and the other moves are impossible.
        """
        labels_BCU = self._labels_BU[:, None].expand(-1, stop - first, -1)
        scores_CBU = self._logprobs(first, stop).gather(2, labels_BCU).transpose(0, 1)
        frames_C = torch.arange(first, stop, device=scores_CBU.device)
        is_over_CB1 = (frames_C[:, None] >= self._lengths_B)[..., None]
        move_CBU = scores_CBU.masked_fill(is_over_CB1, -math.inf).contiguous()
        skip_CBU = move_CBU.masked_fill(self._cannot_skip_BU, -math.inf)
        return scores_CBU.masked_fill(is_over_CB1, 0.0).contiguous(), move_CBU, skip_CBU
