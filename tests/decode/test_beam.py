"""Beam search: the batched form equals the definition of right, and that equals greedy decoding and plain sums."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.decode import batched_beam
from fastscribe.decode.batched_beam import BeamDecoder
from fastscribe.decode.beam import beam_search
from fastscribe.decode.greedy import greedy
from fastscribe.decode.label_looping import Network
from fastscribe.model.transducer import Transducer
from fastscribe.text.language_model import Fusion, LanguageModel, Tables, expanded
from fastscribe.training.ngrams import counted
from fastscribe.types import Frames, Hypothesis
from tests.decode.test_label_looping import DURATIONS, one_thread, random_frames, steps, tiny_transducer  # noqa: F401

MODELS = {
    "seed": st.integers(0, 2**31),
    "durations": st.sampled_from(DURATIONS),
    "max_symbols": st.integers(1, 10),
    "blank_bias": st.floats(-4, 4),
}


@settings(max_examples=100, deadline=None)
@given(**MODELS, num_frames=st.integers(0, 12))
def test_a_width_of_one_is_greedy(seed, durations, max_symbols, blank_bias, num_frames) -> None:
    transducer = tiny_transducer(seed, durations, max_symbols, blank_bias)
    frames_TD = torch.randn(num_frames, 7)
    assert steps(beam_search(transducer, frames_TD, 1)) == steps(greedy(transducer, frames_TD))


@settings(max_examples=100, deadline=None)
@given(**MODELS, lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4), width=st.integers(1, 6))
def test_a_batch_is_searched_as_its_rows_are(seed, durations, max_symbols, blank_bias, lengths, width) -> None:
    transducer = tiny_transducer(seed, durations, max_symbols, blank_bias)
    frames = random_frames(lengths)
    for row, fast in enumerate(decoded(transducer, frames, width)):
        slow = beam_search(transducer, frames.frames_BTD[row, : lengths[row]], width)
        assert steps(fast) == steps(slow)
        torch.testing.assert_close(torch.tensor(fast.logprobs), torch.tensor(slow.logprobs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("durations", DURATIONS)
def test_without_a_limit_of_labels_a_frame(durations: tuple[int, ...]) -> None:
    """The guard alone ends a frame; few labels here, since the definition of right is slow."""
    transducer = tiny_transducer(5, durations, None, 8.0)
    frames = random_frames([7, 3])
    for row, fast in enumerate(decoded(transducer, frames, 3)):
        assert steps(fast) == steps(beam_search(transducer, frames.frames_BTD[row, : frames.lengths_B[row]], 3))


@pytest.mark.parametrize("durations", DURATIONS)
def test_numbers_that_are_none_stay_in_their_row(durations: tuple[int, ...]) -> None:
    """A recording that drives a model to NaN ends, and says the same beside any other."""
    transducer = tiny_transducer(3, durations, 5, 1.0)
    frames = random_frames([12, 9])
    frames.frames_BTD[0, 6] = torch.nan
    alone = Frames(frames.frames_BTD[:1], frames.lengths_B[:1])
    beside, good = decoded(transducer, frames, 4)
    assert steps(beside) == steps(decoded(transducer, alone, 4)[0])
    assert steps(good) == steps(beam_search(transducer, frames.frames_BTD[1, :9], 4))


def test_rows_that_do_not_fit_at_once_are_searched_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    transducer = tiny_transducer(1, (0, 1, 2), 5, 1.0)
    frames = random_frames([9, 0, 4, 7, 1])
    expected = [steps(found) for found in decoded(transducer, frames, 3)]
    monkeypatch.setattr(batched_beam, "_MAX_NUMBERS", 2 * 3 * 9)
    assert [steps(found) for found in decoded(transducer, frames, 3)] == expected


@settings(max_examples=60, deadline=None)
@given(**MODELS, lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4), width=st.integers(1, 6))
def test_a_language_model_is_heeded_alike(seed, durations, max_symbols, blank_bias, lengths, width) -> None:
    transducer = tiny_transducer(seed, durations, max_symbols, blank_bias)
    texts = torch.randint(0, transducer.blank_id, (40, 6)).tolist()
    ngrams = counted(texts, transducer.blank_id, 3, 0.5)
    model = expanded(LanguageModel(ngrams, Fusion(0.7, 0.4, width)))
    frames = random_frames(lengths)
    for row, fast in enumerate(decoded(transducer, frames, width, model)):
        slow = beam_search(transducer, frames.frames_BTD[row, : lengths[row]], width, model)
        assert steps(fast) == steps(slow)
        torch.testing.assert_close(torch.tensor(fast.logprobs), torch.tensor(slow.logprobs), atol=1e-4, rtol=1e-4)


def decoded(
    transducer: Transducer, frames: Frames, width: int, language_model: Tables | None = None
) -> list[Hypothesis]:
    decoder = BeamDecoder(Network.prepare(transducer), width, language_model)
    return decoder.read(decoder.submit(frames).numpy(), frames)


@pytest.mark.parametrize("seed", [seed for seed in range(60) if tiny_transducer(seed, (), 9, 1.0).blank_id <= 2])
def test_a_wide_beam_finds_the_likeliest_text(seed: int) -> None:
    """Of an RNN-T: the text whose ways add up to most, as far as ways of up to five labels a frame tell."""
    transducer = tiny_transducer(seed, (), 9, 1.0)
    frames_TD = torch.randn(2, 7)
    probabilities = all_texts(transducer, frames_TD)
    untried = 1.0 - sum(probabilities.values())
    assert -1e-4 < untried < 1.0
    found = probabilities.get(beam_search(transducer, frames_TD, 200).token_ids, 0.0)
    assert found + untried >= max(probabilities.values()) - 1e-4


@torch.inference_mode()
def all_texts(transducer: Transducer, frames_TD: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Each text's probability, of all ways to it with up to five labels a frame."""
    encoded_TJ = transducer.joint.encoder(frames_TD)
    labels = range(transducer.blank_id)
    totals: dict[tuple[int, ...], float] = defaultdict(float)
    first = transducer.predictor.step(torch.tensor([transducer.blank_id]), transducer.predictor.initial_state(1))
    a_frames_labels = [text for count in range(6) for text in itertools.product(labels, repeat=count)]

    def go_on(at: int, before: tuple[int, ...], logprob: float, predicted: tuple[torch.Tensor, torch.Tensor]) -> None:
        if at == len(encoded_TJ):
            totals[before] += math.exp(logprob)
            return
        for text in a_frames_labels:
            total, (output, state) = logprob, predicted
            for label in (*text, transducer.blank_id):
                logits = transducer.joint(encoded_TJ[at], transducer.joint.predictor(output)[0])
                total += float(torch.log_softmax(logits, 0)[label])
                if label != transducer.blank_id:
                    output, state = transducer.predictor.step(torch.tensor([label]), state)
            go_on(at + 1, before + text, total, (output, state))

    go_on(0, (), 0.0, first)
    return totals
