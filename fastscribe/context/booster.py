"""The phrases that a run boosts: its own list, and those of manifest rows, as one automaton for each batch.

The run's list is made into tables once. The automaton of a row's list is kept, because other rows often have the same; for a
batch, those of its rows are joined to the run's. A row's phrases come beside the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from threading import Lock

import numpy as np
import torch

from fastscribe.context.boosting import Boost, BoostTables
from fastscribe.context.context_graph import ContextGraph, build_graph, join
from fastscribe.context.language_filter import LanguageFilter
from fastscribe.context.phrases import PhraseEncoder, TokenPath, encode_all, named, remarks, without_effect
from fastscribe.context.vocabulary_mask import VocabularyMasks
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import Batch, Frames, Phrase

Phrases = tuple[Phrase, ...]
_MAX_KEPT_STATES = 1 << 22  # of the automata of rows' lists; about 60 bytes each
_MAX_SEEN = 100_000  # lists of rows that are known again
_MAX_WARNINGS = 10  # about lists of rows
# Natural-log units that each character of a phrase gets. Chosen on one half of the sentences of test speech:
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
        say: Called with a line for phrases that the vocabulary cannot write, and one for those of the run's list that its
            language leaves out.
        languages: Has the run's language, if it has one. It warns of the phrases of rows itself.

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
        languages: LanguageFilter | None = None,
    ) -> None:
        self._tokenizer, self._path, self._device, self._say = tokenizer, path, device, say
        self._encoder: PhraseEncoder | None = None
        self._kept: dict[Phrases, ContextGraph] = {}
        self._num_kept_states = 0
        self._seen: set[int] = set()  # hashes of rows' lists
        self._warned: set[Phrases] = set()
        self._num_warnings = 0
        self._lock = Lock()
        self._graph: ContextGraph | None = None
        self._tables: BoostTables | None = None
        self._joined: tuple[tuple[Phrases, ...], ContextGraph, BoostTables] | None = None
        if phrases:
            encoded = encode_all(phrases, self._get_encoder(), say)
            if languages is not None and languages.language is not None:
                excluded = languages.excluded(languages.language) or frozenset()
                if unused := without_effect(phrases, encoded, self._get_encoder(), excluded):
                    say(
                        f"--boost: {len(unused):,} of {len(phrases):,} phrases have no effect, because --language "
                        f"{languages.language} leaves out tokens that they need: {named(unused)}"
                    )
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
        with self._lock:  # parts of a batch run side by side
            graph, tables = self._join(lists)
        numbers = {phrases: number for number, phrases in enumerate(lists, start=1)}
        own_B = np.array([numbers.get(phrases, 0) for phrases in own])
        if self._graph is None:
            return Boost(tables, graph.starts_R[own_B[:, None]])
        own_B[own_B > 0] += 1  # the root of the run's list comes before those of rows
        return Boost(tables, graph.starts_R[np.stack([np.ones_like(own_B), own_B], 1)])

    def _join(self, lists: tuple[Phrases, ...]) -> tuple[ContextGraph, BoostTables]:
        if self._joined is None or self._joined[0] != lists:
            run = [] if self._graph is None else [self._graph]
            graph = join([*run, *self._graphs_of(lists)])
            self._joined = lists, graph, BoostTables.of(graph, WEIGHT, self._device)
        return self._joined[1:]

    def _graphs_of(self, lists: tuple[Phrases, ...]) -> list[ContextGraph]:
        """Return the automata of rows' lists, in their order; neighbours that are new share one.

        A list gets one of its own, which is kept, when it comes a second time: most come once, and one for several is cheaper.
        """
        graphs: list[ContextGraph] = []
        for is_new, some in groupby(lists, self._is_new):
            if is_new:
                graphs.append(self._build(list(map(self._encoded, some))))
            else:
                graphs += map(self._graph_of, some)
        return graphs

    def _is_new(self, phrases: Phrases) -> bool:
        number = hash(phrases)
        is_new = number not in self._seen
        if is_new:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            self._seen.add(number)
        return is_new

    def _graph_of(self, phrases: Phrases) -> ContextGraph:
        if phrases not in self._kept:
            if self._num_kept_states > _MAX_KEPT_STATES:
                self._kept.clear()
                self._num_kept_states = 0
            self._kept[phrases] = self._build([self._encoded(phrases)])
            self._num_kept_states += len(self._kept[phrases].fail_S)
        return self._kept[phrases]

    def _encoded(self, phrases: Phrases) -> list[TokenPath]:
        """Return the token paths of a row's list; warn of phrases that the vocabulary cannot write, and of heavy ones."""
        encoder = self._get_encoder()
        encoded = encoder.paths(phrases)
        lines = remarks(phrases, encoded, encoder)
        if lines and phrases not in self._warned and self._num_warnings < _MAX_WARNINGS:
            self._warned.add(phrases)
            self._num_warnings += 1
            last = "; nothing is said about later rows" if self._num_warnings == _MAX_WARNINGS else ""
            self._say(f"boost: {'; '.join(lines)}{last}")
        return [path for paths in encoded for path in paths]

    def _get_encoder(self) -> PhraseEncoder:
        if self._encoder is None:
            self._encoder = PhraseEncoder(self._tokenizer, self._path)
        return self._encoder

    def _build(self, lists: Sequence[Sequence[TokenPath]]) -> ContextGraph:
        encoder = self._get_encoder()
        return build_graph(lists, encoder.num_labels, encoder.start_id)


@dataclass(frozen=True)
class Constraints:
    """What the rows of batches may not write, and what they should rather write (pipeline/run_rooms.py builds it).

    Attributes:
        booster: Has the phrases.
        masks: Has the tokens; None: the model has one language, or a prompt for it.
    """

    booster: Booster
    masks: VocabularyMasks | None

    def constrain(self, frames: Frames, batch: Batch) -> Frames:
        """Return the batch's frames with the phrases to boost and the tokens that are left out, if there are any."""
        boost, mask = self.booster.boost(batch), self.masks and self.masks.mask(batch)
        return frames if boost is None and mask is None else replace(frames, boost=boost, mask=mask)
