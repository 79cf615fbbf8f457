"""The examples of an epoch: each manifest as often, or with the share, that the recipe says. No sentence is on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.errors import UsageError
from fastscribe.training.corpus import Example, Examples, ManifestPart
from fastscribe.training.example_choice import EpochDraw, epoch_repeats, split_validation


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
    assert (
        EpochDraw(examples, 0).has_fractions
        and not EpochDraw(corpus(parts[0], durations_s=durations_s[:1]), 0).has_fractions
    )
    assert not np.array_equal(EpochDraw(examples, 0)(0), EpochDraw(examples, 0)(1))


def test_shares_that_leave_nothing() -> None:
    both = (ManifestPart("a", share=0.5), ManifestPart("b", share=0.5))
    for parts, durations_s in ((both, [1.0, 1.0]), (both[:1], [1.0]), ((*both, ManifestPart("c")), [1.0] * 3)):
        with pytest.raises(UsageError, match="leave some of an epoch to manifests without a share"):
            epoch_repeats(parts, durations_s)
    with pytest.raises(UsageError, match=r"a: share 0\.5: it has no usable example"):
        epoch_repeats((both[0], ManifestPart("c")), [0.0, 1.0])


def of_texts(texts: list[str]) -> Examples:
    return Examples.of(Example("a.wav", text, 1.0) for text in texts)


sentences = st.lists(
    st.sampled_from(["Go on.", "go on", "Go, on!", "stop", "Stop.", *"abcdefgh"]), min_size=2, max_size=40
)


def sides(texts: list[str], share: float = 0.0, min_count: int = 1, seed: int = 0) -> tuple[list[str], list[str]]:
    training, validation, _ = split_validation(of_texts(texts), seed=seed, share=share, min_count=min_count)
    return [e.text for e in training], [e.text for e in validation]


def same(texts: list[str]) -> set[str]:
    return {"".join(filter(str.isalpha, text.lower())) for text in texts}


@given(sentences, st.integers(1, 20), st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.integers(0, 5))
def test_split_by_sentence(texts, min_count, share, seed) -> None:
    if len(same(texts)) == 1:
        with pytest.raises(UsageError, match=rf"^{len(texts)} recordings of one sentence: too few"):
            sides(texts, share, min_count, seed)
        return
    training, validation = sides(texts, share, min_count, seed)
    assert training and validation and not same(training) & same(validation)
    assert sorted(training + validation) == sorted(texts)
    assert sides(texts[::-1], share, min_count, seed)[1] == validation[::-1]
    instead_of = split_validation(of_texts(texts), seed=seed, share=share, min_count=min_count).instead_of
    if instead_of is None:
        assert len(validation) >= min_count
    else:
        assert instead_of < min_count or instead_of == len(texts)
        assert len(validation) <= max(min_count, round(share * len(texts))) or len(same(validation)) == 1


def test_split_by_count() -> None:
    training, validation = sides([f"{i % 50}" for i in range(500)], min_count=109)
    assert len(validation) == 100 and len(training) == 400


@pytest.mark.parametrize("seed", range(9))
def test_split_skips_frequent_sentence(seed) -> None:
    texts = ["often"] * 95 + ["once", "and", "again", "two", "two"]
    training, validation = sides(texts, min_count=3, seed=seed)
    assert "often" in training and len(validation) == 3
    _, validation = sides(["often"] * 95 + ["two"] * 2, seed=seed)
    assert validation == ["two"] * 2


def test_split_by_share_is_stable() -> None:
    old, new = [f"old {i}" for i in range(2000)], [f"new {i}" for i in range(2000)]
    _, validation = sides(old, share=0.1, seed=3)
    assert 150 < len(validation) < 250
    assert set(sides(new + old, share=0.1, seed=3)[1]) >= set(validation)
    assert set(validation) != set(sides(old, share=0.1, seed=4)[1])
