"""Paragraphs to read: where they end, that no word is lost, and Markdown that nothing in a transcript can break."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fastscribe._system.text_layout import clean_text
from fastscribe.alignment.spoken import without_markup, without_names
from fastscribe.config import OutputStyle
from fastscribe.results.formats.paragraphs import to_md, to_txt
from fastscribe.results.formats.writers import to_jsonl
from fastscribe.results.stored import to_result
from fastscribe.results.stream import stream_text
from fastscribe.types import AudioInfo, Segment, Transcript, Word

AUDIO = AudioInfo("in/talk.mp3", "in/talk.mp3", 16_000, 1, 16_000 * 600)
PAUSES = st.sampled_from([0.0, 0.1, 0.4, 0.9, 1.499, 1.5, 4.0])


def said(*spoken: tuple[str, float], audio: AudioInfo = AUDIO, speaker: str | None = None) -> list[Word]:
    """Return words of 0.1 s; each text is followed by a pause."""
    words, at_s = list[Word](), 0.0
    for text, pause_s in spoken:
        for word in text.split(" "):
            words.append(Word(word, at_s, at_s + 0.1, 0.9, speaker=speaker))
            at_s += 0.1
        at_s += pause_s
    return words


def transcript(words: Sequence[Word], text: str | None = None, audio: AudioInfo = AUDIO) -> Transcript:
    whole = " ".join(word.text for word in words)
    return Transcript(audio, whole if text is None else text, (Segment(whole, 0.0, 9.0, 0.9, tuple(words)),), ())


def sizes(text: str) -> list[int]:
    return [len(one.split()) for one in text.split("\n\n")]


def sentence(num_words: int) -> str:
    return "A" + " a" * (num_words - 2) + " b."


def test_a_pause_ends_a_paragraph_between_sentences_only() -> None:
    words = said(("One is.", 1.5), ("Mr.", 2.0), ("Smith is", 3.0), ("two.", 1.499), ("Three is.", 0.0))
    assert to_txt(transcript(words)) == "One is.\n\nMr. Smith is two. Three is.\n"
    assert to_txt(transcript(words, audio=replace(AUDIO, num_samples=16_000 * 30))).count("\n") == 1


def test_a_long_paragraph_ends_at_its_longest_pause_after_three_sentences() -> None:
    pauses = [1.0, 0.1, 0.1, 0.1, 0.6, 0.1, 0.1, 0.1, 0.1]
    assert sizes(to_txt(transcript(said(*((sentence(5), pause_s) for pause_s in pauses))))) == [25, 20]
    assert sizes(to_txt(transcript(said(*[(sentence(50), 0.1)] * 5)))) == [100, 100, 50]
    found = sizes(to_txt(transcript(said(*[(sentence(35), 0.1)] * 7))))
    assert max(found) <= 120 and sum(found) == 245


@pytest.mark.parametrize("stop", ["", "."])
def test_without_full_stops_a_pause_is_where_it_ends(stop: str) -> None:
    """A "sentence" of 300 words among others, or a text without any."""
    parts = [("a b c d e", 0.0)] * 12 + [("a b c d e", 0.5)] + [("a b c d e", 0.0)] * 20 + [("a b c d e", 2.0)]
    words = said(*parts, *parts[:22], (f"a b c d{stop}", 0.1))
    assert sizes(to_txt(transcript(words))) == [65, 105, 114]
    assert sizes(to_txt(transcript(said(("a b", 2.0), ("c d", 0.0))))) == [2, 2]
    assert sizes(to_txt(transcript(said(("a " * 299 + "b", 0.0))))) == [300], "no pause, so no honest place"


def test_scripts_without_spaces() -> None:
    """A "word" is what stands between two pauses, and the text has no spaces to cut at."""
    words = said(*[("今天天气很好我们去公园吧今天天气很好我们去公园吧", 0.4)] * 12, ("好", 2.0), ("再见", 0.0))
    text = "".join(word.text for word in words)
    found = to_txt(transcript(words, text)).rstrip("\n").split("\n\n")
    assert "".join(found) == text and found[-1] == "再见" and len(found) == 3


def test_dialogues_name_the_speaker_of_each_paragraph() -> None:
    turns = [said((sentence(5), 2.0), (sentence(5), 0.0), speaker="Anna"), said(("Yes.", 0.0), speaker="B *x*")]
    segments = tuple(
        Segment(" ".join(w.text for w in own), 0.0, 9.0, 0.9, tuple(own), speaker=own[0].speaker) for own in turns
    )
    call = Transcript(AUDIO, "", segments, (), speakers=("Anna", "B *x*"))
    assert to_txt(call) == f"Anna: {sentence(5)}\n\nAnna: {sentence(5)}\n\nB *x*: Yes.\n"
    assert to_md(call).splitlines()[2::2] == [
        f"[00:00] **Anna**: {sentence(5)}", f"[00:02] **Anna**: {sentence(5)}", r"[00:00] **B \*x\***: Yes."
    ]  # fmt: skip
    words, speakers = without_names(without_markup(to_md(call)))  # as align --text reads it
    assert (words.lstrip(), speakers[2:]) == without_names(to_txt(call))
    lines = stream_text(call, OutputStyle(("txt",)), is_one=False).splitlines()
    assert lines[1] == f"in/talk.mp3\tAnna: {sentence(5)}" and len(lines) == 3


def test_a_table_of_recordings_has_a_line_for_each() -> None:
    words = said(("One.", 2.0), ("Two.", 0.0))
    assert stream_text(transcript(words), OutputStyle(("txt",)), is_one=False) == "in/talk.mp3\tOne. Two.\n"
    assert stream_text(transcript(words), OutputStyle(("txt",)), is_one=True) == "One.\n\nTwo.\n"


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 150).map(sentence) | st.text("AZ.", max_size=9), PAUSES), min_size=1, max_size=30)
)
def test_no_word_is_lost_and_no_paragraph_too_long(spoken: list[tuple[str, float]]) -> None:
    given_words = transcript(said(*spoken))
    found = to_txt(given_words)
    assert clean_text(found) == clean_text(given_words.text)
    assert to_txt(to_result(json.loads(to_jsonl(given_words)))) == found, "made of a stored row"
    for one in found.rstrip("\n").split("\n\n"):
        assert len(one.split()) <= 120 or one.count("b.") <= 1


HOSTILE = "# <script>alert(1)</script> *a* _b_ `c` [x](y) ![z](w) {#id} $m$ ~s~ ^n^ | a &amp; &#35; @cite \\ -- 1. + -"


def test_markdown_has_a_heading_times_and_escaped_text() -> None:
    words = said((HOSTILE, 0.0))
    audio = replace(AUDIO, id="in/a_b *c*.mp3", num_samples=16_000 * 3754)
    written = to_md(transcript(words, audio=audio))
    heading, text = (one.children or [] for one in MarkdownIt().parse(written) if one.type == "inline")
    assert [part.content for part in heading] == ["a_b *c*.mp3 (1:02:34)"]
    assert [part.content for part in text] == [f"[00:00] {HOSTILE}"], "text alone, no markup"
    assert not re.search(r"(?<!\\)(\\\\)*[`*_{}<>&|~$^@]", written.partition("\n")[2]), "of other dialects neither"
    assert without_markup(written).strip() == HOSTILE
    assert to_md(transcript([], "")) == "# talk.mp3 (10:00)\n"
    plain = replace(AUDIO, id="ep03_week2 take #2.wav")
    assert to_md(transcript(said(("#1 of snake_case.", 0.0)), audio=plain)) == (
        "# ep03_week2 take #2.wav (10:00)\n\n[00:00] #1 of snake_case.\n"
    ), "neither is markup there"
    assert to_md(transcript(said(("R&D at A & B.", 0.0)))).endswith("[00:00] R&D at A & B.\n")


@settings(max_examples=300, deadline=None)
@given(st.text("aß1_#*\\ .`(", min_size=1, max_size=12).map(clean_text).filter(str.strip))
def test_markdown_is_read_back(name: str) -> None:
    written = to_md(transcript(said((name, 0.0)), audio=replace(AUDIO, id=name)))
    heading, text = (one.children or [] for one in MarkdownIt().parse(written) if one.type == "inline")
    assert [part.content for part in heading] == [f"{name} (10:00)"] or "\\" in name, (
        "of an id, what follows a \\ is its name"
    )
    assert [part.content for part in text] == [f"[00:00] {name}"]
    assert without_markup(written).strip() == name.strip()


def test_a_text_that_is_not_its_words_stays_whole() -> None:
    words = said(("One.", 2.0), ("Two.", 0.0))
    assert to_txt(transcript(words, "one\ntwo\x00 three")) == "one two three\n"
    assert to_txt(transcript(words, "")) == "\n"
