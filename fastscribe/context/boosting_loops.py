"""Phrases to boost and tokens that are left out in the host's memory: a loop for numba, which
decode/cpu_looping.py calls between two products.

Nothing here is decorated; `kernel` compiles the loop for a dtype, with the functions of decode/looping_kernels.py.

Shapes: B batch, A rows that go on, N frames of their windows, X labels with blank plus durations, S label slots of a row, V
labels without blank, K lists of phrases of a row, L places of languages. The automaton's arrays are those of context_graph.py.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fastscribe._system.jit import compile_cached, digest_of, loop_options, made_once, rebind
from fastscribe.context.boosting import SCORE_NAMES, TABLE_NAMES
from fastscribe.decode import looping_kernels
from fastscribe.decode.looping_kernels import log_probability, rank, widen
from fastscribe.types import Frames, Int64Array

_ZERO = np.float32(0.0)
_NO_TABLES = {
    name: np.empty((0, 0) if name.endswith("RV") else 0, np.float32 if name in SCORE_NAMES else np.int64)
    for name in TABLE_NAMES
}


def prefer(
    logits_NX: Any, rows_A: Any, input_A: Any, blank: Any, count_B: Any, ids_BS: Any, logprobs_BS: Any, excluded_LV: Any,
    place_B: Any, state_BK: Any, first_S: Any, count_S: Any, fail_S: Any, parent_S: Any, list_S: Any, score_S: Any,
    at_risk_S: Any, tokens_A: Any, children_A: Any, root_children_RV: Any, num_levels: Any, next_KV: Any, scores_V: Any,
) -> None:  # fmt: skip
    """Replace the labels that `choose` recorded by the best of those that stay, with what phrases to boost add.

    The model alone has decided that there is a label, and its duration (boosting.py).

    Args:
        logits_NX: As `choose` had them.
        rows_A: The rows.
        input_A: As `choose` wrote it.
        blank: Id of the blank.
        count_B: Each row's labels.
        ids_BS: The labels; the last of each row is replaced.
        logprobs_BS: Their log-probabilities.
        excluded_LV: The labels that each language leaves out.
        place_B: The row in it of each row's language.
        state_BK: Each row's states in its lists of phrases; updated. K = 0 without phrases, and the next arrays are empty.
        first_S: The automaton, to `num_levels`, as BoostTables has it.
        count_S: See first_S.
        fail_S: See first_S.
        parent_S: See first_S.
        list_S: See first_S.
        score_S: See first_S.
        at_risk_S: See first_S.
        tokens_A: See first_S.
        children_A: See first_S.
        root_children_RV: See first_S.
        num_levels: Most ends of a state, with itself.
        next_KV: Scratch memory, with a column more.
        scores_V: Scratch memory, float32.
    """
    num_lists = state_BK.shape[1]
    for a in range(len(rows_A)):
        if input_A[a] < 0:
            continue
        row, logits_X = rows_A[a], logits_NX[input_A[a]]
        for v in range(blank):
            scores_V[v] = _ZERO
        for k in range(num_lists):
            state = state_BK[row, k]
            for v in range(blank):
                next_KV[k, v] = root_children_RV[list_S[state], v]
            for level in range(num_levels - 1, -1, -1):  # the longest end comes last, and wins
                end = state
                for _ in range(level):
                    end = fail_S[end]
                for arc in range(first_S[end], first_S[end] + count_S[end]):
                    next_KV[k, tokens_A[arc]] = children_A[arc]
            for v in range(blank):
                following = next_KV[k, v]
                before = score_S[state] if parent_S[following] == state else at_risk_S[state]
                scores_V[v] += np.float32(score_S[following] - before)
        excluded_V = excluded_LV[place_B[row]]
        label, largest = -1, np.int32(0)
        for v in range(blank):
            if excluded_V[v]:
                continue
            key = np.int32(rank(np.float32(widen(logits_X[v]) + scores_V[v])))
            if label < 0 or key > largest:
                label, largest = v, key
        for k in range(num_lists):
            state_BK[row, k] = next_KV[k, label]
        slot = count_B[row] - 1
        ids_BS[row, slot] = label
        logprobs_BS[row, slot] = log_probability(logits_X, label, blank + 1)


@made_once
def kernel(dtype: str, activation: str) -> Any:
    """Return `prefer`; the first call compiles it, or loads it from numba's cache. As looping_kernels.kernels()."""
    names, variant = looping_kernels.functions(dtype, activation)
    own = f"{variant}_{digest_of(sys.modules[__name__])}"
    return compile_cached(rebind(prefer, names | {"_ZERO": _ZERO}, own), **loop_options())


class HostChoice:
    """The phrases to boost and the tokens that are left out of a batch.

    Args:
        frames: The batch, with its phrases, its tokens, or both.
        num_labels: Without blank.
        dtype: As for looping_kernels.kernels().
        activation: As for looping_kernels.kernels().

    Attributes:
        states_BK: Each row's states in its lists of phrases, which calls update.
    """

    def __init__(self, frames: Frames, num_labels: int, dtype: str, activation: str) -> None:
        batch, boost, mask = len(frames.lengths_B), frames.boost, frames.mask
        if mask is None:
            excluded_LV, place_B = np.zeros((1, num_labels), np.bool_), np.zeros(batch, np.int64)
        else:
            excluded_LV, place_B = mask.excluded_LV.numpy(), mask.place_B
        if boost is None:
            self.states_BK, num_levels = np.zeros((batch, 0), np.int64), 0
            tables = [_NO_TABLES[name] for name in TABLE_NAMES]
        else:
            self.states_BK, num_levels = boost.start_BK.astype(np.int64), boost.tables.num_levels
            tables = [getattr(boost.tables, name).contiguous().numpy() for name in TABLE_NAMES]
        scratch = (np.empty((self.states_BK.shape[1], num_labels + 1), np.int64), np.empty(num_labels, np.float32))
        self._arrays = (excluded_LV, np.asarray(place_B, np.int64), self.states_BK, *tables, num_levels, *scratch)
        self._num_labels, self._prefer = num_labels, kernel(dtype, activation)

    def __call__(
        self,
        logits_NX: Any,
        rows_A: Int64Array,
        input_A: Int64Array,
        count_B: Int64Array,
        ids_BS: Any,
        logprobs_BS: Any,
    ) -> None:
        """Replace the labels that the model chose by the best of those that stay, with what phrases to boost add.

        Args:
            logits_NX: Of the frames that are decoded, in the model's dtype; bfloat16 as uint16.
            rows_A: The rows.
            input_A: The row of the logits that has each one's label; -1 without a label.
            count_B: Each row's labels.
            ids_BS: The labels; the last of each row is replaced.
            logprobs_BS: Their log-probabilities, which are the model's.
        """
        chosen = (count_B, ids_BS, logprobs_BS)
        self._prefer(logits_NX, rows_A, input_A, self._num_labels, *chosen, *self._arrays)
