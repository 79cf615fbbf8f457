"""Columns give the rows back that they were made of, also from a file."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.training.corpus import Example, Examples, ManifestPart

PARTS = (ManifestPart("a"), ManifestPart("b", 2.0, non_speech=True))
rows = st.builds(
    lambda path, text, duration_s, offset_s, tokens, part: Example(
        path, text, duration_s, offset_s, tuple(tokens), part, non_speech=part == 1
    ),
    st.sampled_from(["a.wav", "ä/b.flac", "c\udc80.wav"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    st.floats(0, 99),
    st.floats(0, 99),
    st.lists(st.integers(0, 1 << 20), max_size=5),
    st.sampled_from([0, 1]),
)


@given(st.lists(rows, max_size=8), st.data())
def test_rows_come_back(examples: list[Example], data: st.DataObject) -> None:
    columns = Examples.of(examples, PARTS)
    assert list(columns) == examples and len(columns) == len(examples)
    assert columns.num_tokens.tolist() == [len(example.tokens) for example in examples]
    assert columns.non_speech.tolist() == [example.non_speech for example in examples]
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(examples), max_size=len(examples))), bool)
    some, others = columns.take(mask), columns.take(~mask)
    assert list(some) == [example for example, is_in in zip(examples, mask, strict=True) if is_in]
    assert list(some.joined(others)) == [*some, *others]
    assert list(columns[1:3]) == examples[1:3]


def test_numbers_of_small_vocabularies_take_two_bytes() -> None:
    assert Examples.of([Example("a", "b", 1.0, tokens=(65_535,))]).ids.itemsize == 2
    assert Examples.of([Example("a", "b", 1.0, tokens=(65_536,))]).ids.itemsize == 4
    assert Examples.of([Example("a", "b", 1.0, tokens=(65_536,))])[0].tokens == (65_536,)
