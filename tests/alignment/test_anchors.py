"""Anchors between a text and what was heard, and the windows that they cut."""

from __future__ import annotations

import itertools
import random

from fastscribe.alignment.anchors import MATCH_WORDS, HeardWord, Window, cuts, find_matches, windows


def heard_at(texts: list[str]) -> list[HeardWord]:
    """Each word lasts 8 frames and is followed by 2."""
    return [HeardWord(text, 10 * place, 10 * place + 8) for place, text in enumerate(texts)]


def test_equal_texts_match_everywhere() -> None:
    words = [f"w{i}" for i in range(50)]
    matches = find_matches(words, words)
    assert matches == [(i, i) for i in range(50 - MATCH_WORDS + 1)]
    assert cuts(matches, heard_at(words)) == [(i, 10 * i - 1) for i in range(1, 50)]


def test_repeated_words_are_no_anchors() -> None:
    assert find_matches(["la"] * 40, ["la"] * 30) == []
    assert find_matches([], ["a", "b", "c"]) == [] and find_matches(["a"], ["a"]) == []


def test_matches_are_true_places() -> None:
    """A text with many equal words, of which every third one was heard wrongly, and with ten words that it does not have."""
    rng = random.Random(4)
    words = [f"w{rng.randrange(60)}" for _ in range(2000)]
    heard, places = [], []
    for place, word in enumerate(words):
        if place == 700:
            heard += ["extra"] * 10
            places += [-1] * 10
        heard.append("wrong" if rng.random() < 0.3 else word)
        places.append(place)
    matches = find_matches(words, heard)
    assert len(matches) > 200
    assert all(places[heard_place] == word for word, heard_place in matches)
    assert all(left[0] < right[0] and left[1] < right[1] for left, right in itertools.pairwise(matches))


def test_a_lone_match_does_not_count() -> None:
    """The three words are at the end of the text, and were heard at the beginning."""
    words = [*(f"a{i}" for i in range(100)), "x", "y", "z"]
    assert find_matches(words, ["x", "y", "z", *(f"b{i}" for i in range(100))]) == []


def test_windows_cover_everything() -> None:
    places = [(i, 10 * i - 1) for i in range(1, 50)]
    found = windows(places, 50, 500, 100)
    assert found[0].first_frame == found[0].first_word == 0 and found[-1].end_frame == 500 and found[-1].end_word == 50
    assert all(
        left.end_frame == right.first_frame and left.end_word == right.first_word
        for left, right in itertools.pairwise(found)
    )
    assert len(found) == 4 and min(window.num_frames for window in found) >= 100
    assert windows([], 3, 7, 100) == [Window(0, 7, 0, 3)]
