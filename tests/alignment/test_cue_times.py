"""Times of cues of which words were not heard."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fastscribe.alignment.cue_times import place_cues
from fastscribe.results.formats.given_cues import GivenCue
from fastscribe.types import Word

LAST_S = 100.0


def placed(
    heard: list[list[float | None]], given: list[tuple[float, float]]
) -> tuple[list[Word], list[tuple[float, float]]]:
    """Place cues whose words begin at some times and last 0.5 s; None was not heard."""
    words = [
        Word(
            "w", *((math.nan, math.nan) if start_s is None else (start_s, start_s + 0.5)), 0.9, missing=start_s is None
        )
        for cue in heard
        for start_s in cue
    ]
    ranges, first = [], 0
    for cue in heard:
        ranges.append(range(first, first := first + len(cue)))
    return place_cues(words, ranges, [GivenCue("srt", *span, "w") for span in given], LAST_S)


def test_cues_have_the_times_of_their_words() -> None:
    words, spans = placed([[None, 5.0, None, 7.0], [8.0, None]], [(1.0, 2.0), (2.0, 3.0)])
    assert spans == [(5.0, 7.5), (8.0, 8.5)]
    assert [(word.start_s, word.end_s) for word in words[:4]] == [(4.6, 5.0), (5.0, 5.5), (5.5, 7.0), (7.0, 7.5)]
    assert words[5].start_s == 8.5 and words[5].end_s == 8.9


def test_an_unheard_cue_moves_with_those_around() -> None:
    """A cue between two others keeps its place between them; before the first and after the last, its distance."""
    heard: list[list[float | None]] = [[], [20.0], [None, None], [30.0], []]
    _, spans = placed(heard, [(8.0, 9.0), (10.0, 10.5), (12.5, 13.5), (15.5, 16.0), (17.0, 19.0)])
    assert spans == [(18.0, 19.0), (20.0, 20.5), (24.3, 26.2), (30.0, 30.5), (31.5, 33.5)]
    words, spans = placed([[99.0], [None]], [(0.0, 0.5), (5.0, 6.0)])
    assert spans[1] == (LAST_S, LAST_S) == (words[1].start_s, words[1].end_s)


@given(st.data())
def test_all_words_and_cues_are_in_the_recording_and_in_order(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
    starts = iter(sorted(data.draw(st.lists(st.integers(0, 99), min_size=24, max_size=24, unique=True))))
    heard = [[float(next(starts)) if data.draw(st.booleans()) else None for _ in range(size)] for size in sizes]
    if all(start_s is None for cue in heard for start_s in cue):
        heard[0] = [0.0]
    begins = sorted(data.draw(st.lists(st.floats(0, 500), min_size=len(sizes), max_size=len(sizes))))
    given = [(begin_s, begin_s + data.draw(st.floats(0, 9))) for begin_s in begins]
    words, spans = placed(heard, given)
    times = [time_s for span in [*spans, *((word.start_s, word.end_s) for word in words)] for time_s in span]
    assert all(0 <= time_s <= LAST_S for time_s in times)
    assert all(begin_s <= end_s for begin_s, end_s in spans) and all(word.start_s <= word.end_s for word in words)
    said = [word.start_s for word in words if not word.missing]
    assert said == sorted(said)
