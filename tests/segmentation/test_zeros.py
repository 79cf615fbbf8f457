"""Long digital silence within an utterance is given to no model, and times are those of the recording."""

from __future__ import annotations

import numpy as np
import pytest

from fastscribe.segmentation.silence import cut_out, find_zeros, with_cuts
from fastscribe.types import Cut, Hypothesis

RATE = 16_000


def sound(seconds: float, rate: int = RATE) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 9000, round(seconds * rate)).astype(np.int16)


def zeros(seconds: float, rate: int = RATE) -> np.ndarray:
    return np.zeros(round(seconds * rate), np.int16)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 44_100, 48_000])
def test_cuts(rate: int) -> None:
    parts = [sound(1.3, rate), zeros(5.0, rate), sound(2.0, rate), zeros(1.9, rate), sound(0.7, rate), zeros(3.0, rate)]
    samples = np.concatenate(parts)
    spans = find_zeros(samples, rate)
    (first, last), at_end = spans
    assert first == pytest.approx(1.8 * rate, abs=0.03 * rate)  # half a second after the sound
    assert last - first == 26 * 0.16 * rate and 6.06 * rate - 2 < last + 0.16 * rate  # not a unit more
    assert at_end[0] == pytest.approx(11.4 * rate, abs=0.03 * rate) and len(samples) - at_end[1] < 0.16 * rate + 1
    assert not samples[first:last].any() and not samples[slice(*at_end)].any()
    kept = samples.copy()
    cuts = cut_out(kept, spans, rate)
    removed = sum(end - begin for begin, end in spans)
    assert np.array_equal(kept[: len(samples) - removed], np.delete(samples, np.r_[tuple(slice(*s) for s in spans)]))
    assert not kept[len(samples) - removed :].any()
    assert cuts[0] == Cut(first / rate, (last - first) / rate) and cuts[1].duration_s == pytest.approx(2.4)


def test_what_stays() -> None:
    assert find_zeros(np.concatenate([sound(1), zeros(1.9), sound(1), zeros(1.9)]), RATE) == []
    assert find_zeros(np.concatenate([zeros(1.9), sound(1)]), RATE) == []
    assert find_zeros(zeros(1.0), RATE) == find_zeros(zeros(0.0), RATE) == []
    nearly = np.concatenate([sound(1), zeros(4), sound(1)])
    nearly[1 * RATE :: RATE // 4] = 1  # dither
    assert find_zeros(nearly, RATE) == []
    assert find_zeros(np.concatenate([sound(1, 11_001), zeros(5, 11_001)]), 11_001) == []  # 0.16 s is no whole number


def test_channels_that_cancel_out() -> None:
    noise = sound(3)
    stereo = np.stack([np.concatenate([sound(1), noise, sound(1)])] * 2, axis=1)
    assert find_zeros(stereo, RATE) == []
    stereo[RATE:-RATE, 1] = -noise
    for samples in (stereo, (stereo / 32768).astype(np.float32)):
        assert find_zeros(samples, RATE) == find_zeros(np.concatenate([sound(1), zeros(3), sound(1)]), RATE) != []


def test_hypothesis_in_the_whole_utterance() -> None:
    cuts = (Cut(0.8, 1.6), Cut(2.4, 0.16))
    emissions = np.arange(40.0, dtype=np.float32)[:, None]
    inner = Hypothesis((5, 6), (9, 29), (1, 1), (0.0, 0.0))
    hypothesis = Hypothesis((1, 2, 3, 4), (0, 9, 10, 30), (1,) * 4, (0.0,) * 4, nbest=(inner,), emissions_TV=emissions)
    moved = with_cuts(hypothesis, cuts, 0.08)
    assert moved.token_frames == (0, 9, 30, 52) and moved.token_ids == hypothesis.token_ids
    assert moved.nbest[0].token_frames == (9, 49)
    assert moved.emissions_TV is not None and moved.emissions_TV[:, 0].tolist() == [
        *range(10), *[10.0] * 20, *range(10, 30), *[30.0] * 2, *range(30, 40)
    ]  # fmt: skip
    assert with_cuts(hypothesis, (), 0.08) is hypothesis
    at_end = with_cuts(hypothesis, (Cut(3.2, 1.6),), 0.08)  # after the last frame
    assert at_end.token_frames == hypothesis.token_frames and len(at_end.emissions_TV) == 60


def test_punctuation_stays_with_its_word() -> None:
    """A model may write it just before the next word; any other token is moved, and so is what follows it."""
    spoken = Hypothesis((1, 2, 1, 2), (5, 16, 20, 24), (1,) * 4, (0.0,) * 4)
    for marks, frames in (((2,), (5, 16, 40, 44)), ((), (5, 36, 40, 44))):
        assert with_cuts(spoken, (Cut(0.8, 1.6),), 0.08, marks).token_frames == frames
