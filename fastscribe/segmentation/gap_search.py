"""The gaps of a transcript: speech without words, and speech with few, in long spans that spans.py names.

The search reads the audio of each span, with some context. Only clear speech counts: about as loud as the words nearby, well
above the noise floor, at least MIN_SPEECH_S long in total, varying in loudness, unlike hum and steady noise, and changing as
speech does (speech_likeness.py). With --vad, the detector (segmentation/vad.py) decides instead.

Doubtful words (spans.py) around which nothing sounds like speech are removed: models write words for a dial tone.

Where a span with few words has MIN_SPAN_S of clear speech more than its words account for, that part is one of the transcript's
gaps: the recording's own pace would give more words, so the model skipped it in part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from fastscribe.audio.read import blocks
from fastscribe.config import Options
from fastscribe.errors import AudioError
from fastscribe.segmentation.loudness import (
    decibels,
    fill_short_gaps,
    floor_and_level,
    frame_energy,
    frame_length,
    runs,
)
from fastscribe.segmentation.segment import LEAD_S
from fastscribe.segmentation.spans import MIN_SPAN_S, Span, stretches, word_seconds
from fastscribe.segmentation.speech_likeness import PIECE_S, sounds_like_speech
from fastscribe.segmentation.vad import SPEECH, speech_probability
from fastscribe.types import AudioInfo, BoolArray, Float64Array, Gap, Transcript, Word


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
        surroundings = Surroundings(transcript, [*wordless, *few_words], options)
        found = find_clear_speech(transcript, wordless, surroundings)
        parts = find_sparse_speech(transcript, few_words, surroundings)
        found += [Gap(one.start_s, one.end_s) for one in parts if one.is_sparse(transcript.words)]
    except AudioError:  # the file has changed or gone, but its words are still right
        found = [Gap(*span) for span in wordless]
    return replace(transcript, gaps=merge(found))


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


MIN_SPEECH_S = 1.0
_CONTEXT_S = 10.0  # audio on either side of a span: gives the noise floor and the level of words
_WORD_MARGIN_S = 0.3  # words may begin earlier or end later than their times
_MAX_DIP_S = 0.3  # a longer dip ends a run of speech
_MAX_PAUSE_S = 2.0  # a longer pause separates gaps
_MIN_RUN_S = 0.4
_CHORD_PAUSE_S = 0.75  # runs so near are judged together: one chord that fades is as short as a word
_ABOVE_FLOOR_DB = 10.0
_BELOW_WORDS_DB = 15.0
_MIN_DB = -60.0  # relative to full scale
_MIN_VARIATION_DB = 6.0  # between a run's 10th and 90th percentile

_Place = TypeVar("_Place", int, float)


def find_clear_speech(transcript: Transcript, spans: Sequence[Span], surroundings: Surroundings) -> list[Gap]:
    """Read the audio of the spans; return their clear speech in order. Raises AudioError like read()."""
    return [gap for span in spans for gap in _find_speech(transcript, span, surroundings)]


def merge(found: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return gaps in order. Those that overlap or touch become one."""
    return tuple(Gap(*span) for span in _merged((gap.start_s, gap.end_s) for gap in found))


def _merged(spans: Iterable[tuple[_Place, _Place]]) -> list[tuple[_Place, _Place]]:
    merged: list[tuple[_Place, _Place]] = []
    for first, end in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((first, end))
    return merged


@dataclass(frozen=True)
class Heard:
    """The clear speech of a span of a recording, by short frames."""

    speech: BoolArray
    first: int  # the span's first frame, among the `num_frames` of it and _CONTEXT_S on either side
    num_frames: int
    origin: int  # the recording's frame at which these begin


class Surroundings:
    """The loudness of a recording in and around some spans, and where its words are. Overlapping surroundings are read once.

    Args:
        transcript: That of the recording.
        spans: All spans that will be listened to, or wider ones.
        options: The run's detector.
    """

    def __init__(self, transcript: Transcript, spans: Iterable[Span], options: Options) -> None:
        audio = self._audio = transcript.audio
        self.options = options
        self.frame_samples = frame_length(audio.sample_rate)
        self.frame_s = self.frame_samples / audio.sample_rate
        self._stretches = _merged(self._around(*span) for span in spans)  # frames
        self._read: dict[tuple[int, int], Float64Array] = {}
        self.in_words = np.zeros(self._num_frames, dtype=bool)
        for word in transcript.words:
            first, last = (int(max(0.0, time_s) / self.frame_s) for time_s in (word.start_s, word.end_s))
            self.in_words[first : last + 1] = True

    @property
    def _num_frames(self) -> int:
        return -(-self._audio.num_samples // self.frame_samples)

    def loudness(self, start_s: float, end_s: float) -> tuple[int, Float64Array]:
        """Return a frame of the recording and the loudness from it on, _CONTEXT_S more than the span on either side.

        It is the energy of each frame, or the probability of speech with the detector silero, whose network hears what comes
        before it in the same reading. Raises AudioError like read().
        """
        first, end = self._around(start_s, end_s)
        begin, stop = stretch = self._stretches[bisect_right(self._stretches, first, key=lambda one: one[0]) - 1]
        assert end <= stop, "a span that was not named"
        if stretch not in self._read:
            last = min(self._audio.num_samples, stop * self.frame_samples)
            part = self._audio.part(begin * self.frame_samples, last - begin * self.frame_samples)
            self._read[stretch] = self._measured(part)
        return first, self._read[stretch][first - begin : end - begin]

    def clear_other_sounds(self, speech: BoolArray, first: int) -> None:
        """Set the frames of tones, noise and clicks to False; `speech` begins at the recording's frame `first`."""
        size = self.frame_samples
        for run in runs(fill_short_gaps(speech, round(_CHORD_PAUSE_S / self.frame_s))):
            for begin, end in _pieces(*run, round(PIECE_S / self.frame_s)):
                last = min(self._audio.num_samples, (first + end) * size)
                speech[begin:end] &= _is_speech(self._audio, (first + begin) * size, last)

    def _measured(self, part: AudioInfo) -> Float64Array:
        if self.options.vad != "silero":
            return frame_energy(part, self.frame_samples)

        return speech_probability(part, self.frame_samples)

    def _around(self, start_s: float, end_s: float) -> tuple[int, int]:
        rate = self._audio.sample_rate
        first = max(0, int((start_s - _CONTEXT_S) * rate)) // self.frame_samples
        return first, min(self._num_frames, -(-int((end_s + _CONTEXT_S) * rate) // self.frame_samples))


def _is_speech(audio: AudioInfo, begin: int, end: int) -> bool:
    """Read the samples from `begin` to `end` - 1; return whether they sound like speech. Raises AudioError like read()."""
    part_S = np.concatenate(list(blocks(audio.part(begin, end - begin), audio.sample_rate)))
    return sounds_like_speech(part_S, audio.sample_rate)


def has_speech(audio: AudioInfo, span: Span) -> bool:
    """Read the audio of a span and around it; return whether a piece sounds like speech. Raises AudioError like read()."""
    start_s, end_s = span
    around_s = max(0.0, PIECE_S - (end_s - start_s)) / 2
    begin = round(max(0.0, start_s - around_s) * audio.sample_rate)
    end = min(audio.num_samples, round((end_s + around_s) * audio.sample_rate))
    return any(_is_speech(audio, *piece) for piece in _pieces(begin, end, round(PIECE_S * audio.sample_rate)))


def _pieces(begin: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of pieces of about a size; the last one has half of it more or less."""
    return pairwise([*range(begin, max(begin + 1, end - size // 2), size), end])


def listen(start_s: float, end_s: float, surroundings: Surroundings) -> Heard:
    """Find the clear speech of a span. Raises AudioError like read()."""
    frame_s = surroundings.frame_s
    origin, loudness = surroundings.loudness(start_s, end_s)
    first, last = (round(time_s / frame_s) - origin for time_s in (start_s, end_s))
    if surroundings.options.vad == "silero":
        speech = ~(loudness[first:last] < SPEECH)
    else:
        in_words = surroundings.in_words[origin : origin + len(loudness)]
        speech = speech_frames(loudness, in_words, slice(first, last), frame_s)
        surroundings.clear_other_sounds(speech, origin + first)
    return Heard(speech, first, len(loudness), origin)


def _find_speech(transcript: Transcript, span: Span, surroundings: Surroundings) -> list[Gap]:
    audio, (start_s, end_s) = transcript.audio, span
    from_s = start_s + (_WORD_MARGIN_S if start_s > 0 else 0.0)
    heard = listen(from_s, end_s - (_WORD_MARGIN_S if end_s < audio.duration_s else 0.0), surroundings)
    samples = [
        ((heard.origin + begin) * surroundings.frame_samples, (heard.origin + end) * surroundings.frame_samples)
        for begin, end in _spans(heard.speech, heard.first, heard.num_frames, surroundings.frame_s)
    ]
    return [Gap(begin / audio.sample_rate, min(end, audio.num_samples) / audio.sample_rate) for begin, end in samples]


def speech_frames(energy: Float64Array, in_words: BoolArray, span: slice, frame_s: float) -> BoolArray:
    """Return True for each frame of `span` that lies in a run as loud and as varied as speech.

    The reference level is that of the frames `in_words`; if those last less than MIN_SPEECH_S, the 95th percentile of all.
    """
    floor, level = floor_and_level(energy)
    loudness_db = decibels(energy)
    if in_words.sum() * frame_s >= MIN_SPEECH_S:
        level = float(np.percentile(loudness_db[in_words], 75.0))
    span_db = loudness_db[span]
    loud = span_db >= max(floor + _ABOVE_FLOOR_DB, level - _BELOW_WORDS_DB, _MIN_DB)
    speech = np.zeros(len(span_db), dtype=bool)
    for first, last in runs(fill_short_gaps(loud, round(_MAX_DIP_S / frame_s))):
        quieter, louder = np.percentile(span_db[first:last], (10.0, 90.0))
        if (last - first) * frame_s >= _MIN_RUN_S and louder - quieter >= _MIN_VARIATION_DB:
            speech[first:last] = True
    return speech


def _spans(speech: BoolArray, offset: int, num_frames: int, frame_s: float) -> list[tuple[int, int]]:
    """Return the frame ranges (begin, end) of speech. `offset` is the position of the first frame of `speech`."""
    lead = round(LEAD_S / frame_s)
    return [
        (max(0, offset + first - lead), min(num_frames, offset + last + lead))
        for first, last in runs(fill_short_gaps(speech, round(_MAX_PAUSE_S / frame_s)))
        if speech[first:last].sum() * frame_s >= MIN_SPEECH_S
    ]
