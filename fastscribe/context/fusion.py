"""Language models on the decoder's device: what each label adds to the score of a text.

Beam search keeps a number for each hypothesis, the model's state. `scores` are of all labels in a state, and `after` is the
state after a label (decoder.FusedModel).

- `language_model.Tables` has a row of scores for each state. It suits small vocabularies.
- `TokenTables` has the n-grams of an ARPA file.

No model's probability of the end of a text counts: utterances end at pauses, not at ends of sentences.

Shapes: N hypotheses, V labels without blank, U units, S states of the graph, A arcs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastscribe.context.backoff_graph import BackoffGraph
from fastscribe.context.backoff_model import BackoffModel


def tables_of(model: BackoffModel) -> TokenTables:
    """Return the tables of a model on the CPU."""
    return TokenTables(_Graph.of(model.graph), model.start, model.fusion.weight, model.fusion.bonus)


def _arcs_of(first_S: torch.Tensor, state_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the arcs of some states, one after the other, and the row in N of each."""
    first_N = first_S.index_select(0, state_N)
    count_N = first_S.index_select(0, state_N + 1) - first_N
    rows_M = torch.arange(len(state_N), device=state_N.device).repeat_interleave(count_N)
    before_N = count_N.cumsum(0) - count_N
    places_M = torch.arange(len(rows_M), device=state_N.device)
    return places_M + (first_N - before_N).index_select(0, rows_M), rows_M


@dataclass(frozen=True)
class _Graph:
    """A BackoffGraph as tensors; its arrays have the same names there."""

    keys_A: torch.Tensor
    units_A: torch.Tensor
    logprobs_A: torch.Tensor
    next_A: torch.Tensor
    first_S: torch.Tensor
    shorter_S: torch.Tensor
    backoffs_S: torch.Tensor
    root_logprobs_U: torch.Tensor
    root_next_U: torch.Tensor
    num_levels: int

    @classmethod
    def of(cls, graph: BackoffGraph) -> _Graph:
        num_units = graph.num_units
        units_A = torch.from_numpy(graph.keys_A).remainder(num_units).int()
        arrays = {name: getattr(graph, name) for name in cls.__annotations__ if name not in ("units_A", "num_levels")}
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return cls(**tensors, units_A=units_A, num_levels=graph.num_levels)

    def to(self, device: torch.device) -> _Graph:
        moved: dict[str, Any] = {name: v.to(device) if torch.is_tensor(v) else v for name, v in vars(self).items()}
        return _Graph(**moved)

    def rows(self, state_N: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of all units [N, U]."""
        num_units = len(self.root_next_U)
        chain, weights = [state_N], [torch.zeros(len(state_N), device=state_N.device)]
        for _ in range(self.num_levels):
            weights.append(weights[-1] + self.backoffs_S.index_select(0, chain[-1]))
            chain.append(self.shorter_S.index_select(0, chain[-1]).long())
        rows_NU = self.root_logprobs_U + weights[-1][:, None]
        flat = rows_NU.view(-1)
        for ends_N, weight_N in zip(reversed(chain[:-1]), reversed(weights[:-1]), strict=True):  # the longest end wins
            arcs_M, rows_M = _arcs_of(self.first_S, ends_N)
            values_M = self.logprobs_A.index_select(0, arcs_M) + weight_N.index_select(0, rows_M)
            flat.scatter_(0, rows_M * num_units + self.units_A.index_select(0, arcs_M), values_M)
        return rows_NU

    def follow(self, state_N: torch.Tensor, unit_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of a unit in each state [N], and the state after it [N]."""
        num_units, num_arcs = len(self.root_next_U), len(self.keys_A)
        weight_N = torch.zeros(len(state_N), device=state_N.device)
        logprob_N, next_N = self.root_logprobs_U.index_select(0, unit_N), self.root_next_U.index_select(0, unit_N)
        is_found_N = torch.zeros_like(state_N, dtype=torch.bool)
        added_N = torch.zeros_like(weight_N)
        for _ in range(self.num_levels if num_arcs else 0):
            keys_N = state_N * num_units + unit_N
            places_N = torch.searchsorted(self.keys_A, keys_N).clamp(max=num_arcs - 1)
            is_new_N = (self.keys_A.index_select(0, places_N) == keys_N) & ~is_found_N
            logprob_N = torch.where(is_new_N, self.logprobs_A.index_select(0, places_N), logprob_N)
            next_N = torch.where(is_new_N, self.next_A.index_select(0, places_N), next_N)
            added_N = torch.where(is_new_N, weight_N, added_N)
            is_found_N |= is_new_N
            weight_N = weight_N + self.backoffs_S.index_select(0, state_N)
            state_N = self.shorter_S.index_select(0, state_N).long()
        return logprob_N + torch.where(is_found_N, added_N, weight_N), next_N.long()


@dataclass(frozen=True)
class TokenTables:
    """Scores of tokens. A state is one of the graph."""

    graph: _Graph
    start: int
    weight: float
    bonus: float

    def scores(self, state_N: torch.Tensor) -> torch.Tensor:
        return self.graph.rows(state_N)[:, :-1].mul_(self.weight).add_(self.bonus)

    def after(self, state_N: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
        return self.graph.follow(state_N, label_N)[1]

    def to(self, device: torch.device) -> TokenTables:
        return TokenTables(self.graph.to(device), self.start, self.weight, self.bonus)
