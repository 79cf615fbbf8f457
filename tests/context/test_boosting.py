"""Boosting of phrases: tensors and decoders equal their references, and an empty list changes nothing.

No GPU takes part: captured loops run on a simulated CUDA device (tests/fakes/cuda.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.context.boosting import BoostTables
from fastscribe.context.context_graph import build_graph, join
from fastscribe.context.phrases import TokenPath
from fastscribe.decode.label_looping import Network
from fastscribe.decode.transducer_graphs import GraphedDecoder
from tests.decode.test_label_looping import (
    assert_greedy,
    random_frames,
    run,
    tiny_transducer,
)
from tests.decode.test_transducer_graphs import chunked
from tests.fakes.cuda import SimulatedCuda
from tests.helpers.drawn_rows import Lists, token_paths

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


@settings(max_examples=30, deadline=None)
@given(data=st.data(), num_labels=st.integers(1, 4), first_is_space=st.booleans(), is_joined=st.booleans())
def test_tables_equal_reference(data, num_labels, first_is_space, is_joined) -> None:
    start_id = 0 if first_is_space else num_labels
    given_lists = data.draw(st.lists(token_paths(num_labels, start_id), min_size=1, max_size=3))
    lists = Lists(given_lists, num_labels, start_id, 0.5)
    if is_joined:  # the same lists in three automata, each with an empty list too
        parts = [
            build_graph(part, num_labels, start_id) for part in (given_lists[:1], given_lists[1:2], given_lists[2:])
        ]
        lists.tables, starts = BoostTables.of(join(parts), 0.5, CPU), join(parts).starts_R
    else:
        starts = lists.graph.starts_R
    for number, reference in enumerate(lists.references):
        state, states_1K = reference.start, torch.tensor([[starts[number]]])
        for token in data.draw(st.lists(st.integers(0, num_labels - 1), max_size=12)):
            next_1KV = lists.tables.following(states_1K)
            labels = range(num_labels)
            scores = lists.tables.scores(states_1K, next_1KV)
            assert scores[0].tolist() == [reference.score(state, label) for label in labels]
            assert float(lists.tables.at_risk(states_1K)) == reference.at_risk(state)
            state, states_1K = reference.after(state, token), lists.tables.advance(next_1KV, torch.tensor([token]))


def test_captured_tables_grow_to_the_largest() -> None:
    """After the largest lists, smaller ones need no new graph, and leave nothing of the larger ones to be found."""
    transducer = tiny_transducer(11, (), 1, 0.0)
    num_labels, frames = transducer.blank_id, random_frames([9, 12])
    long = TokenPath((0,) * 9, (3.0,) * 9)
    small, large = ([[TokenPath((num_labels - 1,), (50.0,))]], [[long], [TokenPath((1, 1, 0), (5.0,) * 3)]])
    with pytest.MonkeyPatch.context() as monkeypatch:
        simulated = SimulatedCuda().install(monkeypatch)
        decoder = GraphedDecoder(Network.prepare(transducer), chunked())
        num_captured = []
        for paths in (small, large, small, large[1:], small):
            lists = Lists(paths, num_labels, num_labels)
            boosted = replace(frames, boost=lists.boost([[1], [1]]))
            assert_greedy(transducer, frames, run(decoder, boosted), [lists.reference([1])] * 2)
            num_captured.append(len(simulated.captured))
        assert num_captured == [1, 2, 2, 2, 2]
        decoder.close()
