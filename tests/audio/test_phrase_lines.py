"""Lines of lists of phrases, and the field of a manifest's row: what a line may be."""

from __future__ import annotations

import pytest

from fastscribe.audio.phrase_lines import PhraseError, parse_phrases, phrases_of_row
from fastscribe.types import Phrase


def test_no_lines() -> None:
    assert parse_phrases([], "x") == ()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("\t2", "without a phrase"),
        ("name\tmany", "weight 'many': not a number above 0, up to 10"),
        ("name\t0", "weight '0'"),
        ("name\t-1", "weight '-1'"),
        (
            "name\t10.5",
            "weight '10.5': not a number above 0, up to 10: heavier ones are written where they are not spoken",
        ),
        ("name\tnan", "weight 'nan'"),
        ("name\t", "weight ''"),
        ("...", "no letter and no digit"),
        ("a" * 201, "201 characters; at most 200"),
        ("na\u0007me", "cannot be printed"),
    ],
)
def test_bad_lines_are_named(line: str, problem: str) -> None:
    with pytest.raises(PhraseError, match="list: line 3: ") as raised:
        parse_phrases(["# a comment", "good", line], "list")
    assert problem in str(raised.value)


def test_row_field() -> None:
    assert (
        phrases_of_row("one\ntwo\t2")
        == phrases_of_row(["one", "two\t2"])
        == (
            Phrase("one"),
            Phrase("two", 2.0),
        )
    )
    assert phrases_of_row(None) == ()
    for value in (3, ["one", 2], {"one": 2}):
        with pytest.raises(PhraseError, match="boost is not a string"):
            phrases_of_row(value)
    with pytest.raises(PhraseError, match="boost: line 2: weight"):
        phrases_of_row("one\ntwo\tx")
