"""The phrases to boost of a batch, and what boosting means for each kind of decoding.

- Greedy decoding (RNN-T, TDT, CTC, attention): the model alone decides whether there is a label. A blank stays a blank, and
  TDT's durations are the model's. The boost decides which label it is. So one lookup a label is enough, and nothing is
  written into silence. Letting labels beat blanks found no more names (docs/log.md, 2026-11-23). Greedy decoding cannot take
  back what it has written, but the loss for leaving a phrase in the middle still makes it go on with the phrase.
- Beam search adds the scores to its hypotheses, and compares them with blanks, which get none. A hypothesis that leaves a
  phrase in the middle loses what the phrase gave it, also at the end of the text.

The automaton of context_graph.py becomes tensors. `BoostTables.following` looks up the state after each label, for all labels
at once, and `scores` are what the labels get. Nothing waits for the device and no shape depends on values, so CUDA graphs
capture it.

Shapes: B rows, N rows or beams, K states of each, one in each list that applies to it, V labels, S states, A arcs, R roots,
M most arcs of a state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from fastscribe.context.context_graph import ContextGraph
from fastscribe.cuda.device import small_to_device
from fastscribe.cuda.loops import power_of_two
from fastscribe.types import Int64Array

SCORE_NAMES = ("score_S", "at_risk_S")
TABLE_NAMES = (
    *("first_S", "count_S", "fail_S", "parent_S", "list_S", *SCORE_NAMES),
    *("tokens_A", "children_A", "root_children_RV"),
)


@dataclass(frozen=True)
class BoostTables:
    """A ContextGraph on a device; its arrays have the same names there."""

    first_S: torch.Tensor
    count_S: torch.Tensor
    fail_S: torch.Tensor
    parent_S: torch.Tensor
    list_S: torch.Tensor
    score_S: torch.Tensor
    at_risk_S: torch.Tensor
    tokens_A: torch.Tensor
    children_A: torch.Tensor
    root_children_RV: torch.Tensor
    offsets_M: torch.Tensor
    num_levels: int

    @classmethod
    def of(cls, graph: ContextGraph, weight: float, device: torch.device) -> BoostTables:
        """Copy an automaton to a device. All scores are multiplied by `weight`: natural-log units a character."""
        tensors = {name: small_to_device(getattr(graph, name), device) for name in TABLE_NAMES}
        for name in SCORE_NAMES:
            tensors[name] = tensors[name] * weight
        return cls(**tensors, offsets_M=torch.arange(graph.max_count, device=device), num_levels=graph.num_levels)

    @property
    def sizes(self) -> tuple[int, ...]:
        """States, arcs, roots, labels, most arcs of a state, and levels."""
        return (
            len(self.first_S),
            len(self.tokens_A),
            *self.root_children_RV.shape,
            len(self.offsets_M),
            self.num_levels,
        )

    @classmethod
    def allocate(cls, sizes: tuple[int, ...], device: torch.device) -> BoostTables:
        """Allocate tables of these sizes, to copy smaller ones into."""
        num_states, num_arcs, num_roots, num_labels, max_count, num_levels = sizes
        shapes: dict[str, tuple[int, ...]] = {"tokens_A": (num_arcs,), "children_A": (num_arcs,)}
        shapes["root_children_RV"] = (num_roots, num_labels)
        tensors = {
            name: torch.zeros(shapes.get(name, (num_states,)), dtype=torch.long, device=device) for name in TABLE_NAMES
        }
        for name in SCORE_NAMES:
            tensors[name] = tensors[name].float()
        return cls(**tensors, offsets_M=torch.arange(max_count, device=device), num_levels=num_levels)

    def copy_from_(self, other: BoostTables) -> None:
        """Overwrite these tables with others that are no larger, in the order of the current stream."""
        for name in TABLE_NAMES:
            source = getattr(other, name)
            getattr(self, name)[tuple(map(slice, source.shape))] = source

    def following(self, states_NK: torch.Tensor) -> torch.Tensor:
        """Return the state [N, K, V] after each label."""
        states_N = states_NK.flatten()
        chain = [states_N]
        for _ in range(self.num_levels - 1):
            chain.append(self.fail_S[chain[-1]])
        root_children_NV = self.root_children_RV[self.list_S[states_N]]
        num_labels = root_children_NV.shape[1]
        next_NV = torch.cat((root_children_NV, root_children_NV[:, :1]), 1)  # the last column takes arcs that are none
        for ends_N in reversed(chain):  # the longest end comes last, and wins
            is_arc_NM = self.offsets_M < self.count_S[ends_N][:, None]
            arcs_NM = (self.first_S[ends_N][:, None] + self.offsets_M).clamp(max=len(self.tokens_A) - 1)
            next_NV.scatter_(1, torch.where(is_arc_NM, self.tokens_A[arcs_NM], num_labels), self.children_A[arcs_NM])
        return torch.unflatten(next_NV[:, :num_labels], 0, states_NK.shape)

    def scores(self, states_NK: torch.Tensor, next_NKV: torch.Tensor) -> torch.Tensor:
        """Return what each label adds to the score of a text [N, V], float32: what it gains less what it takes back.

        `next_NKV` is what `following` returned for the states.
        """
        states_NK1 = states_NK[..., None]
        is_child_NKV = self.parent_S[next_NKV] == states_NK1
        before_NKV = torch.where(is_child_NKV, self.score_S[states_NK1], self.at_risk_S[states_NK1])
        scores_NV: torch.Tensor = (self.score_S[next_NKV] - before_NKV).sum(1)
        return scores_NV

    def advance(self, next_NKV: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
        """Return the states [N, K] after labels, of those that `following` returned."""
        index_NK1 = labels_N[:, None, None].expand(-1, next_NKV.shape[1], 1)
        return next_NKV.gather(2, index_NK1)[..., 0]

    def at_risk(self, states_NK: torch.Tensor) -> torch.Tensor:
        """Return what a text that ends here loses [N]."""
        return self.at_risk_S[states_NK].sum(1)


@dataclass(frozen=True)
class Boost:
    """The phrases of a batch: tables, and each row's states before its first token."""

    tables: BoostTables
    start_BK: Int64Array

    def starts(self) -> torch.Tensor:
        """Return the rows' first states on the tables' device."""
        return small_to_device(np.ascontiguousarray(self.start_BK), self.tables.first_S.device)

    def part(self, rows: slice) -> Boost:
        """Return the phrases of some rows."""
        return replace(self, start_BK=self.start_BK[rows])

    def new_place(self) -> FixedTables:
        """Return a place for the tables of later batches too."""
        return FixedTables(self.tables.first_S.device)


Sizes = tuple[int, ...]


class FixedTables:
    """Tables for captured decoders: a graph contains addresses, so the tables of each batch are copied to fixed ones.

    They are on a device, and grow to the largest of each size so far, in powers of two. So batches with lists of many sizes
    soon need no new graphs. A graph that reads smaller ones keeps them until it is dropped.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: BoostTables | None = None
        self._loaded: BoostTables | None = None  # those that were copied there last

    def load(self, boost: Boost) -> tuple[BoostTables, Sizes]:
        """Copy a batch's tables, in the order of the current stream. Return those with the batch's phrases, and their sizes."""
        tables = boost.tables
        *numbers, num_labels, max_count, num_levels = tables.sizes
        rounded = [*map(power_of_two, numbers), num_labels]
        sizes = (*rounded, min(power_of_two(max_count), max(1, num_labels)), power_of_two(num_levels))
        if self._tables is not None:
            sizes = tuple(map(max, sizes, self._tables.sizes))
        if self._tables is None or sizes != self._tables.sizes:
            self._loaded = None
            self._tables = BoostTables.allocate(sizes, self._device)
        if self._loaded is not tables:
            self._tables.copy_from_(tables)
            self._loaded = tables
        return self._tables, self._tables.sizes
