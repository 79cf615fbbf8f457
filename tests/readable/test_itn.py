"""Numbers in figures: each written word lies within the time of what was said, and no word is lost."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.config import Options
from fastscribe.errors import MissingExtra
from fastscribe.readable.edits import TextEdits
from fastscribe.readable.itn import Itn
from fastscribe.readable.words import parts_of
from fastscribe.results.formats.writers import render, to_object
from fastscribe.results.stored import to_result
from fastscribe.types import Word
from tests.readable.test_fillers import transcript_of, words_of

FILLING = ["we", "saw", "Mary,", "on", "the", "(first)", "of", "march.", "and"]
NUMBERS = ["twenty", "three", "Twenty-Three", "hundred", "dollars,", "cents.", "nineteen", "oh", "percent;", "third"]
SPOKEN = st.lists(st.sampled_from([*FILLING, *NUMBERS]), max_size=30)


def check(words: list[Word], written: list[Word]) -> None:
    """Check the alignment of the written words with the spoken ones."""
    assert [word.start_s for word in written] == sorted(word.start_s for word in written)
    left = list(words)
    expression: list[Word] = []  # the spoken words of the current expression
    for word in written:
        if word.original is None:
            assert left.pop(0) == word  # nothing between two expressions is lost or changed
            expression = []
            continue
        said = word.original.split()
        if not (expression and word.start_s < expression[-1].end_s and said == [one.text for one in expression]):
            expression, left = left[: len(said)], left[len(said) :]
        assert [one.text for one in expression] == said
        assert expression[0].start_s <= word.start_s <= word.end_s <= expression[-1].end_s
    assert not left


@dataclass(frozen=True)
class Mapping:
    token_type: str
    input_start: int
    input_end: int
    output_text: str


class AnyGrammar:
    """Replaces any stretches of its input, also parts of words, by up to three words."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def normalize(self, text: str) -> str:
        return f"{text} changed"

    def normalize_with_mapping(self, text: str) -> Any:
        edges = sorted(self._draw(st.lists(st.integers(0, len(text)), max_size=6, unique=True)))
        pairs = zip(edges[::2], edges[1::2], strict=False)
        outputs = st.sampled_from(["$5", "5 June 2024", "03:30 p.m.", "5 %"])
        self.mappings = [Mapping("money", begin, end, self._draw(outputs)) for begin, end in pairs]
        self.output_text = text
        return self


@settings(max_examples=100, deadline=None)
@given(SPOKEN, st.data())
def test_any_grammar_keeps_every_word_and_time(texts: list[str], data: st.DataObject) -> None:
    itn = object.__new__(Itn)
    itn._has_spaces, itn._normalizer = True, AnyGrammar(data.draw)
    words = words_of(" ".join(texts))
    check(words, itn.written(words))


@pytest.fixture(scope="module")
def english() -> Itn:
    pytest.importorskip("wetext", reason="needs the extra itn")
    return Itn("en")


def read(itn: Itn, said: str) -> str:
    words = words_of(said)
    written = itn.written(words)
    check(words, written)
    return " ".join(word.text for word in written)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("It costs twenty three dollars and fifty cents, sir.", "It costs $23.50, sir."),
        ("Twenty-three people came in nineteen eighty four.", "23 people came in 1984."),
        ("She said, Twenty three dollars is too much.", "She said, $23 is too much."),
        ("call me at five five five one two three four", "call me at 5551234"),
        ("It is zero point five percent, not five percent.", "It is 0.5%, not 5%."),
        ("on June third twenty twenty four", "on June 3 2024"),
        ('he said "twenty one" (twenty two)', 'he said "21" (22)'),
        ("wait one second, the first one of two dogs", "wait one second, the first one of two dogs"),
        ("I twenty times and a hundred and twenty days", "I twenty times and a hundred and twenty days"),
        ("Doctor Jones, john at gmail dot com", "Doctor Jones, john at gmail dot com"),
        ("twenty \\ one [twenty]", "20 \\ one [20]"),
        (
            "we have eleven and thirteen years, not two hundred and thirteen",
            "we have eleven and thirteen years, not 213",
        ),
        ("no one says anything", "no one says anything"),
        ("", ""),
    ],
)
def test_english(english: Itn, said: str, written: str) -> None:
    assert read(english, said) == written


@settings(max_examples=30, deadline=None)
@given(SPOKEN)
def test_english_keeps_every_word_and_time(english: Itn, texts: list[str]) -> None:
    read(english, " ".join(texts))


def test_rows_have_the_originals_and_all_formats_the_figures(english: Itn) -> None:
    edited = TextEdits(Options(itn=True), "en").apply(transcript_of("I paid twenty three dollars.", "Thanks, Ann."))
    assert edited.text == "I paid $23. Thanks, Ann."
    row = to_object(edited)
    assert row["words"][2] == {
        "word": "$23.",
        "start": 1.0,
        "end": 2.4,
        "confidence": 0.9,
        "original": "twenty three dollars.",
    }
    assert [("original" in word) for word in row["words"]] == [False, False, True, False, False]
    assert [segment["text"] for segment in row["segments"]] == ["I paid $23.", "Thanks, Ann."]
    assert render(to_result(row), "jsonl") == render(edited, "jsonl")
    assert "$23." in render(edited, "srt") and "$23." in render(edited, "ctm")


@pytest.mark.parametrize(
    ("language", "said", "written"),
    [("zh", "价格是十三点五元。", "价格是¥13.5。"), ("ja", "二十三ドルです。", "$23です。")],
)
def test_scripts_without_spaces(language: str, said: str, written: str) -> None:
    pytest.importorskip("wetext", reason="needs the extra itn")
    [word] = Itn(language).written(words_of(said))
    assert (word.text, word.original) == (written, said)


def test_without_the_extra_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wetext", None)
    with pytest.raises(MissingExtra, match=r"--itn needs wetext.*pip install '.\[itn\]'"):
        TextEdits(Options(itn=True), "en")


def test_marks_are_told_from_words() -> None:
    assert parts_of("“Um,”") == ("“", "Um", ",”")
    assert parts_of("—") == ("", "", "—")
