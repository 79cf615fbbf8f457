"""Language models on the decoder's device: what each label adds to the score of a text.

Beam search keeps a number for each hypothesis, the model's state. `scores` are of all labels in a state, and `after` is the
state after a label (decoder.FusedModel).

- `language_model.Tables` has a row of scores for each state. It suits small vocabularies.
- `TokenTables` has the n-grams of an ARPA file.

No model's probability of the end of a text counts: utterances end at pauses, not at ends of sentences.

Shapes: N hypotheses, V labels without blank, U units, S states of the graph, A arcs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fastscribe.context.backoff_model import BackoffModel


def _arcs_of(first_S: torch.Tensor, state_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the arcs of some states, one after the other, and the row in N of each."""
    first_N = first_S.index_select(0, state_N)
    count_N = first_S.index_select(0, state_N + 1) - first_N
    rows_M = torch.arange(len(state_N), device=state_N.device).repeat_interleave(count_N)
    before_N = count_N.cumsum(0) - count_N
    places_M = torch.arange(len(rows_M), device=state_N.device)
    return places_M + (first_N - before_N).index_select(0, rows_M), rows_M


_ARRAYS = ("keys_A", "logprobs_A", "next_A", "first_S", "shorter_S", "backoffs_S", "root_logprobs_U", "root_next_U")


@dataclass(frozen=True)
class TokenTables:
    """A BackoffModel as tensors; the arrays of its graph have the same names there. A state is one of the graph."""

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
    start: int
    weight: float
    bonus: float

    @classmethod
    def of(cls, model: BackoffModel) -> TokenTables:
        """Return the tables of a model on the CPU."""
        graph, fusion = model.graph, model.fusion
        tensors: dict[str, Any] = {name: torch.from_numpy(getattr(graph, name)) for name in _ARRAYS}
        tensors["units_A"] = tensors["keys_A"].remainder(graph.num_units).int()
        return cls(**tensors, num_levels=graph.num_levels, start=model.start, weight=fusion.weight, bonus=fusion.bonus)

    def to(self, device: torch.device) -> TokenTables:
        moved: dict[str, Any] = {name: value.to(device) for name, value in vars(self).items() if torch.is_tensor(value)}
        return replace(self, **moved)

    def scores(self, state_N: torch.Tensor) -> torch.Tensor:
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
        return rows_NU[:, :-1].mul_(self.weight).add_(self.bonus)

    def after(self, state_N: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
        num_units, num_arcs = len(self.root_next_U), len(self.keys_A)
        next_N, is_found_N = self.root_next_U.index_select(0, label_N), torch.zeros_like(state_N, dtype=torch.bool)
        for _ in range(self.num_levels if num_arcs else 0):
            keys_N = state_N * num_units + label_N
            places_N = torch.searchsorted(self.keys_A, keys_N).clamp(max=num_arcs - 1)
            is_new_N = (self.keys_A.index_select(0, places_N) == keys_N) & ~is_found_N
            next_N = torch.where(is_new_N, self.next_A.index_select(0, places_N), next_N)
            is_found_N |= is_new_N
            state_N = self.shorter_S.index_select(0, state_N).long()
        return next_N.long()
