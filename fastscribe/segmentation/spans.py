"""Find the spans of a recording that have no words, or fewer than its own pace would give, from the times of its words. Pure.

Whether there is speech in them, segmentation/gap_search.py finds out by reading the audio.

The pace is the median time from one word's start to the next. A word accounts for up to SLOWEST times that. A span with some
words is sparse if it lasts MIN_SPAN_S longer than its words account for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from fastscribe.types import Transcript, Word

MIN_SPAN_S = 2.0
SLOWEST = 3.0
# Between words that do not follow each other; mean below which they are doubtful: those of tones have 0.46 to 0.67. Each look
# at the audio takes 7 ms, so it must be rare: none of 400 clips of speech needs one.
_PAUSE_S, _MIN_CONFIDENCE = 0.5, 0.7

Span = tuple[float, float]  # begin and end in seconds


def find_untranscribed_spans(transcript: Transcript) -> list[Span]:
    """Return the spans of at least MIN_SPAN_S before, between and after the words, in order."""
    found, end_s = [], 0.0
    for word in transcript.words:
        if word.start_s - end_s >= MIN_SPAN_S:
            found.append((end_s, word.start_s))
        end_s = max(end_s, word.end_s)
    duration_s = transcript.audio.duration_s
    return [*found, (end_s, duration_s)] if duration_s - end_s >= MIN_SPAN_S else found


def find_sparse_spans(transcript: Transcript) -> list[Span]:
    """Return the spans with some words that are sparse if all of their time is speech, in order. Reads no audio."""
    words, duration_s = transcript.words, transcript.audio.duration_s
    begins, ends = [0.0, *(word.end_s for word in words)], [*(word.start_s for word in words), duration_s]
    return [(begins[first], ends[last]) for first, last in stretches(begins, ends, word_seconds(words)) if last > first]


def find_doubtful_spans(transcript: Transcript) -> list[Span]:
    """Return the spans of words that follow each other and of which the model is not sure on average, in order."""
    groups: list[list[Word]] = []
    for word in transcript.words if transcript.is_timed else ():
        if not groups or word.start_s - groups[-1][-1].end_s >= _PAUSE_S:
            groups.append([])
        groups[-1].append(word)
    return [
        (own[0].start_s, own[-1].end_s)
        for own in groups
        if sum(word.confidence for word in own) < _MIN_CONFIDENCE * len(own)
    ]


def word_seconds(words: Sequence[Word]) -> float:
    """Return the most time that a word accounts for: infinite without a pace."""
    pace_s = median(after.start_s - word.start_s for word, after in pairwise(words)) if words[1:] else 0.0
    return SLOWEST * pace_s if pace_s > 0 else math.inf


def stretches(begins: Sequence[float], ends: Sequence[float], word_s: float) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each stretch between words that lasts MIN_SPAN_S longer than its words account for, in order.

    Place n lies between word n - 1, which ends at begins[n], and word n, which starts at ends[n]. The stretch begins at the
    begin of place `first` and ends at the end of place `last`, with last - first words in it. It is the longest possible one.
    """
    place = 0
    while place < len(begins):
        last, longest, begin = place, 0.0, place
        for place in range(begin, len(begins)):
            words_s = (place - begin) * word_s if place > begin else 0.0
            if place > begin and begins[place] - begins[begin] <= words_s:
                break  # a stretch that begins here is longer
            if ends[place] - begins[begin] - words_s > longest:
                last, longest = place, ends[place] - begins[begin] - words_s
        else:
            place += 1
        if longest >= MIN_SPAN_S:
            yield begin, last
            place = last + 1
