"""Channels become a dialogue in order, and no word is lost."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from fastscribe.results.formats.paragraphs import to_txt
from fastscribe.speakers.dialogues import merge, without_words
from fastscribe.text.transcript import segments_of
from fastscribe.types import AudioInfo, Gap, Token, Transcript, Word

AUDIO = AudioInfo("call.wav", "call.wav", 8000, 2, 8000 * 60, channel=1)
NAMES = ("agent", "customer", "clerk")


def spoken(*phrases: tuple[float, str]) -> Transcript:
    """Return a channel: phrases with their begin; a word takes 0.5 s, and each has a token."""
    found = [
        Word(text, begin_s + 0.5 * at, begin_s + 0.5 * at + 0.4, 0.5)
        for begin_s, phrase in phrases
        for at, text in enumerate(phrase.split())
    ]
    tokens = tuple(Token(1, word.text, word.start_s, word.end_s, 0.5) for word in found)
    return Transcript(AUDIO, " ".join(word.text for word in found), tuple(segments_of(found)), tokens)


def dialogue(*channels: Transcript) -> list[str]:
    merged = merge(channels, NAMES[: len(channels)])
    return to_txt(merged).rstrip().split("\n\n")


def test_a_segment_is_cut_where_somebody_answers_in_its_pause() -> None:
    """The agent's text has no marks, so all of it is one segment."""
    merged = merge([spoken((0, "your name is"), (4, "and you live in")), spoken((2, "Smith"))], NAMES[:2])
    assert [(one.speaker, one.text, one.start_s) for one in merged.segments] == [
        ("agent", "your name is", 0.0),
        ("customer", "Smith", 2.0),
        ("agent", "and you live in", 4.0),
    ]
    assert merged.text == "your name is Smith and you live in"
    assert dialogue(spoken((0, "your name is"), (4, "and you live in")), spoken((9, "Smith"))) == [
        "agent: your name is",
        "agent: and you live in",
        "customer: Smith",
    ]


def test_an_interruption_cuts_a_phrase_once_and_overlaps_stay() -> None:
    agent = spoken((0, "I will now read the terms of the contract to you"))
    customer = spoken((2.1, "no please stop"))
    assert dialogue(agent, customer) == [
        "agent: I will now read the",
        "customer: no please stop",
        "agent: terms of the contract to you",
    ]


def test_who_begins_at_the_edge_of_a_phrase_does_not_cut_it() -> None:
    agent = spoken((0, "I will now read the terms"))
    assert dialogue(agent, spoken((2.5, "okay then"))) == ["agent: I will now read the terms", "customer: okay then"]
    assert dialogue(agent, spoken((0.3, "so what"))) == ["agent: I will now read the terms", "customer: so what"]


def test_a_new_sentence_of_who_speaks_already_cuts_nothing() -> None:
    agent = spoken((0, "We are closed. Call us on Monday."))
    customer = spoken((1.0, "but I need it today"))
    assert dialogue(agent, customer) == [
        "agent: We are closed.",
        "customer: but I need it today",
        "agent: Call us on Monday.",
    ]


def test_everything_names_its_speaker() -> None:
    customer = spoken((1, "Hi!"))
    customer = Transcript(AUDIO, customer.text, customer.segments, customer.tokens, (Gap(5.0, 6.0),), language="de-DE")
    merged = merge([spoken((0, "Hello."), (2, "Good morning.")), customer], NAMES[:2])
    assert merged.speakers == ("agent", "customer") and merged.audio.channel is None and merged.language is None
    assert [word.speaker for word in merged.words] == ["agent", "customer", "agent", "agent"]
    assert [(token.piece, token.speaker) for token in merged.tokens][:2] == [("Hello.", "agent"), ("Hi!", "customer")]
    assert merged.gaps == (Gap(5.0, 6.0, "customer"),)


def test_words_without_spaces_are_joined_without() -> None:
    assert merge([spoken((0, "你好。")), spoken((1, "再见。"))], NAMES[:2]).text == "你好。再见。"


phrases = st.lists(
    st.tuples(st.floats(0, 30), st.lists(st.sampled_from(["a", "b.", "c"]), min_size=1, max_size=8)), max_size=6
)


@example([[(14.0, ["a", "a", "a", "b."]), (14.0, ["b."])], [(15.0, ["a"])]])
@given(st.lists(phrases, min_size=1, max_size=3))
def test_no_word_is_lost_and_parts_are_in_order(drawn: list[list[tuple[float, list[str]]]]) -> None:
    channels = [spoken(*((at, " ".join(words)) for at, words in sorted(own))) for own in drawn]
    merged = merge(channels, NAMES[: len(channels)])
    for name, channel in zip(NAMES, channels, strict=False):
        own = [word for word in merged.words if word.speaker == name]
        assert [(word.text, word.start_s, word.end_s) for word in own] == [
            (word.text, word.start_s, word.end_s) for word in channel.words
        ]
    assert sorted(token[:5] for token in merged.tokens) == sorted(t[:5] for one in channels for t in one.tokens)
    assert all(one.words and one.text == " ".join(word.text for word in one.words) for one in merged.segments)
    if all(
        left[0] + 0.5 * len(left[1]) <= right[0]
        for own in drawn
        for left, right in zip(sorted(own), sorted(own)[1:], strict=False)
    ):
        starts = [one.start_s for one in merged.segments]
        assert starts == sorted(starts)


def test_words_are_removed_with_their_tokens() -> None:
    found = without_words(spoken((0, "Yes. It is late."), (5, "Well.")), {0, 2})
    assert [segment.text for segment in found.segments] == ["It late.", "Well."]
    assert (found.text, [token.piece for token in found.tokens]) == ("It late. Well.", ["It", "late.", "Well."])
    assert found.segments[0].start_s == 0.5 and found.segments[0].confidence == 0.5
    assert without_words(spoken((0, "Yes.")), {0}).segments == ()
