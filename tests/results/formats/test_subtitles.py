"""Cues: properties for any words, and examples of good line breaks."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe._system.text_layout import clean_text, is_inseparable, num_columns, split_word
from fastscribe.config import SubtitleStyle
from fastscribe.errors import UsageError
from fastscribe.results.formats.subtitles import DEFAULT_STYLE, GAP_MS, Cue, Span, spoken_spans, to_cues, words_to_cues
from fastscribe.types import AudioInfo, Segment, Transcript, Word

LINE_COLUMNS = DEFAULT_STYLE.max_line_width
HOSTILE = st.sampled_from(
    [
        "",
        " ",
        "-->",
        "--",
        "<b>",
        "</i>",
        "&amp;",
        "{\\an8}",
        "\\N",
        "\x00",
        "\r\n",
        "\u2028",
        "\u200b",
        "\u200f",
        "\udce9",
        "\ufeff",
    ]
)
TEXTS = (
    st.text(
        st.one_of(st.sampled_from("abcdefghij,.?!-'\"<>"), st.sampled_from("日本語。、「」"), st.characters()),
        max_size=12,
    )
    | st.text(st.sampled_from("abc-日"), min_size=30, max_size=200)
    | HOSTILE
)


@st.composite
def styles(draw: st.DrawFn) -> SubtitleStyle:
    max_cue_s = draw(st.sampled_from([7.0, 1.0, 0.001, 3600.0]) | st.floats(0.001, 30))
    return SubtitleStyle(
        draw(st.sampled_from([42, 2, 3]) | st.integers(2, 100)),
        draw(st.integers(1, 5)),
        max_cue_s,
        draw(st.sampled_from([0.0, min(1.0, max_cue_s), max_cue_s]) | st.floats(0, max_cue_s)),
        draw(st.none() | st.sampled_from([20.0, 0.1]) | st.floats(1, 100)),
    )


STYLES = st.just(DEFAULT_STYLE) | styles()


@st.composite
def spoken(draw: st.DrawFn) -> tuple[list[Word], int]:
    """Words in sequence as a decoder gives them, with zero durations, overlaps and times past the audio's end."""
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


def check_always(words: list[Word], audio_ms: int, style: SubtitleStyle) -> None:
    cues = words_to_cues(words, audio_ms, style)
    assert shown(cues) == "".join(letters(word.text) for word in words)
    for cue in cues:
        assert 1 <= len(cue.lines) <= style.max_lines
        assert all(0 < num_columns(line) <= style.max_line_width and line == line.strip() for line in cue.lines)
        assert all(line.isprintable() or clean_text(line) == line for line in cue.lines)
        assert 0 <= cue.start_ms <= cue.end_ms <= audio_ms
        assert cue.end_ms - cue.start_ms <= max(1, round(style.max_cue_s * 1000))
        check_spans(cue)
    for cue, following in itertools.pairwise(cues):
        has_room = following.start_ms - cue.start_ms >= 2 * GAP_MS
        assert cue.end_ms + (GAP_MS if has_room else 0) <= following.start_ms
    if audio_ms >= len(cues):
        assert all(cue.start_ms < cue.end_ms for cue in cues)


def check_spans(cue: Cue) -> None:
    """Assert that spans are all of a cue's text in order, that their times fill the cue and increase."""
    assert "".join(cue.lines[span.line][span.begin : span.end] for span in cue.spans) == "".join(
        line.replace(" ", "") for line in cue.lines
    )
    timed = spoken_spans(cue)
    assert timed or cue.end_ms - cue.start_ms < len(cue.spans)
    if timed:
        edges_ms = [cue.start_ms, *(end_ms for _, end_ms, _ in timed)]
        assert [start_ms for start_ms, _, _ in timed] == edges_ms[:-1]
        assert all(before < after for before, after in itertools.pairwise(edges_ms))
        assert edges_ms[-1] == cue.end_ms
        assert [span for _, _, span in timed] == list(cue.spans)


def check_dense_only_without_room(cues: list[Cue], audio_ms: int, style: SubtitleStyle) -> None:
    """Assert that a cue is shorter than its text needs only where the next one begins."""
    for cue, next_ms in zip(cues, [*(cue.start_ms for cue in cues), audio_ms + GAP_MS][1:], strict=True):
        columns = sum(num_columns(line) for line in cue.lines)
        read_ms = columns * 1000 / style.max_chars_per_second if style.max_chars_per_second else 0
        wanted_ms = min(max(read_ms, style.min_cue_s * 1000), style.max_cue_s * 1000)
        if cue.end_ms - cue.start_ms < wanted_ms - 1:
            assert next_ms - cue.start_ms - GAP_MS <= cue.end_ms - cue.start_ms or next_ms - cue.start_ms < 2 * GAP_MS


@settings(max_examples=200, deadline=None)
@given(spoken(), STYLES)
def test_any_speech_gives_valid_cues(words_and_end: tuple[list[Word], int], style: SubtitleStyle) -> None:
    words, audio_ms = words_and_end
    check_always(words, audio_ms, style)
    check_dense_only_without_room(words_to_cues(words, audio_ms, style), audio_ms, style)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.builds(Word, TEXTS, WILD_TIMES, WILD_TIMES, WILD_TIMES), max_size=12), st.integers(0, 100_000), STYLES
)
def test_invalid_times_give_valid_cues(words: list[Word], audio_ms: int, style: SubtitleStyle) -> None:
    check_always(words, audio_ms, style)
    check_always(words, 0, style)


PLAIN = st.lists(st.text("abcdefgh", min_size=1, max_size=8), min_size=2, max_size=80)


@settings(max_examples=80, deadline=None)
@given(PLAIN, st.integers(30, 80), st.integers(1, 4), st.sampled_from([None, 12.0, 20.0]))
def test_even_speech_has_no_lone_words(texts: list[str], width: int, max_lines: int, speed: float | None) -> None:
    words = evenly_spoken(" ".join(texts))
    style = SubtitleStyle(width, max_lines, max_chars_per_second=speed)
    for cue in words_to_cues(words, round(words[-1].end_s * 1000) + 1000, style):
        assert all(" " in line for line in cue.lines)


@settings(max_examples=60, deadline=None)
@given(PLAIN, st.integers(8, 30), st.integers(2, 4))
def test_line_breaks_are_optimal(texts: list[str], width: int, max_lines: int) -> None:
    """As few lines as possible, without lone words if there is a way, then as even as possible."""
    words = evenly_spoken(" ".join(texts[:10]))
    for cue in words_to_cues(words, 60_000, SubtitleStyle(width, max_lines, 60.0)):
        parts, ways = " ".join(cue.lines).split(), []
        for num_lines in range(1, max_lines + 1):
            for cuts in itertools.combinations(range(1, len(parts)), num_lines - 1):
                lines = [" ".join(parts[a:b]) for a, b in itertools.pairwise([0, *cuts, len(parts)])]
                if all(len(line) <= width for line in lines):
                    ways.append(lines)
            if ways:
                break
        mean = len(" ".join(parts)) / num_lines
        assert len(cue.lines) == num_lines
        assert badness(cue.lines, mean) == pytest.approx(min(badness(lines, mean) for lines in ways), abs=3)


def badness(lines: Sequence[str], mean_columns: float) -> float:
    lone = sum(" " not in line for line in lines) if len(lines) > 1 else 0
    return 100 * lone + sum(abs(len(line) - mean_columns) for line in lines)


def evenly_spoken(text: str, s_per_column: float = 0.07) -> list[Word]:
    """Return the text as evenly spoken words. A token like <2.5> is 2.5 seconds of silence."""
    words, clock_s = [], 0.0
    for part in text.split():
        if part.startswith("<"):
            clock_s += float(part.strip("<>"))
            continue
        end_s = clock_s + len(part) * s_per_column
        words.append(Word(part, clock_s, end_s, 0.9))
        clock_s = end_s + s_per_column
    return words


def lines_of(text: str, s_per_column: float = 0.07, style: SubtitleStyle = DEFAULT_STYLE) -> str:
    """Return the cues of an evenly spoken text, divided by "|"; their lines are divided by "/"."""
    words = evenly_spoken(text, s_per_column)
    cues = words_to_cues(words, round(words[-1].end_s * 1000) + 2000, style)
    return " | ".join(" / ".join(cue.lines) for cue in cues)


STAGE = "if you cannot say which stage your code is, it is probably two."
CLAUSE, REST, AFTER_PAUSE = "aa bb cc dd aa bb cc dd aa bb,", "ee ff", "gg hh ii jj kk"
READING = f"{CLAUSE} {REST} <1.4> {AFTER_PAUSE}", 0.03
ANY_SPEED, SLOW_READERS = (SubtitleStyle(42, 1, 7.0, 0.0, speed) for speed in (None, 15))
EXAMPLES: dict[str, tuple[Any, ...]] = {  # what should come, and the arguments of lines_of()
    "sentences get cues of their own": (
        "The first one is short. | The second is about as long. | And so is the third.",
        "The first one is short. The second is about as long. And so is the third.",
    ),
    "sentences that are too short to read share a cue": (
        "Yes. No. | I do not think so, Peter, not today.",
        "Yes. No. <0.5> I do not think so, Peter, not today.",
    ),
    "a long sentence breaks after a comma first": (
        "When the rain had finally / stopped and the street was dry, | we went out to look for / the dog that ran away.",
        "When the rain had finally stopped and the street was dry, we went out <0.5> to look for the dog that ran away.",
    ),
    "without punctuation a pause is the place": (
        "we walked along the / river for an hour or two | and then somebody asked what / all of this was good for",
        "we walked along the river for an hour or two <0.5> and then somebody asked what all of this was good for",
    ),
    "one line a cue": (
        "if you cannot say which stage | your code is, it is probably two.",
        *(STAGE, 0.07, SubtitleStyle(max_lines=1)),
    ),
    "three lines": (
        "if you cannot say which / stage your code is, / it is probably two.",
        *(STAGE, 0.07, SubtitleStyle(max_line_width=26, max_lines=3)),
    ),
    "lines break at a clause before they are balanced": (
        "I do not know him, / but the man who lives next door does.",
        "I do not know him, but the man who lives next door does.",
    ),
    "at any speed": (f"{CLAUSE} | {REST} {AFTER_PAUSE}", *READING, ANY_SPEED),
    "a pause gives time to read": (f"{CLAUSE} {REST} | {AFTER_PAUSE}", *READING, SLOW_READERS),
    "a title stays with its name": (
        "Well, that is what Dr. Brown / said in 1995, anyway.",
        "Well, that is what Dr. Brown said in 1995, anyway.",
    ),
    "a long silence is never inside a cue": ("we will be | right back", "we will be <2.5> right back"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name: str) -> None:
    expected, *given_text = EXAMPLES[name]
    assert lines_of(*given_text) == expected


def test_limits_of_duration_are_the_users() -> None:
    words = evenly_spoken("word " * 20)
    for max_cue_s in (1.5, 3.0, 7.0):
        cues = words_to_cues(words, 20_000, SubtitleStyle(max_cue_s=max_cue_s))
        assert max(cue.end_ms - cue.start_ms for cue in cues) <= max_cue_s * 1000
    (alone,) = words_to_cues([Word("Yes.", 1.0, 1.2, 0.9)], 10_000, SubtitleStyle(min_cue_s=2.5))
    assert (alone.start_ms, alone.end_ms) == (1000, 3500)


def test_cue_stays_until_read_if_there_is_room() -> None:
    words = [Word("x" * 40, 0.0, 0.5, 0.9), Word("Next.", 5.0, 5.5, 0.9)]
    ends_ms = [words_to_cues(words, 9000, SubtitleStyle(max_chars_per_second=speed))[0].end_ms for speed in (20, 10, 5)]
    assert ends_ms == [2000, 4000, 5000 - GAP_MS]
    assert words_to_cues(words, 9000, SubtitleStyle(max_chars_per_second=None))[0].end_ms == 1000
    wide = words_to_cues([Word("日" * 20, 0.0, 0.5, 0.9)], 9000)
    assert wide[0].end_ms == 2000


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_line_width", [0, 1, -42, 42.5, float("nan"), None]),
        ("max_lines", [0, -1, 1.5, None]),
        ("highlight_words", ["no", 1, None]),
        ("max_cue_s", [0, -7, float("nan"), float("inf"), 0.5]),
        ("min_cue_s", [-1, float("nan"), float("inf"), 7.5]),
        ("max_chars_per_second", [0, -20, float("nan"), float("inf")]),
    ],
)
def test_impossible_style_is_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UsageError, match="max_cue_s" if name == "max_cue_s" else f"^{name} "):
            SubtitleStyle(**{name: value})


def test_a_width_that_is_not_whole_is_said_to_be_that() -> None:
    for width, problem in ((30.5, "not a whole number from 2"), (1, "not a number from 2")):
        with pytest.raises(UsageError, match=f": {problem}$"):
            SubtitleStyle(max_line_width=width)  # type: ignore[arg-type]


def test_spans_locate_each_word() -> None:
    (cue,) = words_to_cues(evenly_spoken("aaaa bbbb cccc"), 9000, SubtitleStyle(max_line_width=10))
    assert cue.lines == ("aaaa", "bbbb cccc")
    assert cue.spans == (Span(0, 0, 4, 0), Span(1, 0, 4, 350), Span(1, 5, 9, 700))
    assert [(start, end) for start, end, _ in spoken_spans(cue)] == [(0, 350), (350, 700), (700, 1000)]


def test_pause_does_not_leave_a_lone_word() -> None:
    text = "we walked along a river for a day or two <0.5> yesterday"
    assert all(" " in line for line in lines_of(text, style=SubtitleStyle(max_lines=1)).split(" | "))


def test_titles_initials_and_decimal_points_end_no_sentence() -> None:
    text = (
        "We have asked Dr. Brown and J. R. Hartley about the 3.5 percent that were missing from the list of Mr. Jones."
    )
    assert all(not line.endswith(("Dr.", "J.", "R.", "Mr.")) for line in re.split(r" [|/] ", lines_of(text)))


@pytest.mark.parametrize(
    ("word", "style", "lines"),
    [
        ("名前はまだ無いけれども見当がつかぬ", SubtitleStyle(24, 2), ("名前はまだ無いけれども", "見当がつかぬ")),
        ("東京特許許可局で会議中です", SubtitleStyle(20, 2), ("東京特許許可局で", "会議中です")),
        ("https://www.example.org/" + "a" * 30, DEFAULT_STYLE, ("https://www.example.org/", "a" * 30)),
    ],
    ids=["where a phrase begins", "not inside kanji near its end", "after a slash"],
)
def test_where_one_word_breaks(word: str, style: SubtitleStyle, lines: tuple[str, ...]) -> None:
    assert words_to_cues([Word(word, 0.0, 6.0, 0.9)], 6000, style)[0].lines == lines


def test_wide_word_is_split_with_its_time() -> None:
    cues = words_to_cues([Word("x" * 100, 0.0, 5.0, 0.9)], 5000)
    assert [num_columns(line) for cue in cues for line in cue.lines] == [42, 42, 16]
    assert (cues[0].start_ms, cues[0].end_ms, cues[-1].start_ms, cues[-1].end_ms) == (0, 2100 - GAP_MS, 2100, 5000)


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
    crowded = [Word(long_line, 0.0, 0.2, 0.9), Word(long_line[1:] + ".", 0.2, 0.4, 0.9), Word("Yes.", 0.9, 5.0, 0.9)]
    first, second = words_to_cues(crowded, 5000)
    assert (first.end_ms, second.start_ms) == (900 - GAP_MS, 900)


def test_arrows_and_control_characters_cannot_break_the_format() -> None:
    cues = words_to_cues(
        [Word("a--->b", 0, 1, 0.9), Word("c\n\nd\x00\u2028e", 1, 2, 0.9), Word(" \t", 2, 3, 0.9)], 3000
    )
    assert [cue.lines for cue in cues] == [("a->b c d e",)]


def test_bidi_controls_are_dropped_and_joiners_kept() -> None:
    turned = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF]
    for char in map(chr, turned):
        assert clean_text(f"ab{char}c {char} d-{char}->") == "abc d->"
        assert words_to_cues([Word(char, 0, 1, 0.9)], 3000) == []
    for char in "\u200b\u200c\u200d\u200e\u200f\u00ad\u061c\u2060":
        assert clean_text(f"a{char}b") == f"a{char}b"


DRAWN_AS_ONE = [
    "👍🏽",
    "👩\u200d👩\u200d👧",
    "⭐\ufe0f",
    "葛\U000e0100",
    "か\u3099",
    "ก\u0e35\u0e49",
    "न\u0940",
    "น\u0e33",
    "b\u0301",
]
DRAWN_AS_ONE += [unicodedata.normalize("NFD", "한"), "🏴\U000e0067\U000e0062\U000e007f", "a", "日", "カ\uff9e"]


@given(st.lists(st.sampled_from(DRAWN_AS_ONE), min_size=1, max_size=60), st.integers(8, 42))
def test_words_are_not_split_inside_graphemes(drawn: list[str], max_columns: int) -> None:
    """Also if a line overflows; the widest grapheme takes 8 columns."""
    units = list(split_word("".join(drawn), max_columns))
    edges = set(itertools.accumulate(map(len, drawn)))
    assert "".join(units) == "".join(drawn)
    assert set(itertools.accumulate(map(len, units))) <= edges
    assert all(num_columns(unit) <= max_columns for unit in units)


def test_wide_characters_are_still_split_one_by_one() -> None:
    for text in ("한국", unicodedata.normalize("NFD", "한국"), "葛\U000e0100日", "か\u3099a", "⭐\ufe0fa", "👍🏽👍"):
        assert len(list(split_word(text, 42))) == 2
    assert list(split_word("ก" * 41 + "\u0e35\u0e49", 42)) == ["ก" * 40, "ก\u0e35\u0e49"]


SYLLABLES = {
    "Thai": "สวัสดีครับ|เราจะ|มาพูดคุยกัน|เกี่ยวกับการรู้จำ|เสียงพูดต่างๆ|และ|โครงการ",
    "Lao": "ສະ|ບາຍດີ|ເຈົ້າຢູ່|ໃສ",
    "Khmer": "ភា|សាខ្មែរ|ជា|ភា|សាកម្ពុ|ជា",
    "Burmese": "မြန်|မာ|စ|ကား|အင်္ဂ|လိပ်|စာ|ဝန့်|တယ်",
}


@pytest.mark.parametrize("name", SYLLABLES)
def test_scripts_without_spaces_break_between_syllables(name: str) -> None:
    """Also where a line is too narrow for what lies between two certain places."""
    marked = SYLLABLES[name]
    text = marked.replace("|", "")
    assert "|".join(split_word(text, 42)) == marked
    for width in range(8, 20):
        cues = words_to_cues([Word(text, 0.0, 60.0, 0.9)], 60_000, SubtitleStyle(max_line_width=width))
        lines = [line for cue in cues for line in cue.lines]
        assert "".join(lines) == text
        parted = [(above[-1], below[0]) for above, below in itertools.pairwise(lines)]
        assert not [pair for pair in parted if unicodedata.category(pair[1])[0] == "M" or is_inseparable(*pair)]


def test_a_space_is_a_better_place_than_a_syllable() -> None:
    words = [Word(text, start, start + 2.0, 0.9) for start, text in enumerate(("เราจะมาพูดคุยกัน", "เกี่ยวกับการรู้จำเสียง"))]
    cues = words_to_cues(words, 6000, SubtitleStyle(max_line_width=30))
    assert [line for cue in cues for line in cue.lines] == [word.text for word in words]


@given(st.text(st.characters(categories=["Mn", "Mc", "Cf"]), min_size=1, max_size=50), st.integers(2, 9))
def test_one_character_wider_than_a_line_is_cut(marks: str, max_columns: int) -> None:
    units = list(split_word("x" + marks, max_columns))
    assert "".join(units) == "x" + marks
    assert all(0 < num_columns(unit) <= max_columns for unit in units)
    assert all(num_columns(unit + after[0]) > max_columns for unit, after in itertools.pairwise(units))


def test_no_line_begins_with_a_variation_selector() -> None:
    cues = words_to_cues([Word("葛\U000e0100" * 30, 0.0, 6.0, 0.9)], 6000)
    lines = [line for cue in cues for line in cue.lines]
    assert len(lines) > 1 and all(line[0] == "葛" for line in lines)


def test_no_words_give_no_cues() -> None:
    assert words_to_cues([], 0) == words_to_cues([], 1000) == words_to_cues([Word("", 0, 1, 0.5)], 1000) == []


@pytest.mark.parametrize("num_words", [1, 2, 3])
def test_words_at_the_very_end_of_the_audio_are_still_shown(num_words: int) -> None:
    audio = AudioInfo("a.wav", "a.wav", sample_rate=16_000, channels=1, num_samples=16_000)
    words = tuple(Word("late", 1.04, 1.12, 0.9) for _ in range(num_words))
    transcript = Transcript(audio, "", (Segment("", 1.04, 1.12, 0.9, words),), ())
    (cue,) = to_cues(transcript)
    assert cue.end_ms == 1000
    assert cue.start_ms < 1000
