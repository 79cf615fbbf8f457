"""Cues: what must hold for any words, and by example what good breaking looks like."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.plain_text import clean_text, num_columns
from fastscribe.subtitles import GAP_MS, LINE_COLUMNS, MAX_CUE_MS, MIN_CUE_MS, Cue, to_cues, words_to_cues
from fastscribe.types import AudioInfo, Segment, Transcript, Word

TEXTS = st.text(
    st.one_of(st.sampled_from("abcdefghij,.?!-'\"<>"), st.sampled_from("日本語。、「」"), st.characters()), max_size=12
) | st.text(st.sampled_from("abc-日"), min_size=30, max_size=200)


@st.composite
def spoken(draw: st.DrawFn) -> tuple[list[Word], int]:
    """Words that follow each other as a decoder's do, with zero durations, overlaps and times past the audio's end."""
    words, clock_s = [], draw(st.floats(0, 3))
    steps_s = draw(st.sampled_from([st.sampled_from([0.0, 0.08, 0.4]), st.floats(0, 3)]))
    for text in draw(st.lists(TEXTS, max_size=30)):
        words.append(Word(text, clock_s, clock_s + draw(st.sampled_from([-0.1, 0.0, 0.2, 0.5, 9.0])), 0.9))
        clock_s += draw(steps_s)
    return words, round(max(0.0, clock_s + draw(st.sampled_from([-0.5, 0.0, 0.05, 2.0]))) * 1000)


WILD_TIMES = st.one_of(st.floats(), st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e9]))


def letters(text: str) -> str:
    return "".join(clean_text(text).split())


def shown(cues: list[Cue]) -> str:
    return "".join(letters(line) for cue in cues for line in cue.lines)


def check_always(words: list[Word], audio_ms: int, cues: list[Cue]) -> None:
    assert shown(cues) == "".join(letters(word.text) for word in words)
    for cue in cues:
        assert 1 <= len(cue.lines) <= 2
        assert all(0 < num_columns(line) <= LINE_COLUMNS and line == line.strip() for line in cue.lines)
        assert all(line.isprintable() or clean_text(line) == line for line in cue.lines)
        assert 0 <= cue.start_ms <= cue.end_ms <= audio_ms
        assert cue.end_ms - cue.start_ms <= MAX_CUE_MS
    for cue, following in itertools.pairwise(cues):
        assert cue.end_ms <= following.start_ms
    if audio_ms >= len(cues):
        assert all(cue.start_ms < cue.end_ms for cue in cues)


@settings(max_examples=200, deadline=None)
@given(spoken())
def test_any_speech_gives_valid_cues(words_and_end: tuple[list[Word], int]) -> None:
    words, audio_ms = words_and_end
    check_always(words, audio_ms, words_to_cues(words, audio_ms))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.builds(Word, TEXTS, WILD_TIMES, WILD_TIMES, WILD_TIMES), max_size=12), st.integers(0, 100_000))
def test_even_nonsense_times_give_valid_cues(words: list[Word], audio_ms: int) -> None:
    check_always(words, audio_ms, words_to_cues(words, audio_ms))


@settings(max_examples=100, deadline=None)
@given(spoken())
def test_a_short_cue_is_short_because_there_is_no_room(words_and_end: tuple[list[Word], int]) -> None:
    words, audio_ms = words_and_end
    cues = words_to_cues(words, audio_ms)
    for cue, following in itertools.pairwise(cues):
        if cue.end_ms - cue.start_ms < MIN_CUE_MS:
            assert following.start_ms - cue.start_ms < MIN_CUE_MS + GAP_MS
    if cues and cues[-1].end_ms - cues[-1].start_ms < MIN_CUE_MS:
        assert cues[-1].end_ms == audio_ms


def say(text: str, s_per_column: float = 0.07) -> list[Word]:
    """The text spoken evenly. A token like <2.5> is so many seconds of silence."""
    words, clock_s = [], 0.0
    for part in text.split():
        if part.startswith("<"):
            clock_s += float(part.strip("<>"))
            continue
        end_s = clock_s + len(part) * s_per_column
        words.append(Word(part, clock_s, end_s, 0.9))
        clock_s = end_s + s_per_column
    return words


def lines_of(text: str, s_per_column: float = 0.07) -> list[tuple[str, ...]]:
    words = say(text, s_per_column)
    return [cue.lines for cue in words_to_cues(words, round(words[-1].end_s * 1000) + 2000)]


def test_sentences_get_cues_of_their_own() -> None:
    assert lines_of("The first one is short. The second is about as long. And so is the third.") == [
        ("The first one is short.",),
        ("The second is about as long.",),
        ("And so is the third.",),
    ]


def test_sentences_too_short_to_read_share_a_cue() -> None:
    assert lines_of("Yes. No. <0.5> I do not think so, Peter, not today.") == [
        ("Yes. No.",),
        ("I do not think so, Peter, not today.",),
    ]


def test_a_long_sentence_breaks_after_a_comma_before_it_breaks_anywhere_else() -> None:
    text = (
        "When the rain had finally stopped and the street was dry, we went out <0.5> to look for the dog that ran away."
    )
    assert lines_of(text) == [
        ("When the rain had finally", "stopped and the street was dry,"),
        ("we went out to look for", "the dog that ran away."),
    ]


def test_without_punctuation_a_pause_is_the_next_best_place() -> None:
    text = "we walked along the river for an hour or two <0.5> and then somebody asked what all of this was good for"
    assert lines_of(text) == [
        ("we walked along the", "river for an hour or two"),
        ("and then somebody asked what", "all of this was good for"),
    ]


def test_with_nothing_to_go_by_cues_and_lines_are_balanced() -> None:
    cues = lines_of("word " * 20)
    assert cues == [(("word " * 5).strip(),) * 2] * 2


def test_no_word_is_left_alone_on_a_line_or_in_a_cue() -> None:
    one_too_many_for_a_line = "aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii"
    assert lines_of(one_too_many_for_a_line) == [("aaaa bbbb cccc dddd", "eeee ffff gggg hhhh iiii")]
    for num_words in range(18, 40):
        assert all(len(line.split()) > 2 for lines in lines_of("word " * num_words) for line in lines)


def test_a_long_silence_is_never_inside_a_cue() -> None:
    assert lines_of("we will be <2.5> right back") == [("we will be",), ("right back",)]


def test_titles_initials_and_decimal_points_end_no_sentence() -> None:
    text = (
        "We have asked Dr. Brown and J. R. Hartley about the 3.5 percent that were missing from the list of Mr. Jones."
    )
    assert all(not line.endswith(("Dr.", "J.", "R.", "Mr.")) for lines in lines_of(text) for line in lines)


def test_a_word_wider_than_a_line_is_split_and_its_time_shared() -> None:
    cues = words_to_cues([Word("x" * 100, 0.0, 5.0, 0.9)], 5000)
    assert [num_columns(line) for cue in cues for line in cue.lines] == [42, 42, 16]
    assert (cues[0].start_ms, cues[0].end_ms, cues[-1].start_ms, cues[-1].end_ms) == (0, 2100, 2100, 5000)


def test_a_url_is_split_after_a_slash() -> None:
    cues = words_to_cues([Word("https://www.example.org/" + "a" * 30, 0.0, 3.0, 0.9)], 3000)
    assert cues[0].lines == ("https://www.example.org/", "a" * 30)


def test_text_without_spaces_breaks_at_its_own_punctuation() -> None:
    sentence = "これは日本語の音声認識の例です。"
    text = sentence + "とても長い文章なので、いくつかの部分に分けなければなりません。"
    cues = words_to_cues([Word(text, 0.0, 12.0, 0.9)], 12_000)
    assert cues[0].lines == (sentence,)
    assert all(line[0] not in "。、" for cue in cues for line in cue.lines)
    assert all(len(line) <= LINE_COLUMNS // 2 for cue in cues for line in cue.lines)


def test_a_short_cue_is_extended_to_a_second_but_leaves_a_gap() -> None:
    alone = words_to_cues([Word("Yes.", 1.0, 1.2, 0.9)], 10_000)
    assert alone == [Cue(1000, 2000, ("Yes.",))]
    at_the_end = words_to_cues([Word("Yes.", 1.0, 1.2, 0.9)], 1500)
    assert at_the_end == [Cue(1000, 1500, ("Yes.",))]
    long_line = "x" * LINE_COLUMNS
    crowded = [Word(long_line, 0.0, 0.2, 0.9), Word(long_line, 0.2, 0.4, 0.9), Word("Yes.", 0.9, 5.0, 0.9)]
    first, second = words_to_cues(crowded, 5000)
    assert (first.end_ms, second.start_ms) == (900 - GAP_MS, 900)


def test_a_drawn_out_word_is_shown_for_seven_seconds() -> None:
    assert words_to_cues([Word("Goal!", 0.0, 20.0, 0.9)], 20_000) == [Cue(0, 7000, ("Goal!",))]


def test_arrows_and_control_characters_cannot_break_the_format() -> None:
    cues = words_to_cues(
        [Word("a--->b", 0, 1, 0.9), Word("c\n\nd\x00\u2028e", 1, 2, 0.9), Word(" \t", 2, 3, 0.9)], 3000
    )
    assert [cue.lines for cue in cues] == [("a->b c d e",)]


def test_nothing_said_gives_no_cues() -> None:
    assert words_to_cues([], 0) == words_to_cues([], 1000) == words_to_cues([Word("", 0, 1, 0.5)], 1000) == []


@pytest.mark.parametrize("num_words", [1, 2, 3])
def test_words_at_the_very_end_of_the_audio_are_still_shown(num_words: int) -> None:
    audio = AudioInfo("a.wav", "a.wav", sample_rate=16_000, channels=1, num_samples=16_000)
    words = tuple(Word("late", 1.04, 1.12, 0.9) for _ in range(num_words))
    transcript = Transcript(audio, "", (Segment("", 1.04, 1.12, 0.9, words),), ())
    (cue,) = to_cues(transcript)
    assert cue.end_ms == 1000
    assert cue.start_ms < 1000
