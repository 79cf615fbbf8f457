"""The gaps of a transcript: speech without words (gaps.py), and speech with few, in spans that spans.py names.

Where a span with few words has MIN_SPAN_S of clear speech more than its words account for, that part is one of the transcript's
gaps: the recording's own pace would give more words, so the model skipped it in part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fastscribe.config import Options
from fastscribe.errors import AudioError
from fastscribe.segmentation import gaps
from fastscribe.segmentation.gaps import Surroundings, listen
from fastscribe.segmentation.spans import MIN_SPAN_S, Span, stretches, word_seconds
from fastscribe.types import Gap, Transcript, Word


def with_gaps(
    transcript: Transcript, wordless: Sequence[Span], few_words: Sequence[Span], options: Options
) -> Transcript:
    """Read the audio of some spans. Return the transcript with the speech in them as its gaps.

    Args:
        transcript: The transcript.
        wordless: Its spans without words.
        few_words: Those with few.
        options: The run's options.
    """
    try:
        surroundings = gaps.Surroundings(transcript, [*wordless, *few_words], options)
        found = gaps.find_clear_speech(transcript, wordless, surroundings)
        parts = find_sparse_speech(transcript, few_words, surroundings)
        found += [Gap(one.start_s, one.end_s) for one in parts if one.is_sparse(transcript.words)]
    except AudioError:  # the file has changed or gone, but its words are still right
        found = [Gap(*span) for span in wordless]
    return replace(transcript, gaps=gaps.merge(found))


class SparseSpeech(NamedTuple):
    """A part of a recording with `speech_s` of clear speech, of which each word accounts for up to `word_s`."""

    start_s: float
    end_s: float
    speech_s: float
    word_s: float

    def is_sparse(self, words: Sequence[Word]) -> bool:
        """Return False if the words account for the speech."""
        inside = sum(self.start_s <= (word.start_s + word.end_s) / 2 <= self.end_s for word in words)
        return self.speech_s - inside * self.word_s >= MIN_SPAN_S


def find_sparse_speech(transcript: Transcript, spans: Sequence[Span], surroundings: Surroundings) -> list[SparseSpeech]:
    """Read the audio of the spans; return their sparse speech in order. Raises AudioError like read()."""
    word_s, words = word_seconds(transcript.words), transcript.words
    starts_s = [word.start_s for word in words]
    found: list[SparseSpeech] = []
    for start_s, end_s in spans:
        here = words[bisect_right(starts_s, start_s) : bisect_left(starts_s, end_s)]
        inside = [word for word in here if word.end_s < end_s]
        found += _in_span(inside, (start_s, end_s), word_s, surroundings)
    return found


def _in_span(words: Sequence[Word], span: Span, word_s: float, surroundings: Surroundings) -> Iterator[SparseSpeech]:
    start_s, end_s = span
    heard = listen(start_s, end_s, surroundings)
    begins, ends = [start_s, *(word.end_s for word in words)], [*(word.start_s for word in words), end_s]
    # Speech before each frame of the span.
    speech_s = np.concatenate(([0.0], np.cumsum(heard.speech))) * surroundings.frame_s
    frames_s = np.arange(len(speech_s)) * surroundings.frame_s
    begins_s, ends_s = (np.interp(np.array(times) - start_s, frames_s, speech_s).tolist() for times in (begins, ends))
    for first, last in stretches(begins_s, ends_s, word_s):
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
