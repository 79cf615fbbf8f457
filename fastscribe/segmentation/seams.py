"""Which words to keep where two utterances have heard the same. Pure.

Utterances overlap where there was no pause to cut in. Both have heard the overlap, and each is least to be trusted at its
own edge, where a word may be cut in two. So the switch from one to the other is made in the middle: at a word that both
have, else between words. A stretch that was decoded once more gives only words that its neighbours have not given.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from fastscribe.types import Word

_NEIGHBOURS = 12  # words on either side that a word decoded once more is compared with
_UNTIMED = 30  # words at an utterance's end or beginning that may lie in an overlap
_NEAR_S = 0.5  # between the times that two utterances give the same word


def join(left: Sequence[Word], right: Sequence[Word], begin_s: float, end_s: float) -> tuple[int, int]:
    """How many of the left utterance's words to keep and with which of the right one's to go on, for an overlap from
    `begin_s` to `end_s`. Words are in order of time."""
    middle_s = (begin_s + end_s) / 2
    pairs = [
        (abs(a.start_s - middle_s) + abs(a.start_s - b.start_s), i, j)
        for i, a in enumerate(left)
        if a.start_s >= begin_s - _NEAR_S
        for j, b in enumerate(right)
        if b.start_s <= end_s + _NEAR_S and abs(a.start_s - b.start_s) <= _NEAR_S and plain(a) == plain(b)
    ]
    if pairs:
        _, i, j = min(pairs)
        return i, j
    switch_s = _between_words(left, right, begin_s, end_s)
    kept = sum(_centre_s(word) < switch_s for word in left)
    ended_s = max(switch_s, left[kept - 1].end_s) if kept else switch_s
    return kept, sum(_centre_s(word) < ended_s for word in right)


def join_untimed(left: Sequence[Word], right: Sequence[Word]) -> tuple[int, int]:
    """The same where words have no times to go by: the right one goes on after the longest row of words that both have.
    One word in common may be chance, and then all are kept."""
    ending, beginning = [plain(word) for word in left[-_UNTIMED:]], [plain(word) for word in right[:_UNTIMED]]
    both = SequenceMatcher(None, ending, beginning, autojunk=False).find_longest_match()
    if both.size < 2:
        return len(left), 0
    return len(left) - len(ending) + both.a + both.size, both.b + both.size


def unheard(before: Sequence[Word], new: Sequence[Word], after: Sequence[Word]) -> tuple[int, int]:
    """The first and the last but one of `new` words to put between `before` and `after`: not those that one of these has
    too, since models give some words too early or too late."""
    names = [plain(word) for word in new]
    known_before = [plain(word) for word in before[-_NEIGHBOURS:]]
    first = _known_at_front(names, known_before)
    known_after = [plain(word) for word in after[:_NEIGHBOURS]]
    last = len(names) - _known_at_front(names[first:][::-1], known_after[::-1])
    return first, last


def _known_at_front(names: Sequence[str], known: Sequence[str]) -> int:
    """How many of the first names are among the known ones in the same order: a single one only where it is the last."""
    for count in range(len(names), 0, -1):
        places = range(len(known) - count + 1) if count > 1 else range(max(0, len(known) - 1), len(known))
        if any(known[place : place + count] == names[:count] for place in places):
            return count
    return 0


def plain(word: Word) -> str:
    """The word's letters and digits, for comparison; one that has none is compared as it is."""
    return "".join(filter(str.isalnum, word.text)).casefold() or word.text


def _between_words(left: Sequence[Word], right: Sequence[Word], begin_s: float, end_s: float) -> float:
    """The time nearest to the overlap's middle that lies inside no word; where only one side has words, its far end."""
    of_left = [word for word in left if _centre_s(word) >= begin_s]
    of_right = [word for word in right if _centre_s(word) <= end_s]
    if not of_left:
        return begin_s
    if not of_right:
        return end_s
    middle_s = (begin_s + end_s) / 2
    words = [*of_left, *of_right]
    times = [middle_s, *(time_s for word in words for time_s in (word.start_s, word.end_s))]
    free = [t for t in times if begin_s <= t <= end_s and not any(word.start_s < t < word.end_s for word in words)]
    return min(free, key=lambda time_s: abs(time_s - middle_s), default=middle_s)


def _centre_s(word: Word) -> float:
    return (word.start_s + word.end_s) / 2
