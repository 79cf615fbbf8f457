"""Language models on the decoder's device: what each label adds to the score of a text.

Beam search keeps a number for each hypothesis, the model's state. `scores` are of all labels in a state, `after` is the state
after a label, and `final` is what is added at the end of a text (scorer.FusedModel).

- `language_model.Tables` has a row of scores for each state. It suits small vocabularies.
- `TokenTables` has the n-grams of an ARPA file whose units are the recognizer's tokens.
- `WordTables` has those of an ARPA file of words. A word is known when the next one begins, or at the end of the text. Until
  then its beginning has the score of the likeliest word, without its context, that begins so (a look-ahead), and the word's
  own score in its context then replaces that. The bonus is added once for each word, with the token that begins it.

No model's probability of the end of a text counts: utterances end at pauses, not at ends of sentences.

Shapes: N hypotheses, V labels without blank, U units, S states of the graph, A arcs, P nodes of the lexicon.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import torch

from fastscribe.context.backoff_graph import BackoffGraph
from fastscribe.context.backoff_model import BackoffModel
from fastscribe.context.word_lexicon import NO_WORD, ROOT, WordLexicon

_T = TypeVar("_T")


def tables_of(model: BackoffModel) -> TokenTables | WordTables:
    """Return the tables of a model on the CPU."""
    graph, fusion = _Graph.of(model.graph), model.fusion
    if model.lexicon is None:
        return TokenTables(graph, model.start, fusion.weight, fusion.bonus)
    lexicon = _Lexicon.of(model.lexicon, fusion.weight, fusion.bonus)
    return WordTables(graph, lexicon, model.start * len(model.lexicon.word_P) + ROOT, fusion.weight, fusion.bonus)


def _moved(tables: _T, device: torch.device) -> _T:
    """Return a dataclass with its tensors on a device."""
    values = {field.name: getattr(tables, field.name) for field in fields(tables)}  # type: ignore[arg-type]
    return type(tables)(**{name: v.to(device) if torch.is_tensor(v) else v for name, v in values.items()})


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
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return cls(**tensors, units_A=units_A, num_levels=graph.num_levels)

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

    def final(self, state_N: torch.Tensor) -> torch.Tensor | None:
        return None

    def to(self, device: torch.device) -> TokenTables:
        return TokenTables(_moved(self.graph, device), self.start, self.weight, self.bonus)


@dataclass(frozen=True)
class _Lexicon:
    """A WordLexicon as tensors; its arrays have the same names there. Its scores are weighted, with the bonus of a word."""

    keys_A: torch.Tensor  # parent times V plus token
    first_P: torch.Tensor
    tokens_A: torch.Tensor
    children_A: torch.Tensor
    word_P: torch.Tensor
    best_P: torch.Tensor
    begins_V: torch.Tensor
    keeps_V: torch.Tensor
    child_V: torch.Tensor

    @classmethod
    def of(cls, lexicon: WordLexicon, weight: float, bonus: float) -> _Lexicon:
        tensors = {name: torch.from_numpy(getattr(lexicon, name)) for name in cls.__annotations__ if name != "keys_A"}
        counts_P = tensors["first_P"].diff()
        parents_A = torch.arange(len(counts_P)).repeat_interleave(counts_P)
        tensors["best_P"] = tensors["best_P"] * weight + bonus
        tensors["best_P"][ROOT] = 0.0
        return cls(keys_A=parents_A * len(lexicon.child_V) + tensors["tokens_A"], **tensors)


@dataclass(frozen=True)
class WordTables:
    """Scores of tokens from probabilities of words. A state is one of the graph times P, plus a node of the lexicon."""

    graph: _Graph
    lexicon: _Lexicon
    start: int
    weight: float
    bonus: float

    def _split(self, state_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num_nodes = len(self.lexicon.word_P)
        return state_N.div(num_nodes, rounding_mode="floor"), state_N.remainder(num_nodes)

    def _finished(self, context_N: torch.Tensor, node_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the end of the word adds to the score [N], and the state of the graph after it."""
        word_N = self.lexicon.word_P.index_select(0, node_N)
        logprob_N, after_N = self.graph.follow(context_N, word_N)
        more_N = logprob_N * self.weight + self.bonus - self.lexicon.best_P.index_select(0, node_N)
        is_word_N = node_N != ROOT
        return torch.where(is_word_N, more_N, 0.0), torch.where(is_word_N, after_N, context_N)

    def scores(self, state_N: torch.Tensor) -> torch.Tensor:
        lexicon = self.lexicon
        context_N, node_N = self._split(state_N)
        before_N = lexicon.best_P.index_select(0, node_N)
        unknown_N = lexicon.best_P[NO_WORD] - before_N
        scores_NV = torch.where(lexicon.keeps_V, 0.0, unknown_N[:, None])
        arcs_M, rows_M = _arcs_of(lexicon.first_P, node_N)
        children_M = lexicon.children_A.index_select(0, arcs_M)
        values_M = lexicon.best_P.index_select(0, children_M) - before_N.index_select(0, rows_M)
        num_labels = len(lexicon.child_V)
        scores_NV.view(-1).scatter_(0, rows_M * num_labels + lexicon.tokens_A.index_select(0, arcs_M), values_M)
        finished_N, _ = self._finished(context_N, node_N)
        begun_V = lexicon.best_P.index_select(0, lexicon.child_V)
        return torch.where(lexicon.begins_V, begun_V + finished_N[:, None], scores_NV)

    def after(self, state_N: torch.Tensor, label_N: torch.Tensor) -> torch.Tensor:
        lexicon = self.lexicon
        context_N, node_N = self._split(state_N)
        begins_N = lexicon.begins_V.index_select(0, label_N)
        _, finished_N = self._finished(context_N, node_N)
        inside_N = torch.full_like(node_N, NO_WORD)
        if len(lexicon.keys_A):
            keys_N = node_N * len(lexicon.child_V) + label_N
            places_N = torch.searchsorted(lexicon.keys_A, keys_N).clamp(max=len(lexicon.keys_A) - 1)
            is_arc_N = lexicon.keys_A.index_select(0, places_N) == keys_N
            inside_N = torch.where(is_arc_N, lexicon.children_A.index_select(0, places_N).long(), inside_N)
        inside_N = torch.where(lexicon.keeps_V.index_select(0, label_N), node_N, inside_N)
        next_N = torch.where(begins_N, lexicon.child_V.index_select(0, label_N).long(), inside_N)
        return torch.where(begins_N, finished_N, context_N) * len(lexicon.word_P) + next_N

    def final(self, state_N: torch.Tensor) -> torch.Tensor | None:
        finished_N, _ = self._finished(*self._split(state_N))
        return finished_N

    def to(self, device: torch.device) -> WordTables:
        moved = _moved(self.graph, device), _moved(self.lexicon, device)
        return WordTables(*moved, self.start, self.weight, self.bonus)
