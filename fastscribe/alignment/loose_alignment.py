"""CTC alignment of a text that may lack words or have too many: which words were spoken, and where other speech is.

The lattice is that of forced_alignment.py with two additions. A path may leave out a word at a cost: the word was not spoken.
And a blank between words may stand for any label, at a cost per frame: speech that the text does not have.

Shapes: T frames, V labels with blank, U states, W words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from fastscribe._system.jit import compile_cached
from fastscribe.types import BoolArray, Float32Array, Int64Array

# Natural-log scores, chosen on training recordings (docs/log.md, 2026-11-23).
SKIP_COST, OTHER_COST = 8.0, 3.0
MAX_CELLS = 1 << 28  # frames x states that callers should keep to: each takes a byte


class LooseAlignment(NamedTuple):
    """A path: the state of each frame, which words it skips, and the frames of speech that the text does not have."""

    path_T: Int64Array
    is_skipped_W: tuple[bool, ...]
    other: tuple[tuple[int, int], ...]  # first frame, frame after the last


def align_loosely(
    logprobs_TV: Float32Array,
    token_ids: Sequence[int],
    words: Sequence[range],
    blank_id: int,
    skip_cost: float = SKIP_COST,
    other_cost: float = OTHER_COST,
) -> LooseAlignment | None:
    """Align one text.

    Args:
        logprobs_TV: Natural-log probabilities of a frame's labels.
        token_ids: The tokens of the text.
        words: For each word the indices of its tokens, at least one; tokens between two words are spaces.
        blank_id: The blank's label.
        skip_cost: Cost of a word that is not spoken.
        other_cost: Cost of a frame between words in which another label is likelier than blank.

    Returns:
        The best path, or None if none has a finite score. Ties go to staying, moving, skipping a blank, then a word.
    """
    num_states = 2 * len(token_ids) + 1
    if not len(logprobs_TV):
        return None
    labels_U = np.full(num_states, blank_id, np.int64)
    labels_U[1::2] = token_ids
    borders_W1 = np.array([*(2 * word.start for word in words), num_states - 1], np.int64)
    best_T = logprobs_TV.max(1) - np.float32(other_cost)
    path_T, is_skipped_W, is_finite = _compiled_best_path()(
        logprobs_TV, best_T, labels_U, borders_W1, blank_id, np.float32(skip_cost)
    )
    if not is_finite:
        return None
    is_border_U = np.zeros(num_states, bool)
    is_border_U[borders_W1] = True
    is_border_T = is_border_U[path_T]
    is_other_T = is_border_T & (best_T > logprobs_TV[:, blank_id])
    pause_T = np.cumsum(~is_border_T)  # the same between two words, however many words are skipped there
    other = []
    for pause in np.unique(pause_T[is_other_T]):
        frames = np.flatnonzero(is_other_T & (pause_T == pause))
        other.append((int(frames[0]), int(frames[-1]) + 1))
    return LooseAlignment(path_T, tuple(is_skipped_W.tolist()), tuple(other))


@cache
def _compiled_best_path() -> Callable[..., tuple[Int64Array, BoolArray, bool]]:
    compiled: Callable[..., tuple[Int64Array, BoolArray, bool]] = compile_cached(_best_path, nogil=True)
    return compiled


def _best_path(logprobs_TV, best_T, labels_U, borders_W1, blank_id, skip_cost):  # type: ignore[no-untyped-def]
    """Return states [T], skipped words [W], and whether the score is finite.

    `skips[k]` is the best score of a path that has skipped the word before border k, behind a frame. It comes from the border
    before that word (0), from the token before that border (1), or from a skip of the word before (2).
    """
    num_frames, num_states, num_borders = len(logprobs_TV), len(labels_U), len(borders_W1)
    # Of each state that a skip may reach: a border, or the token behind it.
    border_U = np.full(num_states, -1, np.int64)
    is_border_U = np.zeros(num_states, np.bool_)
    for border in range(num_borders):
        is_border_U[borders_W1[border]] = True
        border_U[borders_W1[border]] = border
        if border < num_borders - 1:
            border_U[borders_W1[border] + 1] = border
    low = np.float32(-np.inf)
    scores, previous = np.full(num_states, low, np.float32), np.full(num_states, low, np.float32)
    skips, skip_labels = np.full(num_borders, low, np.float32), np.full(num_borders, blank_id, np.int64)
    moves_TU = np.zeros((num_frames, num_states), np.uint8)  # states back; 3: from a skip
    origins_TW = np.zeros((num_frames, num_borders), np.uint8)
    for border in range(1, num_borders):
        skips[border] = -skip_cost * border
    for frame in range(num_frames):
        scores, previous = previous, scores
        for state in range(num_states):
            label = labels_U[state]
            emission = logprobs_TV[frame, label]
            if is_border_U[state]:
                emission = max(emission, best_T[frame])
            best, move = previous[state], 0
            if frame == 0:
                best = np.float32(0.0) if state < 2 else low
            if state >= 1 and previous[state - 1] > best:
                best, move = previous[state - 1], 1
            can_skip = state % 2 == 1 and state >= 2 and labels_U[state - 2] != label
            if can_skip and previous[state - 2] > best:
                best, move = previous[state - 2], 2
            border = border_U[state]
            if border > 0 and skips[border] > best and (label == blank_id or skip_labels[border] != label):
                best, move = skips[border], 3
            scores[state] = best + emission
            moves_TU[frame, state] = move
        for border in range(1, num_borders):
            before = borders_W1[border - 1]
            best, origin, label = scores[before], 0, blank_id
            if before >= 1 and scores[before - 1] > best:
                best, origin, label = scores[before - 1], 1, labels_U[before - 1]
            if border > 1 and skips[border - 1] > best:
                best, origin, label = skips[border - 1], 2, skip_labels[border - 1]
            skips[border], skip_labels[border] = best - skip_cost, label
            origins_TW[frame, border] = origin
    state = num_states - 1
    if num_states > 1 and scores[num_states - 2] >= scores[state]:
        state = num_states - 2
    path_T, is_skipped_W = np.zeros(num_frames, np.int64), np.zeros(num_borders - 1, np.bool_)
    border, score = -1, scores[state]
    if skips[num_borders - 1] > score:
        border, score = num_borders - 1, skips[num_borders - 1]
    for frame in range(num_frames - 1, -1, -1):
        if border >= 0:
            is_skipped_W[border - 1] = True
            while origins_TW[frame, border] == 2:
                border -= 1
                is_skipped_W[border - 1] = True
            state = borders_W1[border - 1] - origins_TW[frame, border]
        path_T[frame] = state
        border = border_U[state] if moves_TU[frame, state] == 3 else -1
        state -= 0 if border >= 0 else moves_TU[frame, state]
    for word in range(border):
        is_skipped_W[word] = True  # before the first frame
    return path_T, is_skipped_W, np.isfinite(score)
