"""Rows in the middle of silence: samples, and times that count from the utterance's beginning."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fastscribe.segmentation.silence import centre, with_cuts
from fastscribe.types import Cut, Hypothesis

RATE, FRAME_S, LEAST = 16000, 0.08, 16000


@pytest.mark.parametrize(("length", "before"), [(1, 8000), (4800, 5600), (11201, 2400), (15999, 1)])
def test_samples_lie_in_the_middle(length: int, before: int) -> None:
    samples = np.arange(1, length + 1, dtype=np.int16)
    row_S = np.full(20000, 7, np.int16)
    row_S[:length] = samples
    cuts = centre(row_S, length, LEAST, RATE)
    assert np.array_equal(row_S[before : before + length], samples)
    assert not row_S[:before].any() and not row_S[before + length : LEAST].any()
    assert cuts == (Cut(0.0, -before / RATE), Cut((before + length) / RATE, -(LEAST - before - length) / RATE))


def hypothesis(frames: list[int], durations: list[int], is_timed: bool) -> Hypothesis:
    count = len(frames)
    return Hypothesis(tuple(range(count)), tuple(frames), tuple(durations), (math.log(0.5),) * count, is_timed=is_timed)


def moved(said: Hypothesis) -> list[tuple[int, int]]:
    """Return the times in an utterance of 5 frames (0.4 s) behind 4 frames of silence (0.3 s)."""
    found = with_cuts(said, (Cut(0.0, -0.3), Cut(0.7, -0.3)), FRAME_S)
    assert not found.nbest or found.nbest == (replace(found, nbest=()),)
    return list(zip(found.token_frames, found.token_durations, strict=True))


def test_times_count_from_the_utterance() -> None:
    """Times in the silence become the nearest of the utterance."""
    said = hypothesis([0, 3, 4, 6, 8, 10, 12], [1, 2, 2, 2, 3, 1, 1], is_timed=True)
    expected = [(0, 0), (0, 1), (0, 2), (2, 2), (4, 1), (5, 0), (5, 0)]
    assert moved(said) == moved(replace(said, nbest=(said,))) == expected


def test_tokens_without_times_are_spread_over_the_utterance() -> None:
    assert moved(hypothesis([0, 4, 8], [4, 4, 5], is_timed=False)) == [(0, 1), (1, 2), (3, 2)]
    assert moved(hypothesis([], [], is_timed=False)) == []
