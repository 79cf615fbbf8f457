"""Tokens that are left out, and phrases: every decoder equals its reference, also where rows of a batch have others.

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

from fastscribe.context import vocabulary_mask
from fastscribe.context.language_filter import LanguageFilter
from fastscribe.context.phrases import TokenPath
from fastscribe.context.vocabulary_mask import VocabularyMask, VocabularyMasks
from fastscribe.decode import ctc, label_looping
from fastscribe.decode.batched_beam import BeamDecoder
from fastscribe.decode.cpu_looping import CpuLooping
from fastscribe.decode.greedy import greedy
from fastscribe.decode.label_looping import Network
from fastscribe.decode.transducer_graphs import GraphedDecoder
from fastscribe.families.blocks.ctc import CtcHead
from fastscribe.text.tokenizer import from_characters
from fastscribe.types import AudioInfo, Batch, Frames, Utterance
from tests.context.test_boosting import Lists, drawn_lists
from tests.decode.test_label_looping import (
    DURATIONS,
    NoHostSync,
    random_frames,
    steps,
    tiny_transducer,
)
from tests.decode.test_transducer_graphs import PseudoWhile, chunked
from tests.fakes.cuda import SimulatedCuda
from tests.helpers import greedy_ctc
from tests.helpers.beam_search import beam_search

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TRANSDUCERS = {
    "seed": st.integers(0, 2**31),
    "durations": st.sampled_from(DURATIONS),
    "blank_bias": st.floats(-4, 4),
    "lengths": st.lists(st.integers(0, 12), min_size=1, max_size=4),
    "data": st.data(),
}


def table(excluded: list[set[int]], blank_id: int) -> torch.Tensor:
    """The table of tokens that are left out; its first place is empty."""
    table_LV = torch.zeros(len(excluded) + 1, blank_id, dtype=torch.bool)
    for place, tokens in enumerate(excluded, start=1):
        table_LV[place, list(tokens)] = True
    return table_LV


def drawn(data, frames: Frames, blank_id: int) -> tuple[Frames, list[set[int]], list]:
    """Frames with a mask, phrases, both or neither, and for each row the tokens that it leaves out and its phrases."""
    rows = len(frames.lengths_B)
    excluded, phrases = [set[int]()] * rows, [None] * rows
    if data.draw(st.booleans()):
        tokens = st.sets(st.integers(0, blank_id - 1), max_size=blank_id - 1)
        sets = [set(), *data.draw(st.lists(tokens, min_size=1, max_size=3))]
        places = data.draw(st.lists(st.integers(0, len(sets) - 1), min_size=rows, max_size=rows))
        frames = replace(frames, mask=VocabularyMask(table(sets[1:], blank_id), np.array(places)))
        excluded = [sets[place] for place in places]
    if data.draw(st.booleans()):
        lists, numbers = drawn_lists(data, blank_id, rows)
        frames, phrases = replace(frames, boost=lists.boost(numbers)), list(map(lists.reference, numbers))
    return frames, excluded, phrases


@settings(max_examples=25, deadline=None)
@given(**TRANSDUCERS)
def test_label_looping_equals_greedy(seed, durations, blank_bias, lengths, data) -> None:
    transducer = tiny_transducer(seed, durations, 5, blank_bias)
    frames, excluded, phrases = drawn(data, random_frames(lengths), transducer.blank_id)
    window = data.draw(st.sampled_from((1, 4, 8)))
    if data.draw(st.booleans()):
        decoder = CpuLooping(Network.prepare(transducer), window)
        found = decoder.read(decoder.submit(frames).numpy(), frames)
    else:
        found = label_looping.decode(transducer, frames, window)
    for row, fast in enumerate(found):
        slow = greedy(transducer, frames.frames_BTD[row, : lengths[row]], phrases[row], excluded[row])
        assert steps(fast) == steps(slow)
        torch.testing.assert_close(torch.tensor(fast.logprobs), torch.tensor(slow.logprobs), atol=1e-4, rtol=1e-4)
        assert excluded[row].isdisjoint(fast.token_ids)


@settings(max_examples=15, deadline=None)
@given(**TRANSDUCERS, width=st.integers(1, 5), has_nbest=st.booleans())
def test_beam_equals_reference(seed, durations, blank_bias, lengths, data, width, has_nbest) -> None:
    transducer = tiny_transducer(seed, durations, 5, blank_bias)
    frames, excluded, phrases = drawn(data, random_frames(lengths), transducer.blank_id)
    decoder = BeamDecoder(Network.prepare(transducer), width, has_nbest=has_nbest)
    for row, fast in enumerate(decoder.read(decoder.submit(frames).numpy(), frames)):
        encoded = frames.frames_BTD[row, : lengths[row]]
        slow = beam_search(transducer, encoded, width, phrases=phrases[row], excluded=excluded[row])
        assert steps(fast) == steps(slow)
        assert fast.score == pytest.approx(slow.score, abs=1e-3)
        assert all(excluded[row].isdisjoint(one.token_ids) for one in fast.nbest)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(0, 15), min_size=1, max_size=4), data=st.data())
def test_ctc_equals_reference(seed, lengths, data) -> None:
    torch.manual_seed(seed)
    blank_id = data.draw(st.integers(1, 5))
    head = CtcHead(7, blank_id + 1).requires_grad_(False)
    frames, excluded, phrases = drawn(data, random_frames(lengths), blank_id)
    for row, fast in enumerate(ctc.decode(head, frames, blank_id)):
        logprobs_TV = head(frames.frames_BTD[row, : lengths[row]]).log_softmax(-1)
        lists = phrases[row] or Lists([[]], blank_id, blank_id).reference([1])
        labels = greedy_ctc.boosted_labels(logprobs_TV, lists, blank_id, excluded[row])
        probs = logprobs_TV.exp().gather(1, torch.tensor(labels).long()[:, None])[:, 0] if labels else torch.zeros(0)
        slow = greedy_ctc.collapse(labels, probs.tolist(), blank_id)
        assert steps(fast) == steps(slow)
        assert fast.logprobs == pytest.approx(slow.logprobs, abs=1e-4)
        assert excluded[row].isdisjoint(fast.token_ids)


def test_ctc_parts_equal_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    head = CtcHead(7, 5).requires_grad_(False)
    frames = replace(random_frames([9, 4, 7]), mask=VocabularyMask(table([{0, 1}, {2, 3}], 4), np.array([1, 0, 2])))
    whole = ctc.decode(head, frames, 4)
    monkeypatch.setattr(ctc, "MAX_BOOSTED_LOGITS", 9 * 5)
    assert ctc.decode(head, frames, 4) == whole


def test_a_certain_token_that_is_left_out() -> None:
    """Where all other tokens have a probability of zero in float32, the best of them is taken all the same."""
    head = CtcHead(1, 4).requires_grad_(False)
    head.output.weight[:] = 0
    lists = Lists([[TokenPath((2,), (0.5,))]], 3, 3)
    for bias, expected in (
        ((300.0, 1.0, 2.0, 0.0), (2,)),
        ((300.0, 2.0, 1.0, 5.0), (1,)),
        ((300.0, 2.0, 1.0, 301.0), ()),
    ):
        head.output.bias[:] = torch.tensor(bias)
        frames = replace(random_frames([3]), frames_BTD=torch.zeros(1, 3, 1))
        frames = replace(frames, mask=VocabularyMask(table([{0}], 3), np.array([1])))
        for one in (frames, replace(frames, boost=lists.boost([[1]]))):
            assert ctc.decode(head, one, 3)[0].token_ids == expected


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    durations=st.sampled_from(DURATIONS),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    data=st.data(),
    steps_per_iteration=st.sampled_from((None, 1, 2)),
)
def test_captured_loops_equal_greedy(seed, durations, batches, data, steps_per_iteration) -> None:
    """Batches that leave out others, with other phrases, and without any, one after the other in the same graphs."""
    transducer = tiny_transducer(seed, durations, 5, 1.0)
    make_loop = chunked() if steps_per_iteration is None else partial(PseudoWhile, steps_per_iteration)
    with pytest.MonkeyPatch.context() as monkeypatch:
        SimulatedCuda().install(monkeypatch)
        decoder = GraphedDecoder(Network.prepare(transducer), make_loop)
        submitted = []
        for lengths in batches:
            frames, excluded, phrases = random_frames(lengths), [set[int]()] * len(lengths), [None] * len(lengths)
            if data.draw(st.integers(0, 3)):
                frames, excluded, phrases = drawn(data, frames, transducer.blank_id)
            submitted.append((frames, excluded, phrases, decoder.submit(frames)))
        for frames, excluded, phrases, packed in submitted:
            for row, fast in enumerate(decoder.read(packed.numpy(), frames)):
                encoded = frames.frames_BTD[row, : frames.lengths_B[row]]
                assert steps(fast) == steps(greedy(transducer, encoded, phrases[row], excluded[row]))
        decoder.close()


def test_one_graph_for_all_languages_of_a_table() -> None:
    """Batches in other languages need no new graph; a batch without a language has one of its own."""
    transducer = tiny_transducer(11, (), 1, 0.0)
    blank_id, frames = transducer.blank_id, random_frames([9, 12])
    excluded = [set(), {0}, set(range(blank_id)) - {0}]
    table_LV = table(excluded[1:], blank_id)
    with pytest.MonkeyPatch.context() as monkeypatch:
        simulated = SimulatedCuda().install(monkeypatch)
        decoder = GraphedDecoder(Network.prepare(transducer), chunked())
        found = set()
        for places in ([1, 1], [2, 0], [0, 1], [2, 2], None):
            masked = frames if places is None else replace(frames, mask=VocabularyMask(table_LV, np.array(places)))
            for row, fast in enumerate(decoder.read(decoder.submit(masked).numpy(), masked)):
                encoded, own = frames.frames_BTD[row, : frames.lengths_B[row]], excluded[places[row] if places else 0]
                assert steps(fast) == steps(greedy(transducer, encoded, excluded=own))
                found.add(fast.token_ids)
        assert len(simulated.captured) == 2 and len(found) > 2
        decoder.close()


@pytest.mark.parametrize("durations", [(), (0, 1, 2, 3, 4)])
def test_steps_do_not_sync(durations) -> None:
    transducer = tiny_transducer(1, durations, 10, 0.0)
    network = Network.prepare(transducer, 8)
    mask = VocabularyMask(table([{0}], transducer.blank_id), np.array([1, 0, 1]))
    lists = Lists([[TokenPath((0, 0), (1.0, 1.0))]], transducer.blank_id, transducer.blank_id)
    frames = replace(random_frames([5, 9, 0]), mask=mask, boost=lists.boost([[1], [0], [1]]))
    state = label_looping.LoopState.allocate(network, 4, label_looping.Slots.allocate(network, 40), 1)
    before = {name: value.data_ptr() for name, value in vars(state).items() if isinstance(value, torch.Tensor)}
    with NoHostSync() as seen:
        label_looping.load_batch_(network, state, frames)
        seen.names.clear()
        label_looping.step(network, state, lists.tables, mask.excluded_LV)
        assert not {"arange", "tensor", "zeros", "ones", "full", "lift_fresh"} & set(seen.names)
    assert before == {name: value.data_ptr() for name, value in vars(state).items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_tokens_that_are_not_chosen_change_no_bit(durations) -> None:
    """Texts, times and probabilities are those without a mask if the mask leaves out nothing of them."""
    transducer = tiny_transducer(11, durations, 5, 0.0)
    frames, blank_id = random_frames([9, 12, 3, 1]), transducer.blank_id
    looping = label_looping.decode(transducer, frames)
    unused = [set(range(blank_id)).difference(one.token_ids) for one in looping]
    assert any(unused) and any(one.token_ids for one in looping)
    masked = replace(frames, mask=VocabularyMask(table(unused, blank_id), np.array([1, 2, 3, 4])))
    assert label_looping.decode(transducer, masked) == looping
    torch.manual_seed(0)
    head = CtcHead(7, blank_id + 1).requires_grad_(False)
    nothing = replace(frames, mask=VocabularyMask(table([set()], blank_id), np.array([0, 1, 1, 0])))
    assert ctc.decode(head, nothing, blank_id) == ctc.decode(head, frames, blank_id)
    for width in (1, 4):
        decoder = BeamDecoder(Network.prepare(transducer), width, has_nbest=True)
        found = [decoder.read(decoder.submit(one).numpy(), one) for one in (frames, nothing)]
        assert found[0] == found[1]


def test_languages_have_places_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table grows; earlier masks and places stay valid. Rows without a language leave out nothing."""
    monkeypatch.setattr(vocabulary_mask, "_FIRST_PLACES", 4)
    letters = from_characters(["a", "б", "č", "ε", "’", "<unk>"])
    masks = VocabularyMasks(LanguageFilter(letters, ("en", "ru"), None), 6, CPU)

    def masked(*tags: str | None) -> VocabularyMask | None:
        utterances = tuple(Utterance(AudioInfo("x", "x", 1, 1, 1, language=tag), 0, 1) for tag in tags)
        return masks.mask(Batch(utterances, np.zeros((0, 0), np.float32), np.zeros(len(tags), np.int64)))

    assert masked(None, None) is None
    first = masked("ru", None, "en")
    same = masked("ru", *(f"en-{number:04}" for number in range(99)))
    assert first is not None and same is not None and same.excluded_LV is first.excluded_LV
    tags = ["cs", "el", "sr", "pl", "de", "fr", "it", "es", "pt", "nl"]
    later = masked("ru", *tags)
    assert later is not None and len(later.excluded_LV) == 8 and masked("en").excluded_LV is later.excluded_LV
    kept = {"ru": "б’<unk>", "cs": "ač’<unk>", "el": "ε’<unk>", "sr": "aбč’<unk>"}
    for mask, rows in ((first, ("ru", None, "en")), (later, ("ru", *tags))):
        for tag, excluded_V in zip(rows, mask.excluded(), strict=True):
            written = "".join(piece for piece, out in zip(letters.pieces, excluded_V.tolist(), strict=True) if not out)
            assert written == (kept.get(tag, "a’<unk>") if tag else "aбčε’<unk>")
