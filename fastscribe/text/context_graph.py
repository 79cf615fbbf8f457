"""The automaton of phrases to boost: a trie of their tokens with failure links (Aho and Corasick 1975), in NumPy arrays.

A state is the longest end of the tokens so far that begins a phrase. Each state has a score, the sum of the gains of its
tokens; where phrases share a beginning, the largest gain counts. Several lists share one automaton, and each has a root of
its own, the state in which no phrase has begun. State 0 is the root of the empty list.

A text's total is the score of its phrases, and that of the phrase that its end begins. So a token that leaves a phrase in
the middle takes back what the phrase has gained: all of the state's score but that of the best whole phrase in it.
decode/boosting_reference.py has the same rules without arrays.

Shapes: S states, A arcs between states that are not roots, R roots, V labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from fastscribe.text.phrases import TokenPath
from fastscribe.types import Float32Array, Int64Array


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
    """Build the automaton of some lists.

    Args:
        lists: The token paths of each list's phrases. An empty list is put before them.
        num_labels: Vocabulary size without blank.
        start_id: The token before a text's first one (PhraseEncoder.start_id).

    Returns:
        The automaton; list i is number i + 1 of its roots.
    """
    trie = _Trie()
    roots = [trie.add_root()]
    for paths in lists:
        roots.append(trie.add_root())
        for path in paths:
            trie.add(roots[-1], path)
    return trie.graph(roots, num_labels, start_id)


class _Trie:
    def __init__(self) -> None:
        self.children: list[dict[int, int]] = []
        self.parents: list[int] = []
        self.gains: list[float] = []
        self.lists: list[int] = []
        self.is_whole: list[bool] = []
        self.num_roots = 0

    def add_root(self) -> int:
        self.num_roots += 1
        return self._add(-1, self.num_roots - 1)

    def _add(self, parent: int, list_index: int) -> int:
        self.children.append({})
        self.parents.append(parent)
        self.gains.append(0.0)
        self.lists.append(list_index)
        self.is_whole.append(False)
        return len(self.parents) - 1

    def add(self, root: int, path: TokenPath) -> None:
        state = root
        for token, gain in zip(path.ids, path.gains, strict=True):
            child = self.children[state].get(token)
            if child is None:
                child = self.children[state][token] = self._add(state, self.lists[root])
            self.gains[child] = max(self.gains[child], gain)
            state = child
        self.is_whole[state] = state != root

    def graph(self, roots: Sequence[int], num_labels: int, start_id: int) -> ContextGraph:
        size = len(self.parents)
        fail, score, kept, level = [0] * size, [0.0] * size, [0.0] * size, [0] * size
        for root in roots:
            fail[root] = root
        order = list(roots)  # by length, as it grows
        for state in order:
            for token, child in self.children[state].items():
                fail[child] = self._fail(state, token, fail)
                score[child] = score[state] + self.gains[child]
                own = score[child] if self.is_whole[child] else 0.0
                kept[child] = max(own, kept[state], kept[fail[child]])
                level[child] = level[fail[child]] + 1
                order.append(child)
        counts = [0 if self.parents[state] < 0 else len(self.children[state]) for state in range(size)]
        arcs = [arc for state in range(size) if counts[state] for arc in self.children[state].items()] or [(0, 0)]
        root_children_RV = np.empty((len(roots), num_labels), np.int64)
        for number, root in enumerate(roots):
            root_children_RV[number] = root
            for token, child in self.children[root].items():
                if token < num_labels:
                    root_children_RV[number, token] = child
        counts_S: Int64Array = np.array(counts, np.int64)
        scores, keeps = np.array(score), np.array(kept)
        return ContextGraph(
            first_S=np.cumsum(counts_S) - counts_S,
            count_S=counts_S,
            fail_S=np.array(fail, np.int64),
            parent_S=np.array(self.parents, np.int64),
            list_S=np.array(self.lists, np.int64),
            score_S=scores.astype(np.float32),
            at_risk_S=np.maximum(0.0, scores - keeps).astype(np.float32),
            tokens_A=np.array([token for token, _ in arcs], np.int64),
            children_A=np.array([child for _, child in arcs], np.int64),
            root_children_RV=root_children_RV,
            starts_R=np.array([self.children[root].get(start_id, root) for root in roots], np.int64),
            max_count=max(1, *counts) if counts else 1,
            num_levels=max(level),
        )

    def _fail(self, parent: int, token: int, fail: Sequence[int]) -> int:
        """Return the longest shorter end of a child, whose parent and its shorter ends have theirs."""
        state = parent
        while self.parents[state] >= 0:
            state = fail[state]
            if token in self.children[state]:
                return self.children[state][token]
        return state


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
