"""Fillers go, and nothing else does: marks, capitals and the other words are as if nobody had said "um"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.config import Options
from fastscribe.errors import UsageError
from fastscribe.readable.edits import LANGUAGES_OF_CHANGES, TextEdits
from fastscribe.readable.fillers import FILLER_LANGUAGES, is_filler, without_fillers
from fastscribe.results.formats.writers import OWN_KEYS, render, to_object
from fastscribe.results.rows import ResultRow
from fastscribe.results.stored import to_result
from fastscribe.text.transcript import make_segment
from fastscribe.types import AudioInfo, Transcript, Word

AUDIO = AudioInfo("a.wav", "a.wav", 1000, 1, 60_000)


def words_of(text: str) -> list[Word]:
    return [Word(word, 0.5 * at, 0.5 * at + 0.4, 0.9) for at, word in enumerate(text.split())]


def transcript_of(*sentences: str, language: str | None = None) -> Transcript:
    words = words_of(" ".join(sentences))
    segments = []
    for sentence in sentences:
        own, words = words[: len(sentence.split())], words[len(sentence.split()) :]
        segments.append(make_segment(own))
    return Transcript(AUDIO, " ".join(sentences), tuple(segments), (), language=language)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("So, um, I think", "So, I think"),
        ("Um, we should go.", "We should go."),
        ("Uh, um, erm, we go.", "We go."),
        ("I like it, um.", "I like it."),
        ("I like it, uh?", "I like it?"),
        ("He came. Er, she left.", "He came. She left."),
        ("He came. Hmm. she left.", "He came. she left."),
        ("we um go", "we go"),
        ('"Um, yes," he said.', '"Yes," he said.'),
        ('I said "yes, um."', 'I said "yes."'),
        ('He said "um" loudly.', "He said loudly."),
        ("I am here... um... you know", "I am here... you know"),
        ("UMMM, UHHH WE GO", "WE GO"),
        ("In the ER, um, HM Treasury", "In the ER, HM Treasury"),
        ("um", ""),
        ("Mhm, uh-huh, ham hem humm", "Mhm, uh-huh, ham hem humm"),
    ],
)
def test_english(said: str, read: str) -> None:
    kept, fillers = without_fillers(words_of(said), "en")
    assert " ".join(word.text for word in kept) == read
    assert len(kept) + len(fillers) == len(said.split())


LANGUAGES = [
    ("de", "äh ähm öhm hm ehm", "um er eh ach ja"),
    ("en", "um uh uhm erm er hmm", "err eh oh a i mm"),
    ("es", "ehm eeeh mmm", "este eh em um"),
    ("fr", "euh heu hum hmm", "eu ben bah un"),
    ("it", "ehm uhm mmm", "eh ma e"),
    ("nl", "eh ehm uh uhm euh", "er um en"),
    ("pl", "yyy eee hmm", "i e u"),
    ("pt", "ãh ahm hmm", "um uma é ah"),
    ("ru", "эм ммм эээ", "и а ну"),
    ("sv", "öh öhm ehm", "ö å er"),
]


@pytest.mark.parametrize(("language", "fillers", "words"), LANGUAGES)
def test_each_language_has_its_own(language: str, fillers: str, words: str) -> None:
    assert all(is_filler(text, language) for text in fillers.split())
    assert not any(is_filler(text, language) for text in words.split())


def test_every_language_is_tested() -> None:
    assert sorted(case[0] for case in LANGUAGES) == sorted(FILLER_LANGUAGES)


SAID = st.lists(
    st.sampled_from(["um", "Um,", "uh.", "er,", "Hmm?", "we", "go.", '"We', 'go,"', "(um)", 'um"', "…", "—", "um—"]),
    max_size=20,
)


@given(SAID)
def test_no_word_is_lost_or_moved(texts: list[str]) -> None:
    words = words_of(" ".join(texts))
    kept, fillers = without_fillers(words, "en")
    assert sorted(word.start_s for word in [*kept, *fillers]) == [word.start_s for word in words]
    by_start = {word.start_s: word for word in words}
    for word in kept:
        said = by_start[word.start_s]
        assert (word.start_s, word.end_s, word.confidence) == (said.start_s, said.end_s, said.confidence)
        letters = "".join(filter(str.isalpha, word.text))
        assert letters.lower() == "".join(filter(str.isalpha, said.text)).lower()
    again, none = without_fillers(kept, "en")
    assert (again, none) == (kept, [])


def test_rows_keep_the_fillers_and_a_filler_alone_leaves_no_subtitle() -> None:
    edits = TextEdits(Options(remove_fillers=True), "en")
    edited = edits.apply(transcript_of("Um.", "So, um, we go.", "Uh, hmm."))
    assert (edited.text, len(edited.segments)) == ("So, we go.", 1)
    row = to_object(edited)
    assert [one["word"] for one in row["removed_words"]] == ["Um.", "um,", "Uh,", "hmm."]
    assert row["removed_words"][1]["start"] == 1.0 and "removed_words" in OWN_KEYS
    assert render(edited, "srt").count("-->") == 1 and "um" not in render(edited, "srt").lower()
    assert render(to_result(row), "jsonl") == render(edited, "jsonl")
    silent = edits.apply(transcript_of("Um."))
    assert (silent.text, silent.segments, render(silent, "srt")) == ("", (), "")


def test_a_transcript_without_fillers_is_the_same_object() -> None:
    plain = transcript_of("We  go.")
    assert TextEdits(Options(remove_fillers=True), "en").apply(plain) == plain


def test_transcripts_of_other_languages_stay_and_are_counted() -> None:
    edits = TextEdits(Options(remove_fillers=True))
    for language in ("fi-FI", "fi", None, "de-DE"):
        edits.apply(transcript_of("Um äh acht.", language=language))
    assert edits.lines == [
        "--remove-fillers: 1 transcript has no known language (add --language): left as they were",
        "--remove-fillers: 2 transcripts have the language fi: left as they were",
    ]
    german = edits.apply(transcript_of("Um äh acht.", language="de-DE"))
    assert german.text == "Um acht."


def test_a_change_without_languages_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    options, stored = Options(remove_fillers=True), (transcript_of("We go."), ResultRow("", 1, {}))
    with pytest.raises(UsageError, match="add --language"):
        TextEdits.of_model(options, (), says_language=False)
    with pytest.raises(UsageError, match="add --language"):
        list(TextEdits(options).apply_to_stored([stored]))
    monkeypatch.setitem(LANGUAGES_OF_CHANGES, "--remove-fillers", ())
    TextEdits.of_model(options, (), says_language=False)
    TextEdits(options, "xx")
    assert len(list(TextEdits(options).apply_to_stored([stored]))) == 1
