"""Search for speech with far fewer words than the recording's own pace would give: parts that the model skipped in part.

The pace is the median time from one word's start to the next. A word accounts for up to SLOWEST times that. Where a part has
MIN_SPAN_S of clear speech more than its words account for, it is one of the transcript's gaps. segmentation/gaps.py finds the
parts without any word, and only those are decoded again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from fastscribe.segmentation.gaps import MIN_SPAN_S, Span, Surroundings, listen
from fastscribe.types import Transcript, Word

SLOWEST = 3.0


class SparseSpeech(NamedTuple):
    """A part of a recording with `speech_s` of clear speech, of which each word accounts for up to `word_s`."""

    start_s: float
    end_s: float
    speech_s: float
    word_s: float

    def still_sparse(self, words: Sequence[Word]) -> bool:
        """Return False if the words, of which some may be new, account for the speech."""
        inside = sum(self.start_s <= (word.start_s + word.end_s) / 2 <= self.end_s for word in words)
        return self.speech_s - inside * self.word_s >= MIN_SPAN_S


def find_sparse_spans(transcript: Transcript) -> list[Span]:
    """Return the spans with some words that are sparse if all of their time is speech, in order. Reads no audio."""
    words, duration_s = transcript.words, transcript.audio.duration_s
    begins, ends = [0.0, *(word.end_s for word in words)], [*(word.start_s for word in words), duration_s]
    return [(begins[first], ends[last]) for first, last in _stretches(begins, ends, _word_s(words)) if last > first]


def find_sparse_speech(transcript: Transcript, spans: Sequence[Span], surroundings: Surroundings) -> list[SparseSpeech]:
    """Read the audio of the spans; return their sparse speech in order. Raises AudioError like read()."""
    word_s, words = _word_s(transcript.words), transcript.words
    starts_s = [word.start_s for word in words]
    found: list[SparseSpeech] = []
    for start_s, end_s in spans:
        here = words[bisect_right(starts_s, start_s) : bisect_left(starts_s, end_s)]
        inside = [word for word in here if word.end_s < end_s]
        found += _in_span(inside, (start_s, end_s), word_s, surroundings)
    return found


def _word_s(words: Sequence[Word]) -> float:
    """Return the most time that a word accounts for: infinite without a pace."""
    pace_s = median(after.start_s - word.start_s for word, after in pairwise(words)) if words[1:] else 0.0
    return SLOWEST * pace_s if pace_s > 0 else math.inf


def _in_span(words: Sequence[Word], span: Span, word_s: float, surroundings: Surroundings) -> Iterator[SparseSpeech]:
    start_s, end_s = span
    heard = listen(start_s, end_s, surroundings)
    begins, ends = [start_s, *(word.end_s for word in words)], [*(word.start_s for word in words), end_s]
    # Speech before each frame of the span.
    speech_s = np.concatenate(([0.0], np.cumsum(heard.speech))) * surroundings.frame_s
    frames_s = np.arange(len(speech_s)) * surroundings.frame_s
    begins_s, ends_s = (np.interp(np.array(times) - start_s, frames_s, speech_s).tolist() for times in (begins, ends))
    for first, last in _stretches(begins_s, ends_s, word_s):
        if last > first:
            inside = np.flatnonzero(
                (begins[first] - start_s <= frames_s[:-1]) & (frames_s[1:] <= ends[last] - start_s) & heard.speech
            )
            yield SparseSpeech(
                start_s + float(frames_s[inside[0]]),
                start_s + float(frames_s[inside[-1] + 1]),
                ends_s[last] - begins_s[first],
                word_s,
            )


def _stretches(begins: Sequence[float], ends: Sequence[float], word_s: float) -> Iterator[tuple[int, int]]:
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
