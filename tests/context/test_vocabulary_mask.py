"""Tokens that are left out, and phrases: every decoder equals its reference, also where rows of a batch have others.

No GPU takes part: captured loops run on a simulated CUDA device (tests/fakes/cuda.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fastscribe.context import vocabulary_mask
from fastscribe.context.language_filter import LanguageFilter
from fastscribe.context.phrases import TokenPath
from fastscribe.context.vocabulary_mask import VocabularyMask, VocabularyMasks
from fastscribe.decode import ctc, label_looping
from fastscribe.decode.batched_beam import BeamDecoder
from fastscribe.decode.label_looping import Network
from fastscribe.decode.transducer_graphs import GraphedDecoder
from fastscribe.families.blocks.heads import CtcHead
from fastscribe.text.tokenizer import from_characters
from fastscribe.types import AudioInfo, Batch, Utterance
from tests.decode.test_label_looping import (
    NoHostSync,
    assert_greedy,
    random_frames,
    run,
    tiny_transducer,
)
from tests.decode.test_transducer_graphs import chunked
from tests.fakes.cuda import SimulatedCuda
from tests.helpers.drawn_rows import Lists, table

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


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
            hypotheses, own = run(decoder, masked), [excluded[place] for place in places or [0, 0]]
            assert_greedy(transducer, frames, hypotheses, excluded=own)
            found.update(one.token_ids for one in hypotheses)
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
def test_tokens_that_are_not_chosen_and_empty_lists_change_no_bit(durations) -> None:
    """Texts, times and probabilities are those without a mask if the mask leaves out nothing of them."""
    transducer = tiny_transducer(11, durations, 5, 0.0)
    frames, blank_id = random_frames([9, 12, 3, 1]), transducer.blank_id
    looping = label_looping.decode(transducer, frames)
    unused = [set(range(blank_id)).difference(one.token_ids) for one in looping]
    assert any(unused) and any(one.token_ids for one in looping)
    masked = replace(frames, mask=VocabularyMask(table(unused, blank_id), np.array([1, 2, 3, 4])))
    nothing = replace(frames, mask=VocabularyMask(table([set()], blank_id), np.array([0, 1, 1, 0])))
    empty = replace(frames, boost=Lists([[]], blank_id, blank_id).boost([[1], [0], [1], [1]]))
    assert label_looping.decode(transducer, masked) == label_looping.decode(transducer, empty) == looping
    torch.manual_seed(0)
    head = CtcHead(7, blank_id + 1).requires_grad_(False)
    for one in (nothing, empty):
        assert ctc.decode(head, one, blank_id) == ctc.decode(head, frames, blank_id)
        for width in (1, 4):
            decoder = BeamDecoder(Network.prepare(transducer), width, has_nbest=True)
            assert run(decoder, one) == run(decoder, frames)


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
