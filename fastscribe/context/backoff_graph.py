"""The automaton of an n-gram model with backoff weights (Katz 1987), in NumPy arrays.

A state is the longest end of the units so far that the model has as a context. An arc is an n-gram: it leads from the state
of its first units to that of its longest end. A unit without an arc backs off: it has its probability in the next shorter
state, times the weight of backing off. State 0 has no units before; its arcs are rows of their own, one for each unit.

A pruned model can lack the beginning of an n-gram. Such a beginning gets an arc with the probability that it has by backing
off, so that every n-gram is found.

Shapes: S states, A arcs, U units, N n-grams of one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastscribe.types import Float32Array, Int32Array, Int64Array


@dataclass(frozen=True)
class NgramsOfLength:
    """N-grams of at least two units."""

    units_NL: Int32Array  # [N, length]
    logprobs_N: Float32Array  # natural logarithms
    backoffs_N: Float32Array


@dataclass(frozen=True)
class BackoffGraph:
    keys_A: Int64Array  # state times U plus unit, in ascending order
    logprobs_A: Float32Array
    next_A: Int32Array  # state after the unit
    first_S: Int64Array  # index of the state's first arc; one more than states
    shorter_S: Int32Array  # state to back off to; of state 0: itself
    backoffs_S: Float32Array
    root_logprobs_U: Float32Array
    root_next_U: Int32Array
    num_levels: int  # states with arcs of their own on the longest way to state 0

    @property
    def num_units(self) -> int:
        return len(self.root_next_U)


def build_graph(
    root_logprobs_U: Float32Array, root_backoffs_U: Float32Array, longer: Sequence[NgramsOfLength]
) -> BackoffGraph:
    """Build the automaton of a model.

    Args:
        root_logprobs_U: Log-probability of each unit without a context. The begin of a text is a unit, too.
        root_backoffs_U: Weight of backing off from the context of each unit alone.
        longer: N-grams of 2, 3 .. units.

    Returns:
        The automaton. A unit that begins no n-gram, and whose weight is 0, has no state of its own.
    """
    num_units = len(root_logprobs_U)
    has_state_U = root_backoffs_U != 0
    for ngrams in longer:
        has_state_U[ngrams.units_NL[:, 0]] = True
    root_next_U = np.where(has_state_U, np.cumsum(has_state_U), 0).astype(np.int32)
    backoffs = [np.zeros(1, np.float32), root_backoffs_U[has_state_U]]
    graph = BackoffGraph(
        keys_A=np.empty(0, np.int64),
        logprobs_A=np.empty(0, np.float32),
        next_A=np.empty(0, np.int32),
        first_S=np.empty(0, np.int64),
        shorter_S=np.zeros(1 + int(has_state_U.sum()), np.int32),
        backoffs_S=np.concatenate(backoffs),
        root_logprobs_U=root_logprobs_U,
        root_next_U=root_next_U,
        num_levels=max(1, len(longer)),
    )
    states = [root_next_U[ngrams.units_NL[:, 0]] for ngrams in longer]  # after the first units of each n-gram
    for place, ngrams in enumerate(longer):
        is_last = place == len(longer) - 1
        beginnings = [
            _keys(states[other], longer[other].units_NL[:, place + 1], num_units)
            for other in range(place + 1, len(longer))
        ]
        graph, numbers = _with_length(graph, states[place], ngrams, beginnings, is_last)
        for other, found in zip(range(place + 1, len(longer)), numbers, strict=True):
            states[other] = found
    num_states = len(graph.shorter_S)
    first_S = np.searchsorted(graph.keys_A, np.arange(num_states + 1, dtype=np.int64) * num_units)
    return replace(graph, first_S=first_S)


def _keys(states_N: Int32Array, units_N: Int32Array | Int64Array, num_units: int) -> Int64Array:
    return states_N.astype(np.int64) * num_units + units_N


def _with_length(
    graph: BackoffGraph, states_N: Int32Array, ngrams: NgramsOfLength, beginnings: Sequence[Int64Array], is_last: bool
) -> tuple[BackoffGraph, list[Int32Array]]:
    """Add the n-grams of one length, and beginnings of longer ones that are missing; return also the states of those."""
    num_units = graph.num_units
    keys_N = _keys(states_N, ngrams.units_NL[:, -1], num_units)
    keys_A, index_A = np.unique(keys_N, return_index=True)
    logprobs_A, backoffs_A = ngrams.logprobs_N[index_A], ngrams.backoffs_N[index_A]
    needed = [keys[_find(keys_A, keys) < 0] for keys in beginnings]
    missing_M = np.unique(np.concatenate(needed)) if needed else np.empty(0, np.int64)
    if len(missing_M):
        before_M, units_M = (missing_M // num_units).astype(np.int32), missing_M % num_units
        order_A = np.argsort(np.concatenate([keys_A, missing_M]), kind="stable")
        keys_A = np.concatenate([keys_A, missing_M])[order_A]
        logprobs_A = np.concatenate([logprobs_A, _logprobs(graph, before_M, units_M)])[order_A]
        backoffs_A = np.concatenate([backoffs_A, np.zeros(len(missing_M), np.float32)])[order_A]
    before_A, units_A = (keys_A // num_units).astype(np.int32), keys_A % num_units
    shorter_A = _next(graph, graph.shorter_S[before_A], units_A)
    num_states = len(graph.shorter_S)
    next_A = shorter_A if is_last else np.arange(num_states, num_states + len(keys_A), dtype=np.int32)
    added = replace(
        graph,
        keys_A=np.concatenate([graph.keys_A, keys_A]),  # ascending: the states are newer than those with arcs so far
        logprobs_A=np.concatenate([graph.logprobs_A, logprobs_A]),
        next_A=np.concatenate([graph.next_A, next_A]),
        shorter_S=graph.shorter_S if is_last else np.concatenate([graph.shorter_S, shorter_A]),
        backoffs_S=graph.backoffs_S if is_last else np.concatenate([graph.backoffs_S, backoffs_A]),
    )
    return added, [next_A[np.searchsorted(keys_A, keys)] for keys in beginnings]


def _find(keys_A: Int64Array, keys_N: Int64Array) -> Int64Array:
    """Return the index of each key; -1 where it is not there."""
    if not len(keys_A):
        return np.full(len(keys_N), -1, np.int64)
    places_N = np.searchsorted(keys_A, keys_N).clip(max=len(keys_A) - 1)
    return np.where(keys_A[places_N] == keys_N, places_N, -1)


def _back_off(graph: BackoffGraph, states_N: Int32Array, units_N: Int64Array) -> tuple[Int64Array, Float32Array]:
    """Back off from states until there is an arc. Return its index (-1: it is state 0's), and the sum of the weights."""
    states_N = states_N.copy()
    arcs_N, weights_N = np.full(len(states_N), -1, np.int64), np.zeros(len(states_N), np.float32)
    open_M = np.flatnonzero(states_N)
    while len(open_M):
        found_M = _find(graph.keys_A, _keys(states_N[open_M], units_N[open_M], graph.num_units))
        arcs_N[open_M] = found_M
        open_M = open_M[found_M < 0]
        weights_N[open_M] += graph.backoffs_S[states_N[open_M]]
        states_N[open_M] = graph.shorter_S[states_N[open_M]]
        open_M = open_M[states_N[open_M] != 0]
    return arcs_N, weights_N


def _logprobs(graph: BackoffGraph, states_N: Int32Array, units_N: Int64Array) -> Float32Array:
    arcs_N, weights_N = _back_off(graph, states_N, units_N)
    found_N: Float32Array = graph.root_logprobs_U[units_N]
    has_arc_N = arcs_N >= 0
    found_N[has_arc_N] = graph.logprobs_A[arcs_N[has_arc_N]]
    return found_N + weights_N


def _next(graph: BackoffGraph, states_N: Int32Array, units_N: Int64Array) -> Int32Array:
    arcs_N, _ = _back_off(graph, states_N, units_N)
    found_N: Int32Array = graph.root_next_U[units_N]
    has_arc_N = arcs_N >= 0
    found_N[has_arc_N] = graph.next_A[arcs_N[has_arc_N]]
    return found_N
