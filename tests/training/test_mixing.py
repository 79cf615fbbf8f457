"""The examples of an epoch: each manifest as often, or with the share, that the recipe says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.errors import UsageError
from fastscribe.training.corpus import Example, Examples, ManifestPart
from fastscribe.training.example_choice import EpochDraw, epoch_repeats


def corpus(*parts: ManifestPart, durations_s: list[list[float]]) -> Examples:
    """Examples of several manifests, with the durations of each."""
    rows = ((number, seconds) for number, of_part in enumerate(durations_s) for seconds in of_part)
    return Examples.of((Example("a.wav", "b", seconds, part=number) for number, seconds in rows), parts)


def test_whole_repeats_keep_their_order() -> None:
    examples = corpus(ManifestPart("a"), ManifestPart("b", 2.0), durations_s=[[1.0, 2.0], [3.0, 1.0]])
    for epoch in range(3):
        assert EpochDraw(examples, 7)(epoch).tolist() == [0, 1, 2, 2, 3, 3]


@given(
    st.sampled_from([0.1, 0.25, 0.5, 1.5, 2.75]),
    st.lists(st.floats(0.3, 30), min_size=8, max_size=40),
    st.integers(0, 9),
)
def test_fractions_go_round(repeat: float, durations_s: list[float], seed: int) -> None:
    """After as many epochs as make whole rounds, each example has come equally often; and never twice before another once."""
    draw = EpochDraw(corpus(ManifestPart("a", repeat), durations_s=[durations_s]), seed)
    counts = np.zeros(len(durations_s), int)
    for epoch in range(20):
        drawn = draw(epoch)
        assert (np.diff(drawn) >= 0).all()
        seconds = np.array(durations_s)[drawn].sum()
        assert abs(seconds - repeat * sum(durations_s)) <= 2 * max(durations_s)
        counts += np.bincount(drawn, minlength=len(counts))
        assert counts.max() - counts.min() <= 2
    assert (counts == round(20 * repeat)).all()


def test_other_examples_each_epoch() -> None:
    """They depend on seed and epoch alone, so ranks and a resumed run draw the same."""
    examples = corpus(ManifestPart("a", 0.5), durations_s=[[1.0] * 100])
    draw = EpochDraw(examples, 0)
    first, second, third = (set(draw(epoch).tolist()) for epoch in range(3))
    assert len(first) == len(second) == 50 and first | second == set(range(100)) and third not in (first, second)
    assert set(EpochDraw(examples, 0)(2).tolist()) == third != set(EpochDraw(examples, 1)(2).tolist())


@pytest.mark.parametrize("share", [0.01, 0.2, 0.9])
def test_share_of_the_audio(share: float) -> None:
    """Of an epoch whose length the other manifests decide; a small manifest comes several times, a large one in part."""
    parts = (ManifestPart("new"), ManifestPart("old", share=share), ManifestPart("more", 2.0))
    durations_s = [[2.0] * 300, [float(seconds) for seconds in np.linspace(1, 9, 200)], [1.0] * 50]
    examples = corpus(*parts, durations_s=durations_s)
    for epoch in range(3):
        drawn = EpochDraw(examples, 0)(epoch)
        seconds = np.bincount(examples.part_of[drawn], weights=examples.durations_s[drawn])
        assert seconds[0] == 600 and seconds[2] == 100
        assert seconds[1] / seconds.sum() == pytest.approx(share, abs=0.015)
    assert not np.array_equal(EpochDraw(examples, 0)(0), EpochDraw(examples, 0)(1))


def test_shares_that_leave_nothing() -> None:
    both = (ManifestPart("a", share=0.5), ManifestPart("b", share=0.5))
    for parts, durations_s in ((both, [1.0, 1.0]), (both[:1], [1.0]), ((*both, ManifestPart("c")), [1.0] * 3)):
        with pytest.raises(UsageError, match="leave some of an epoch to manifests without a share"):
            epoch_repeats(parts, durations_s)
    with pytest.raises(UsageError, match=r"a: share 0\.5: it has no usable example"):
        epoch_repeats((both[0], ManifestPart("c")), [0.0, 1.0])
