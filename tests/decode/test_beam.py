"""Beam search: batches equal the reference, and the reference equals greedy decoding and brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.context.language_model import Fusion, LanguageModel, LazyTables, Tables
from fastscribe.decode import batched_beam
from fastscribe.decode.batched_beam import BeamDecoder
from fastscribe.decode.label_looping import Network
from fastscribe.families.blocks.heads import FastPredictor, Transducer
from fastscribe.types import Frames, Hypothesis
from scripts.default_model.ngrams import counted
from tests.decode.test_label_looping import DURATIONS, random_frames, run, steps, tiny_transducer
from tests.helpers.beam_search import beam_search
from tests.helpers.drawn_rows import drawn

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = {
    "seed": st.integers(0, 2**31),
    "durations": st.sampled_from(DURATIONS),
    "max_symbols": st.integers(1, 10),
    "blank_bias": st.floats(-4, 4),
}


@settings(max_examples=30, deadline=None)
@given(
    **MODELS,
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    width=st.integers(1, 6),
    fused=st.booleans(),
    has_nbest=st.booleans(),
    data=st.data(),
)
def test_batch_equals_reference(
    seed, durations, max_symbols, blank_bias, lengths, width, fused, has_nbest, data
) -> None:
    """With a language model, phrases and tokens that are left out, and without.

    Of n-best lists, all hypotheses of the last beam are compared, by score.
    """
    transducer = tiny_transducer(seed, durations, max_symbols, blank_bias)
    model = random_language_model(transducer) if fused else None
    frames, phrases, excluded = drawn(data, random_frames(lengths), transducer.blank_id)
    has_nbest = has_nbest and width > 1
    for row, fast in enumerate(decoded(transducer, frames, width, model, has_nbest)):
        encoded_TD = frames.frames_BTD[row, : lengths[row]]
        slow = beam_search(transducer, encoded_TD, width, model, phrases[row], excluded[row])
        if not has_nbest:
            assert steps(fast) == steps(slow)
            torch.testing.assert_close(torch.tensor(fast.logprobs), torch.tensor(slow.logprobs), atol=1e-4, rtol=1e-4)
            continue
        assert steps(fast) == steps(fast.nbest[0]) and fast.score == fast.nbest[0].score
        scores, by_text = [one.score for one in fast.nbest], {one.token_ids: one for one in slow.nbest}
        assert scores == sorted(scores, reverse=True) and 1 <= len(scores) <= width
        assert sorted(one.token_ids for one in fast.nbest) == sorted(by_text)  # near-ties may swap
        assert all(steps(one) == steps(by_text[one.token_ids]) for one in fast.nbest)
        torch.testing.assert_close(
            torch.tensor(scores), torch.tensor([one.score for one in slow.nbest]), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("durations", DURATIONS)
def test_no_max_symbols(durations: tuple[int, ...]) -> None:
    """Only LABELS_PER_FRAME_GUARD ends a frame. Few labels, because the reference is slow."""
    transducer = tiny_transducer(5, durations, None, 8.0)
    frames = random_frames([7, 3])
    for row, fast in enumerate(decoded(transducer, frames, 3)):
        assert steps(fast) == steps(beam_search(transducer, frames.frames_BTD[row, : frames.lengths_B[row]], 3))


@pytest.mark.parametrize("durations", DURATIONS)
def test_nan_stays_in_its_row(durations: tuple[int, ...]) -> None:
    """A row with NaN ends, and does not depend on its neighbours."""
    transducer = tiny_transducer(3, durations, 5, 1.0)
    frames = random_frames([12, 9])
    frames.frames_BTD[0, 6] = torch.nan
    alone = Frames(frames.frames_BTD[:1], frames.lengths_B[:1])
    beside, good = decoded(transducer, frames, 4)
    assert steps(beside) == steps(decoded(transducer, alone, 4)[0])
    assert steps(good) == steps(beam_search(transducer, frames.frames_BTD[1, :9], 4))


def test_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    transducer = tiny_transducer(1, (0, 1, 2), 5, 1.0)
    frames = random_frames([9, 0, 4, 7, 1])
    expected = [steps(found) for found in decoded(transducer, frames, 3)]
    monkeypatch.setattr(batched_beam, "_MAX_ELEMENTS", 2 * 3 * 9)
    assert [steps(found) for found in decoded(transducer, frames, 3)] == expected


def test_the_predictor_sees_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of rows has code and memory of its own in oneDNN, which a long run does not give back."""
    sizes, step = set[int](), FastPredictor.step

    def counted_step(self, labels_B, state_2LBH):
        sizes.add(len(labels_B))
        return step(self, labels_B, state_2LBH)

    monkeypatch.setattr(FastPredictor, "step", counted_step)
    batches = [9, 0, 4, 7, 1], [5], [12, 30, 31, 29, 28, 27, 31, 8]
    for lengths in batches:
        decoded(tiny_transducer(1, (0, 1, 2), 5, 1.0), random_frames(lengths), 6)
    found = sizes - {6 * len(lengths) for lengths in batches}  # but for the first step, of all beams
    assert {32, 64} < found <= {1, 2, 4, 8, 16, 32, 64}  # fewer than 32 where few beams are left


def random_language_model(transducer: Transducer) -> Tables:
    texts = torch.randint(0, transducer.blank_id, (40, 6)).tolist()
    return LazyTables(LanguageModel(counted(texts, transducer.blank_id, 3, 0.5), Fusion(0.7, 0.4, 1))).filled()


def decoded(
    transducer: Transducer, frames: Frames, width: int, language_model: Tables | None = None, has_nbest: bool = False
) -> list[Hypothesis]:
    return run(BeamDecoder(Network.prepare(transducer), width, language_model, has_nbest), frames)
