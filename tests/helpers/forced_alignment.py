"""The definition of CTC forced alignment, one text and one state at a time: alignment/ is tested against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastscribe.alignment.forced_alignment import Span


def align_reference(
    logprobs_TV: Sequence[Sequence[float]], token_ids: Sequence[int], blank_id: int
) -> list[Span] | None:
    """Align one text, state by state.

    Args:
        logprobs_TV: natural-log probabilities of a frame's labels.
        token_ids: the N tokens of the text.
        blank_id: the blank's label.

    Returns:
        N spans, which neither overlap nor are empty, or None if no path has a finite score.
    """
    states = [blank_id]
    for token_id in token_ids:
        states += [token_id, blank_id]
    scores = [0.0] + [-math.inf] * (len(states) - 1)  # before the first frame
    moves_TU: list[list[int]] = []
    for logprobs_V in logprobs_TV:
        previous, scores, moves = scores, [], []
        for state, label in enumerate(states):
            can_skip = state % 2 == 1 and state >= 2 and states[state - 2] != label
            steps = (0, 1, 2) if can_skip else (0, 1)
            candidates = [previous[state - step] + logprobs_V[label] if step <= state else -math.inf for step in steps]
            scores.append(max(candidates))
            moves.append(candidates.index(max(candidates)))
        moves_TU.append(moves)
    last = max(range(max(0, len(states) - 2), len(states)), key=lambda state: scores[state])
    if not math.isfinite(scores[last]):
        return None
    path = []
    for moves in reversed(moves_TU):
        path.append(last)
        last -= moves[last]
    path.reverse()
    return [(path.index(state), len(path) - path[::-1].index(state)) for state in range(1, len(states), 2)]
