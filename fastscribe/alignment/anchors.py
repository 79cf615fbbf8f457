"""Anchors between a known text and what greedy decoding heard, and the windows between them. Pure.

The lattice of an hour has billions of states. Three words in a row that occur once in the text and once in what was heard are
nearly always the same place. Of these matches the longest increasing chain is kept (patience sorting), without those that no
near match supports. A cut lies between the words of a match, in the pause between them, and each window between two cuts is
aligned by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

MATCH_WORDS = 3
_NEAR_WORDS = 20  # a match is supported by another one within this many words ..
_MAX_SHIFT = 4  # .. if both have nearly the same number of words between them


class HeardWord(NamedTuple):
    """A word of greedy decoding. `text` is compared with the text's, letters and digits in lower case."""

    text: str
    first: int  # frame
    end: int  # the frame after its last


class Window(NamedTuple):
    """Frames and the words of the text that they hold, each `first` to `end` - 1."""

    first_frame: int
    end_frame: int
    first_word: int
    end_word: int

    @property
    def num_frames(self) -> int:
        return self.end_frame - self.first_frame

    @property
    def words(self) -> range:
        return range(self.first_word, self.end_word)


Match = tuple[int, int]  # index of a text's word, index of the heard word


def find_matches(words: Sequence[str], heard: Sequence[str]) -> list[Match]:
    """Return the first words of all supported matches, in order; both indices increase.

    Args:
        words: The text's words, normalised.
        heard: The heard words, normalised.
    """
    in_text, in_heard = _unique(words), _unique(heard)
    shared = sorted((place, in_heard[key]) for key, place in in_text.items() if key in in_heard)
    return list(_supported(_longest_chain(shared)))


def have_common_run(words: Sequence[str], heard: Sequence[str]) -> bool:
    """Return True if MATCH_WORDS words in a row are in both, however often."""
    return not set(_runs(words)).isdisjoint(_runs(heard))


def _runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[place : place + MATCH_WORDS]) for place in range(len(words) - MATCH_WORDS + 1)]


def _unique(words: Sequence[str]) -> dict[tuple[str, ...], int]:
    """Return the places of the runs of MATCH_WORDS words that occur once."""
    places: dict[tuple[str, ...], int] = {}
    for place, key in enumerate(_runs(words)):
        places[key] = -1 if key in places else place
    return {key: place for key, place in places.items() if place >= 0}


def _longest_chain(matches: Sequence[Match]) -> list[Match]:
    """Return a longest subsequence whose heard indices increase. The text indices increase already."""
    ends: list[int] = []  # heard index of the best last match of a chain, by length
    last: list[int] = []  # its position
    before: list[int] = []  # for each match the position of the one before it in its chain
    for position, (_, heard) in enumerate(matches):
        length = bisect_left(ends, heard)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(heard)
            last.append(position)
        else:
            ends[length], last[length] = heard, position
    chain = []
    position = last[-1] if last else -1
    while position >= 0:
        chain.append(matches[position])
        position = before[position]
    return chain[::-1]


def _supported(chain: Sequence[Match]) -> Iterator[Match]:
    is_near = [
        right[0] - left[0] <= _NEAR_WORDS and abs((right[0] - left[0]) - (right[1] - left[1])) <= _MAX_SHIFT
        for left, right in pairwise(chain)
    ]
    for position, match in enumerate(chain):
        if (position and is_near[position - 1]) or (position < len(is_near) and is_near[position]):
            yield match


def cuts(matches: Sequence[Match], heard: Sequence[HeardWord]) -> list[tuple[int, int]]:
    """Return (word, frame) of every place to cut at: before that word, at that frame. Both increase."""
    found: dict[int, int] = {}
    for word, place in matches:
        for step in range(1, MATCH_WORDS):
            found[word + step] = (heard[place + step - 1].end + heard[place + step].first) // 2
    return sorted(found.items())


def windows(places: Sequence[tuple[int, int]], num_words: int, num_frames: int, min_frames: int) -> list[Window]:
    """Cut a text and its frames at some of the places.

    Args:
        places: From cuts().
        num_words: Words of the text.
        num_frames: Frames of the recording.
        min_frames: Fewest frames of a window.
    """
    borders = [(0, 0)]
    for word, frame in places:
        if frame - borders[-1][1] >= min_frames and num_frames - frame >= min_frames:
            borders.append((word, frame))
    borders.append((num_words, num_frames))
    return [Window(first, end, word, end_word) for (word, first), (end_word, end) in pairwise(borders)]
