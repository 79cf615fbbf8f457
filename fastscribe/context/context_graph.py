"""The automaton of phrases to boost: a trie of their tokens with failure links (Aho and Corasick 1975), in NumPy arrays.

A state is the longest end of the tokens so far that begins a phrase. Each state has a score, the sum of the gains of its
tokens; where phrases share a beginning, the largest gain counts. Several lists share one automaton, and each has a root of
its own, the state in which no phrase has begun. State 0 is the root of the empty list.

A text's total is the score of its phrases, and that of the phrase that its end begins. So a token that leaves a phrase in
the middle takes back what the phrase has gained: all of the state's score but that of the best whole phrase in it.
tests/helpers/phrase_lists.py has the same rules without arrays.

Shapes: S states, A arcs between states that are not roots, R roots, V labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from fastscribe.context.phrases import TokenPath
from fastscribe.types import BoolArray, Float32Array, Float64Array, Int64Array


@dataclass(frozen=True)
class ContextGraph:
    """The automaton. The arcs of a state lie together; those of roots are rows of `root_children_RV`."""

    first_S: Int64Array  # index of the state's first arc
    count_S: Int64Array  # arcs of the state; 0 for roots
    fail_S: Int64Array  # state of the longest shorter end; of a root: itself
    parent_S: Int64Array  # of a root: -1
    list_S: Int64Array  # index of the root
    score_S: Float32Array
    at_risk_S: Float32Array  # what leaving the state takes back
    tokens_A: Int64Array
    children_A: Int64Array
    root_children_RV: Int64Array  # the root itself where no phrase begins
    starts_R: Int64Array  # state before a text's first token
    max_count: int  # most arcs of a state
    num_levels: int  # states of the longest chain of failure links, without its root


def build_graph(lists: Sequence[Sequence[TokenPath]], num_labels: int, start_id: int) -> ContextGraph:
    """Build the automaton of some lists, all states of one depth at a time.

    Args:
        lists: The token paths of each list's phrases. An empty list is put before them.
        num_labels: Vocabulary size without blank.
        start_id: The token before a text's first one (PhraseEncoder.start_id).

    Returns:
        The automaton; list i is number i + 1 of its roots. Roots come first, then states by depth, parent and token.
    """
    num_roots = len(lists) + 1
    lengths_P = np.array([len(path.ids) for paths in lists for path in paths], np.int64)
    tokens_M = np.fromiter(chain.from_iterable(path.ids for paths in lists for path in paths), np.int64)
    gains_M = np.fromiter(chain.from_iterable(path.gains for paths in lists for path in paths), np.float64)
    first_P = np.cumsum(lengths_P) - lengths_P
    state_P = np.repeat(np.arange(1, num_roots), [len(paths) for paths in lists])
    width = max(num_labels, start_id + 1)
    root_children_RT = np.repeat(np.arange(num_roots)[:, None], width, 1)
    states = _States.roots(num_roots)
    for depth in range(int(lengths_P.max(initial=0))):
        is_longer_P = lengths_P > depth
        state_P, first_P, lengths_P = state_P[is_longer_P], first_P[is_longer_P], lengths_P[is_longer_P]
        keys_N, number_P = np.unique(state_P * width + tokens_M[first_P + depth], return_inverse=True)
        gain_N, is_whole_N = np.zeros(len(keys_N)), np.zeros(len(keys_N), bool)
        np.maximum.at(gain_N, number_P, gains_M[first_P + depth])
        is_whole_N[number_P[lengths_P == depth + 1]] = True
        state_P = len(states.fail_S) + number_P
        states = states.with_depth(keys_N, gain_N, is_whole_N, root_children_RT)
        if not depth:
            root_children_RT[keys_N // width, keys_N % width] = np.arange(num_roots, len(states.fail_S))
    is_arc_A = states.keys_A >= num_roots * width  # between states that are not roots
    parents_A = states.keys_A // width
    count_S = np.bincount(parents_A[is_arc_A], minlength=len(states.fail_S))
    tokens_A, children_A = states.keys_A[is_arc_A] % width, np.flatnonzero(is_arc_A) + num_roots
    return ContextGraph(
        first_S=np.cumsum(count_S) - count_S,
        count_S=count_S,
        fail_S=states.fail_S,
        parent_S=np.concatenate([np.full(num_roots, -1), parents_A]),
        list_S=states.list_S,
        score_S=states.score_S.astype(np.float32),
        at_risk_S=np.maximum(0.0, states.score_S - states.kept_S).astype(np.float32),
        tokens_A=tokens_A if len(tokens_A) else np.zeros(1, np.int64),
        children_A=children_A if len(tokens_A) else np.zeros(1, np.int64),
        root_children_RV=np.ascontiguousarray(root_children_RT[:, :num_labels]),
        starts_R=root_children_RT[:, start_id].copy(),
        max_count=max(1, int(count_S.max(initial=0))),
        num_levels=int(states.level_S.max(initial=0)),
    )


@dataclass(frozen=True)
class _States:
    """The states so far, in the order of the automaton."""

    num_roots: int
    keys_A: Int64Array  # of each state that is no root: parent times tokens, plus token; ascending
    fail_S: Int64Array
    list_S: Int64Array
    score_S: Float64Array
    kept_S: Float64Array  # score of the best whole phrase in it
    level_S: Int64Array  # states of the chain of failure links, without its root

    @classmethod
    def roots(cls, num_roots: int) -> _States:
        numbers, zeros = np.arange(num_roots), np.zeros(num_roots)
        return cls(num_roots, np.empty(0, np.int64), numbers, numbers, zeros, zeros, np.zeros(num_roots, np.int64))

    def with_depth(
        self, keys_N: Int64Array, gain_N: Float64Array, is_whole_N: BoolArray, root_children_RT: Int64Array
    ) -> _States:
        """Add the states of the next depth. `root_children_RT` has those of the first one, for all others."""
        parent_N, token_N = np.divmod(keys_N, root_children_RT.shape[1])
        fail_N = self.list_S[parent_N] if not len(self.keys_A) else self._fail(parent_N, token_N, root_children_RT)
        score_N = self.score_S[parent_N] + gain_N
        kept_N = np.maximum(np.where(is_whole_N, score_N, 0.0), np.maximum(self.kept_S[parent_N], self.kept_S[fail_N]))
        return _States(
            self.num_roots,
            np.concatenate([self.keys_A, keys_N]),
            np.concatenate([self.fail_S, fail_N]),
            np.concatenate([self.list_S, self.list_S[parent_N]]),
            np.concatenate([self.score_S, score_N]),
            np.concatenate([self.kept_S, kept_N]),
            np.concatenate([self.level_S, self.level_S[fail_N] + 1]),
        )

    def _fail(self, parent_N: Int64Array, token_N: Int64Array, root_children_RT: Int64Array) -> Int64Array:
        """Return the longest shorter end of each child: that of its parent, or of a shorter end, with the token."""
        end_N, found_N = self.fail_S[parent_N], np.empty_like(parent_N)
        open_M = np.arange(len(parent_N))
        while len(open_M):
            is_root_M = end_N[open_M] < self.num_roots
            at_root = open_M[is_root_M]
            found_N[at_root] = root_children_RT[end_N[at_root], token_N[at_root]]
            open_M = open_M[~is_root_M]
            keys_M = end_N[open_M] * root_children_RT.shape[1] + token_N[open_M]
            places_M = np.searchsorted(self.keys_A, keys_M).clip(max=len(self.keys_A) - 1)
            is_child_M = self.keys_A[places_M] == keys_M
            found_N[open_M[is_child_M]] = places_M[is_child_M] + self.num_roots
            open_M = open_M[~is_child_M]
            end_N[open_M] = self.fail_S[end_N[open_M]]
        return found_N


def join(graphs: Sequence[ContextGraph]) -> ContextGraph:
    """Return one automaton with the lists of all, in order, after one empty list."""
    shifts = _before([len(graph.fail_S) - 1 for graph in graphs])
    arc_shifts = _before([len(graph.tokens_A) for graph in graphs])
    root_shifts = _before([len(graph.starts_R) - 1 for graph in graphs])

    def joined(name: str, added: Sequence[int] | None = None) -> Any:
        """Return an array with an element for each state or root; only the first graph's empty list is kept."""
        arrays = [getattr(graph, name)[1:] for graph in graphs]
        if added is not None:
            arrays = [np.where(array < 0, array, array + shift) for array, shift in zip(arrays, added, strict=True)]
        return np.concatenate([getattr(graphs[0], name)[:1], *arrays])

    return ContextGraph(
        first_S=joined("first_S", arc_shifts),
        count_S=joined("count_S"),
        fail_S=joined("fail_S", shifts),
        parent_S=joined("parent_S", shifts),
        list_S=joined("list_S", root_shifts),
        score_S=joined("score_S"),
        at_risk_S=joined("at_risk_S"),
        tokens_A=np.concatenate([graph.tokens_A for graph in graphs]),
        children_A=np.concatenate([graph.children_A + shift for graph, shift in zip(graphs, shifts, strict=True)]),
        root_children_RV=joined("root_children_RV", shifts),
        starts_R=joined("starts_R", shifts),
        max_count=max(graph.max_count for graph in graphs),
        num_levels=max(graph.num_levels for graph in graphs),
    )


def _before(sizes: Sequence[int]) -> list[int]:
    """Return the sum of the sizes before each."""
    return [0, *accumulate(sizes)][:-1]
