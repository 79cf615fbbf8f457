"""Select the words to keep where two utterances overlap. Pure.

Utterances overlap if there was no pause to cut in. Each is least reliable at its own edge, where a word may be cut in two.
So the transcript switches from one to the other in the middle of the overlap: at a word that both have, else between words.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from fastscribe.types import Word

_UNTIMED = 30  # words at an utterance's end or beginning that may lie in an overlap
_NEAR_S = 0.5  # maximum difference between the times that two utterances give the same word


def join(left: Sequence[Word], right: Sequence[Word], begin_s: float, end_s: float) -> tuple[int, int]:
    """Return how many of the left utterance's words to keep, and the index of the right one's first word to keep.

    Words are in order of time. The overlap lasts from `begin_s` to `end_s`.
    """
    middle_s = (begin_s + end_s) / 2
    pairs = [
        (abs(a.start_s - middle_s) + abs(a.start_s - b.start_s), i, j)
        for i, a in enumerate(left)
        if a.start_s >= begin_s - _NEAR_S
        for j, b in enumerate(right)
        if b.start_s <= end_s + _NEAR_S and abs(a.start_s - b.start_s) <= _NEAR_S and normalized(a) == normalized(b)
    ]
    if pairs:
        _, i, j = min(pairs)
        return i, j
    switch_s = _between_words(left, right, begin_s, end_s)
    kept = sum(_centre_s(word) < switch_s for word in left)
    ended_s = max(switch_s, left[kept - 1].end_s) if kept else switch_s
    return kept, sum(_centre_s(word) < ended_s for word in right)


def join_untimed(left: Sequence[Word], right: Sequence[Word]) -> tuple[int, int]:
    """Return the same as join() for words without times: switch after the longest sequence of words that both have.

    A single common word may be chance, so all words are kept.
    """
    ending, beginning = [normalized(word) for word in left[-_UNTIMED:]], [normalized(word) for word in right[:_UNTIMED]]
    both = SequenceMatcher(None, ending, beginning, autojunk=False).find_longest_match()
    if both.size < 2:
        return len(left), 0
    return len(left) - len(ending) + both.a + both.size, both.b + both.size


def normalized(word: Word) -> str:
    """Return the word's letters and digits in lower case, for comparison; the word itself if it has none."""
    return normalized_text(word.text)


def normalized_text(word: str) -> str:
    """Return the same as normalized() for the text of a word."""
    return "".join(filter(str.isalnum, word)).casefold() or word


def _between_words(left: Sequence[Word], right: Sequence[Word], begin_s: float, end_s: float) -> float:
    """Return the time nearest to the overlap's middle that lies inside no word; if only one side has words, its far end."""
    left_words = [word for word in left if _centre_s(word) >= begin_s]
    right_words = [word for word in right if _centre_s(word) <= end_s]
    if not left_words:
        return begin_s
    if not right_words:
        return end_s
    middle_s = (begin_s + end_s) / 2
    words = [*left_words, *right_words]
    times = [middle_s, *(time_s for word in words for time_s in (word.start_s, word.end_s))]
    free = [t for t in times if begin_s <= t <= end_s and not any(word.start_s < t < word.end_s for word in words)]
    return min(free, key=lambda time_s: abs(time_s - middle_s), default=middle_s)


def _centre_s(word: Word) -> float:
    return (word.start_s + word.end_s) / 2
