"""Boosting of phrases: tensors and decoders equal their references, and an empty list changes nothing.

No GPU takes part: captured loops run on a simulated CUDA device (tests/fakes/cuda.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.context.boosting import Boost, BoostTables
from fastscribe.context.context_graph import build_graph, join
from fastscribe.context.phrases import TokenPath
from fastscribe.decode import ctc, label_looping
from fastscribe.decode.aed import AedDecoder
from fastscribe.decode.aed_graphs import GraphedAed
from fastscribe.decode.batched_beam import BeamDecoder
from fastscribe.decode.greedy import greedy
from fastscribe.decode.label_looping import Network
from fastscribe.decode.transducer_graphs import GraphedDecoder
from fastscribe.families.blocks.ctc import CtcHead
from tests.decode.test_aed import CONFIGS, LABELS, PROMPT, shrink, tiny_decoder
from tests.decode.test_aed import random_frames as aed_frames
from tests.decode.test_label_looping import (
    random_frames,
    steps,
    tiny_transducer,
)
from tests.decode.test_transducer_graphs import PseudoWhile, chunked
from tests.fakes.cuda import SimulatedCuda
from tests.helpers import greedy_aed
from tests.helpers.phrase_lists import PhraseList, PhraseLists

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


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
        self.tables = BoostTables.of(self.graph, weight, CPU)
        self.references = [PhraseList(paths, weight, start_id) for paths in [[], *lists]]

    def boost(self, numbers: list[list[int]]) -> Boost:
        return Boost(self.tables, self.graph.starts_R[np.array(numbers)])

    def reference(self, numbers: list[int]) -> PhraseLists:
        return PhraseLists([self.references[number] for number in numbers])


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


def drawn_lists(data, num_labels: int, rows: int) -> tuple[Lists, list[list[int]]]:
    lists = Lists(
        data.draw(st.lists(token_paths(num_labels, num_labels), min_size=2, max_size=2)), num_labels, num_labels
    )
    num_lists = data.draw(st.integers(1, 2))
    return lists, [data.draw(st.lists(st.integers(0, 2), min_size=num_lists, max_size=num_lists)) for _ in range(rows)]


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
            for row, fast in enumerate(decoder.read(decoder.submit(boosted).numpy(), boosted)):
                encoded = frames.frames_BTD[row, : frames.lengths_B[row]]
                assert steps(fast) == steps(greedy(transducer, encoded, lists.reference([1])))
            num_captured.append(len(simulated.captured))
        assert num_captured == [1, 2, 2, 2, 2]
        decoder.close()


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    config=st.sampled_from(CONFIGS),
    batches=st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=5), min_size=1, max_size=3),
    steps_per_iteration=st.sampled_from((0, None, 1, 2)),
    data=st.data(),
)
def test_attention_decoders_equal_greedy(seed, config, batches, steps_per_iteration, data) -> None:
    """Without graphs, and captured: rows are dropped and move to other states. Tokens without text are never boosted."""
    model = tiny_decoder(config, seed)
    prompt = replace(PROMPT, text_ids=frozenset(range(10, LABELS)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        SimulatedCuda().install(monkeypatch)
        shrink(monkeypatch, 4, _MIN_ROWS=1, _MIN_FRAMES=4)
        make_loop = chunked() if steps_per_iteration is None else partial(PseudoWhile, steps_per_iteration)
        decoder = GraphedAed(model, prompt, make_loop) if steps_per_iteration != 0 else AedDecoder(model, prompt)
        for lengths in batches:
            torch.manual_seed(seed)
            frames, phrases = aed_frames(lengths), [None] * len(lengths)
            if data.draw(st.integers(0, 3)):
                lists, numbers = drawn_lists(data, LABELS, len(lengths))
                frames, phrases = replace(frames, boost=lists.boost(numbers)), list(map(lists.reference, numbers))
            for row, fast in enumerate(decoder.read(decoder.submit(frames).numpy(), frames)):
                encoded = frames.frames_BTD[row, : lengths[row]]
                slow = greedy_aed.greedy(model, prompt, encoded, phrases[row], guess=fast.token_ids)
                assert fast.token_ids == slow.token_ids
                assert fast.logprobs == pytest.approx(slow.logprobs, abs=1e-4)
        decoder.close()


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_empty_list_changes_no_bit(durations) -> None:
    transducer = tiny_transducer(11, durations, 5, 0.0)
    frames = random_frames([9, 12, 3])
    empty = replace(frames, boost=Lists([[]], transducer.blank_id, transducer.blank_id).boost([[1], [0], [1]]))
    torch.manual_seed(0)
    head = CtcHead(7, 5).requires_grad_(False)
    looping = label_looping.decode(transducer, frames)
    assert any(one.token_ids for one in looping)
    assert label_looping.decode(transducer, empty) == looping
    no_ctc_phrases = replace(frames, boost=Lists([[]], 4, 4).boost([[0], [1], [1]]))
    assert ctc.decode(head, no_ctc_phrases, 4) == ctc.decode(head, frames, 4)
    for width in (1, 4):
        decoder = BeamDecoder(Network.prepare(transducer), width, has_nbest=True)
        found = [decoder.read(decoder.submit(one).numpy(), one) for one in (frames, empty)]
        assert found[0] == found[1]
