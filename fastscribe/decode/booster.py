"""The phrases that a run boosts: its own list, and those of manifest rows, as one automaton for each batch.

The run's list is made into tables once. Lists of rows are joined to it for a batch; a row's phrases come beside the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fastscribe.decode.boosting import Boost, BoostTables
from fastscribe.text.context_graph import ContextGraph, build_graph, join
from fastscribe.text.phrases import PhraseEncoder, TokenPath, encode_all
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import Batch, Phrase

Phrases = tuple[Phrase, ...]
_MAX_KEPT = 4096  # encoded lists of rows
# Natural-log units that each character of a phrase gets. Chosen on one half of the sentences of scripts/benchmarks/boost.py:
# 0.25, 0.5, 1 and 2 were compared (docs/log.md, 2026-11-23). Characters and not tokens, so that vocabularies of letters and
# of words give a phrase the same.
WEIGHT = 0.5


class Booster:
    """Makes the Boost of each batch.

    Args:
        phrases: The run's list.
        tokenizer: The model's.
        path: The model, for messages.
        device: The decoder's.
        say: Called with a line for phrases that the vocabulary cannot write.

    Raises:
        UsageError: The vocabulary can write none of the run's phrases.
        CheckpointError: There are phrases, and the tokenizer cannot encode text.
    """

    def __init__(
        self,
        phrases: Phrases,
        tokenizer: Tokenizer,
        path: object,
        device: torch.device,
        say: Callable[[str], None],
    ) -> None:
        self._tokenizer, self._path, self._device, self._say = tokenizer, path, device, say
        self._encoder: PhraseEncoder | None = None
        self._encoded: dict[Phrases, list[TokenPath]] = {}
        self._warned: set[str] = set()
        self._graph: ContextGraph | None = None
        self._tables: BoostTables | None = None
        self._joined: tuple[tuple[Phrases, ...], ContextGraph, BoostTables] | None = None
        if phrases:
            encoded = encode_all(phrases, self._get_encoder(), say)
            self._graph = self._build([[path for paths in encoded for path in paths]])
            self._tables = BoostTables.of(self._graph, WEIGHT, device)

    def boost(self, batch: Batch) -> Boost | None:
        """Return the phrases of a batch; None if there are none."""
        own = [utterance.audio.boost for utterance in batch.utterances]
        if not any(own):
            if self._graph is None or self._tables is None:
                return None
            return Boost(self._tables, self._graph.starts_R[np.ones((len(own), 1), np.int64)])
        lists = tuple(dict.fromkeys(phrases for phrases in own if phrases))
        graph, tables = self._join(lists)
        numbers = {phrases: number for number, phrases in enumerate(lists, start=1)}
        own_B = np.array([numbers.get(phrases, 0) for phrases in own])
        if self._graph is None:
            return Boost(tables, graph.starts_R[own_B[:, None]])
        first = len(self._graph.starts_R)  # roots of the run's automaton come before those of rows
        return Boost(tables, graph.starts_R[np.stack([np.ones_like(own_B), first + own_B], 1)])

    def _join(self, lists: tuple[Phrases, ...]) -> tuple[ContextGraph, BoostTables]:
        if self._joined is None or self._joined[0] != lists:
            graph = self._build([self._paths(phrases) for phrases in lists])
            graph = graph if self._graph is None else join(self._graph, graph)
            self._joined = lists, graph, BoostTables.of(graph, WEIGHT, self._device)
        return self._joined[1], self._joined[2]

    def _paths(self, phrases: Phrases) -> list[TokenPath]:
        """Return the ways to write a row's phrases; warn once of each that the vocabulary cannot write."""
        if phrases not in self._encoded:
            if len(self._encoded) >= _MAX_KEPT:
                self._encoded.clear()
            encoder = self._get_encoder()
            encoded = [encoder.paths(phrase) for phrase in phrases]
            unknown = [one.text for one, paths in zip(phrases, encoded, strict=True) if not paths]
            for text in unknown:
                if text not in self._warned:
                    self._warned.add(text)
                    self._say(f"boost: not used, because the model's vocabulary has no pieces for it: {text}")
            self._encoded[phrases] = [path for paths in encoded for path in paths]
        return self._encoded[phrases]

    def _get_encoder(self) -> PhraseEncoder:
        if self._encoder is None:
            self._encoder = PhraseEncoder(self._tokenizer, self._path)
        return self._encoder

    def _build(self, lists: Sequence[Sequence[TokenPath]]) -> ContextGraph:
        encoder = self._get_encoder()
        return build_graph(lists, encoder.num_labels, encoder.start_id)
