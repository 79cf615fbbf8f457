"""Words that two channels have because one speaker is heard, softly, in the other's channel as well. Pure.

A model writes such words twice. Both channels then have nearly the same words at the same time, and in one of them they are
softer: than the other channel's words at that time, each relative to the level of the channel's own speech, which are the words
that only it has. A channel without words of its own says nothing about its level; then the other's level or, if neither has
one, the energies themselves decide. Words as loud as usual stay in both channels: two people may say "yes" together.

Leaked speech is often understood as other words. It is as much softer as the words that are the same, so once some of these are
found, all words of that loudness go that the channel has while the other speaks.

The margins are measured in docs/log.md (2026-11-23).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, combinations, groupby
from statistics import median

import numpy as np

from fastscribe.segmentation.loudness import SILENCE
from fastscribe.segmentation.seams import normalized
from fastscribe.types import Float64Array, Gap, Word

MARGIN_DB = 3.0  # of several words; two people hardly ever say the same ones at once
LONE_MARGIN_DB = 6.0  # of a single word, whose level says less
_MIN_STEADY_DB, _MIN_STEADY_WORDS = 9.0, 3  # of leaked words, to find others by their loudness
_NEAR_S = 0.3  # the same word begins in both channels within this time
_MAX_BETWEEN = 2  # words between two that both channels have
_MAX_PAUSE_S = 1.0
_SIMILAR = 0.5  # share of equal letters of a word before or after words that both channels have
_WORD_MARGIN_S = 0.1  # models time some words too late or too early
_MIN_SPOKEN = 0.8  # share of a word's time in which the other speaks
_MIN_OWN_S = 0.5  # of speech, to know its level

Span = tuple[float, float]  # begin and end in seconds


@dataclass(frozen=True)
class SharedWords:
    """Words that two channels have at the same time.

    Attributes:
        channels: Positions of the two channels.
        pairs: Numbers of the words that are the same, or similar, in both.
        between: For each of the two, the numbers of words between those of `pairs`, which the other does not have.
    """

    channels: tuple[int, int]
    pairs: tuple[tuple[int, int], ...]
    between: tuple[tuple[int, ...], tuple[int, ...]]


def find_shared(channels: Sequence[Sequence[Word]]) -> list[SharedWords]:
    """Return the words that two channels have at the same time, from the words of each channel in order."""
    return [
        _shared((first, second), run)
        for first, second in combinations(range(len(channels)), 2)
        for run in _runs(channels[first], channels[second])
    ]


def is_spoken_elsewhere(gap: Gap, others: Sequence[Word]) -> bool:
    """Return True if words of another channel begin in a span without words."""
    return any(gap.start_s <= word.start_s <= gap.end_s for word in others)


class Levels:
    """How loud the channels of a recording are.

    Args:
        energies: Energy of each channel's frames.
        frame_s: Length of a frame in seconds.
        words: Words of each channel.
        shared: From find_shared().
    """

    def __init__(
        self,
        energies: Sequence[Float64Array],
        frame_s: float,
        words: Sequence[Sequence[Word]],
        shared: Iterable[SharedWords],
    ) -> None:
        self._energies, self._frame_s, self._words = energies, frame_s, words
        taken: list[set[int]] = [set() for _ in words]
        for run in shared:
            for channel, numbers in zip(run.channels, zip(*run.pairs, strict=True), strict=True):
                taken[channel].update(numbers)
        self._own_db = [
            self._own_level(channel, [word for number, word in enumerate(own) if number not in taken[channel]])
            for channel, own in enumerate(words)
        ]

    def find_leaked(self, shared: Iterable[SharedWords]) -> list[set[int]]:
        """Return for each channel the numbers of the words that are another speaker's."""
        leaked: list[set[int]] = [set() for _ in self._words]
        softer_db: dict[tuple[int, int], list[float]] = {}  # by channel and the one that is heard in it: of each word
        for run in shared:
            for side, numbers, difference_db in self._softer_parts(run):
                channel, other = run.channels[side], run.channels[1 - side]
                leaked[channel] |= numbers
                softer_db.setdefault((channel, other), []).extend([difference_db] * len(numbers))
        for (channel, other), found in softer_db.items():
            if len(found) >= _MIN_STEADY_WORDS and (usual_db := median(found)) >= _MIN_STEADY_DB:
                leaked[channel] |= self._as_soft(channel, other, usual_db - MARGIN_DB)
        return leaked

    def _softer_parts(self, run: SharedWords) -> Iterator[tuple[int, set[int], float]]:
        """Yield the side on which words leak, 0 or 1, the numbers of these words, and by how much they are softer.

        A run may go on from one speaker's words to the other's, so it is judged in parts: in each, one channel is softer.
        """
        words = [self._words[channel] for channel in run.channels]
        spans = {pair: _span(words[0][pair[0]], words[1][pair[1]]) for pair in run.pairs}
        for _, group in groupby(run.pairs, lambda pair: self._difference_db(run.channels, [spans[pair]]) > 0):
            pairs = list(group)
            difference_db = self._difference_db(run.channels, [spans[pair] for pair in pairs])
            if abs(difference_db) >= (MARGIN_DB if len(pairs) > 1 else LONE_MARGIN_DB):
                side = 0 if difference_db > 0 else 1
                numbers = {pair[side] for pair in pairs} | self._softer_between(run, side, pairs)
                yield side, numbers, abs(difference_db)

    def _as_soft(self, channel: int, other: int, least_db: float) -> set[int]:
        """Return the words that a channel has while the other one speaks, and that are as much softer."""
        spoken = np.zeros(len(self._energies[other]), dtype=bool)
        spoken[self._frames(other, [(word.start_s, word.end_s) for word in self._words[other]])] = True
        found = set()
        for number, word in enumerate(self._words[channel]):
            span = word.start_s, word.end_s
            frames = [frame for frame in self._frames(channel, [span]) if frame < len(spoken)]
            if (
                frames
                and spoken[frames].mean() >= _MIN_SPOKEN
                and self._difference_db((channel, other), [span]) >= least_db
            ):
                found.add(number)
        return found

    def is_leaked(self, channel: int, other: int, span: Span) -> bool:
        """Return True if what a channel has in a span is the other's speech."""
        return self._difference_db((channel, other), [span]) >= LONE_MARGIN_DB

    def _softer_between(self, run: SharedWords, side: int, pairs: Sequence[tuple[int, int]]) -> set[int]:
        """Return those words between the pairs that leak as well; the others are the speaker's own."""
        channel, other = run.channels[side], run.channels[1 - side]
        between = {number for number in run.between[side] if pairs[0][side] < number < pairs[-1][side]}
        words = self._words[channel]
        return {one for one in between if self.is_leaked(channel, other, (words[one].start_s, words[one].end_s))}

    def _difference_db(self, channels: tuple[int, int], spans: Sequence[Span]) -> float:
        """Return by how much the first channel is softer than the second in the spans, in dB; negative: louder."""
        (first_db, first_own_db), (second_db, second_own_db) = (
            (_decibels(self._energies[channel][self._frames(channel, spans)]), self._own_db[channel])
            for channel in channels
        )
        if first_own_db is not None and second_own_db is not None:
            return (second_db - second_own_db) - (first_db - first_own_db)
        if first_own_db is not None and first_own_db - first_db >= LONE_MARGIN_DB:
            return first_own_db - first_db
        if second_own_db is not None and second_own_db - second_db >= LONE_MARGIN_DB:
            return second_db - second_own_db
        return second_db - first_db

    def _own_level(self, channel: int, words: Sequence[Word]) -> float | None:
        """Return the level of words that the channel alone has, in dB; None if they are too few to tell."""
        spans = [(word.start_s, word.end_s) for word in words]
        frames = self._frames(channel, spans)
        return _decibels(self._energies[channel][frames]) if len(frames) * self._frame_s >= _MIN_OWN_S else None

    def _frames(self, channel: int, spans: Iterable[Span]) -> list[int]:
        found: set[int] = set()
        for start_s, end_s in spans:
            first = max(0, int((start_s - _WORD_MARGIN_S) / self._frame_s))
            found.update(
                range(first, min(len(self._energies[channel]), int((end_s + _WORD_MARGIN_S) / self._frame_s) + 1))
            )
        return sorted(found)


def _decibels(energy: Float64Array) -> float:
    return 10.0 * float(np.log10(max(SILENCE, energy.mean() if len(energy) else 0.0)))


def _span(first: Word, second: Word) -> Span:
    return min(first.start_s, second.start_s), max(first.end_s, second.end_s)


def _shared(channels: tuple[int, int], run: Sequence[tuple[int, int]]) -> SharedWords:
    between = tuple(
        tuple(sorted(set(range(run[0][side], run[-1][side])) - {pair[side] for pair in run})) for side in (0, 1)
    )
    return SharedWords(channels, tuple(run), (between[0], between[1]))


def _runs(first: Sequence[Word], second: Sequence[Word]) -> Iterator[list[tuple[int, int]]]:
    """Yield runs of pairs of the same word, with similar words before, between and after them."""
    run: list[tuple[int, int]] = []
    for pair in _same_words(first, second):
        if run and not _continues(first, second, run[-1], pair):
            yield _extended(first, second, run)
            run = []
        run.append(pair)
    if run:
        yield _extended(first, second, run)


def _same_words(first: Sequence[Word], second: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """Yield pairs of the same word at the same time, in order."""
    starts_s = list(accumulate((word.start_s for word in second), max))  # a few may begin before the word before them
    names = [normalized(word) for word in second]
    at = 0
    for number, word in enumerate(first):
        name = normalized(word)
        candidate = max(at, bisect_left(starts_s, word.start_s - _NEAR_S))
        while candidate < len(second) and starts_s[candidate] <= word.start_s + _NEAR_S:
            if names[candidate] == name:
                yield number, candidate
                at = candidate + 1
                break
            candidate += 1


def _continues(first: Sequence[Word], second: Sequence[Word], left: tuple[int, int], right: tuple[int, int]) -> bool:
    num_between = max(right[0] - left[0], right[1] - left[1]) - 1
    pause_s = max(first[right[0]].start_s - first[left[0]].end_s, second[right[1]].start_s - second[left[1]].end_s)
    return num_between <= _MAX_BETWEEN and (num_between > 0 or pause_s <= _MAX_PAUSE_S)


def _extended(first: Sequence[Word], second: Sequence[Word], run: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a run with the similar words before and after it: leaked speech is not always understood."""
    run = list(run)
    while _are_similar(first, second, before := (run[0][0] - 1, run[0][1] - 1)):
        if not _continues(first, second, before, run[0]):
            break
        run.insert(0, before)
    while _are_similar(first, second, after := (run[-1][0] + 1, run[-1][1] + 1)):
        if not _continues(first, second, run[-1], after):
            break
        run.append(after)
    return run


def _are_similar(first: Sequence[Word], second: Sequence[Word], pair: tuple[int, int]) -> bool:
    left, right = pair
    if not (0 <= left < len(first) and 0 <= right < len(second)):
        return False
    near = abs(first[left].start_s - second[right].start_s) <= _NEAR_S
    return near and SequenceMatcher(None, normalized(first[left]), normalized(second[right])).ratio() >= _SIMILAR
