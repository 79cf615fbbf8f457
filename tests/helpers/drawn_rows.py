"""Rows of a batch with phrases to boost and tokens that are left out, drawn by Hypothesis, and what the references need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from fastscribe.context.boosting import Boost, BoostTables
from fastscribe.context.context_graph import build_graph
from fastscribe.context.phrases import TokenPath
from fastscribe.context.vocabulary_mask import VocabularyMask
from fastscribe.types import Frames
from tests.helpers.phrase_lists import PhraseList, PhraseLists


@st.composite
def token_paths(draw, num_labels: int, start_id: int) -> list[TokenPath]:
    ids = st.lists(st.integers(0, num_labels - 1), min_size=1, max_size=6)
    paths = draw(st.lists(st.tuples(ids, st.booleans(), st.integers(0, 2**31)), max_size=6))
    found = []
    for tokens, begins, seed in paths:
        # Eighths, whose sums are exact: the reference adds them in another order.
        gains = np.random.default_rng(seed).integers(0, 24, len(tokens)) / 8
        path = TokenPath(tuple(tokens), tuple(gains.tolist()))
        if begins:
            path = TokenPath((start_id, *path.ids), (0.0, *path.gains))
        found.append(path)
    return found


class Lists:
    """Lists of phrases in both forms; row i has those that `numbers` names, where 0 is the empty one."""

    def __init__(self, lists: list[list[TokenPath]], num_labels: int, start_id: int, weight: float = 1.0) -> None:
        self.graph = build_graph(lists, num_labels, start_id)
        self.tables = BoostTables.of(self.graph, weight, torch.device("cpu"))
        self.references = [PhraseList(paths, weight, start_id) for paths in [[], *lists]]

    def boost(self, numbers: list[list[int]]) -> Boost:
        return Boost(self.tables, self.graph.starts_R[np.array(numbers)])

    def reference(self, numbers: list[int]) -> PhraseLists:
        return PhraseLists([self.references[number] for number in numbers])


def with_phrases(data, frames: Frames, num_labels: int) -> tuple[Frames, list[PhraseLists]]:
    """Frames with phrases, and those of each row."""
    paths = data.draw(st.lists(token_paths(num_labels, num_labels), min_size=2, max_size=2))
    lists, num_lists = Lists(paths, num_labels, num_labels), data.draw(st.integers(1, 2))
    own = st.lists(st.integers(0, 2), min_size=num_lists, max_size=num_lists)
    numbers = [data.draw(own) for _ in frames.lengths_B]
    return replace(frames, boost=lists.boost(numbers)), list(map(lists.reference, numbers))


def table(excluded: list[set[int]], blank_id: int) -> torch.Tensor:
    """The table of tokens that are left out; its first place is empty."""
    table_LV = torch.zeros(len(excluded) + 1, blank_id, dtype=torch.bool)
    for place, tokens in enumerate(excluded, start=1):
        table_LV[place, list(tokens)] = True
    return table_LV


def drawn(data, frames: Frames, blank_id: int) -> tuple[Frames, list[Any], list[set[int]]]:
    """Frames with phrases, a mask, both or neither, and the phrases of each row and the tokens that it leaves out."""
    rows = len(frames.lengths_B)
    phrases, excluded = [None] * rows, [set[int]()] * rows
    if data.draw(st.booleans()):
        tokens = st.sets(st.integers(0, blank_id - 1), max_size=blank_id - 1)
        sets = [set(), *data.draw(st.lists(tokens, min_size=1, max_size=3))]
        places = data.draw(st.lists(st.integers(0, len(sets) - 1), min_size=rows, max_size=rows))
        frames = replace(frames, mask=VocabularyMask(table(sets[1:], blank_id), np.array(places)))
        excluded = [sets[place] for place in places]
    if data.draw(st.booleans()):
        frames, phrases = with_phrases(data, frames, blank_id)
    return frames, phrases, excluded
