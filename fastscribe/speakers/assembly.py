"""A recording's transcript with its speakers: a dialogue of channels, or words given to speakers.

A word is of the speaker whose turns overlap it most. If several overlap it equally, it is of the speaker of the word before, if
this is one of them. A word outside all turns is of the nearest one. Segments end where the speaker changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from fastscribe.audio.failures import to_failure
from fastscribe.pipeline.interfaces import PlainTranscripts, Step
from fastscribe.speakers.config import SpeakerModelConfig
from fastscribe.speakers.dialogues import dialogue
from fastscribe.speakers.recordings import HeldSamples
from fastscribe.speakers.turns import RttmTurns, stitched, turns_of
from fastscribe.text.transcript import DecodedUtterance, make_segment
from fastscribe.types import Alternative, AudioInfo, Failure, Float64Array, Gap, Segment, Token, Transcript, Turn, Word


@dataclass(frozen=True)
class Dialogues(PlainTranscripts):
    """A recording's channels become a dialogue.

    Args:
        names: Of the speakers (Options.speaker_names).
    """

    names: Sequence[str] | None

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        return dialogue(channels, self.names)


@dataclass(frozen=True)
class RttmTranscripts(PlainTranscripts):
    """Words get the speakers of another tool's turns."""

    rttm: RttmTurns

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        [whole] = channels
        return _with_turns(whole, self.rttm.of)


@dataclass(frozen=True)
class ModelTranscripts(PlainTranscripts):
    """Words get the speakers that a speaker model finds.

    Args:
        config: The speaker model's.
        names: Of the speakers (Options.speaker_names).
    """

    config: SpeakerModelConfig
    names: Sequence[str] | None

    def understand(self, parts: Sequence[DecodedUtterance]) -> tuple[Turn, ...]:
        """Return the turns that the model found in a recording's windows. Nobody speaks in digital silence."""
        config, found = self.config, []
        frame_samples = round(config.frame_s * config.features.sample_rate)
        for utterance, hypothesis in sorted(parts, key=lambda part: part[0].start):
            speakers_TN = hypothesis.found
            if speakers_TN is None:
                speakers_TN = np.zeros((config.num_frames(utterance.num_samples), config.num_speakers), np.float32)
            found.append((utterance.start // frame_samples, speakers_TN))
        return turns_of(stitched(found), config.frame_s, parts[0][0].audio.duration_s, self.names)

    def transcript(self, channels: Sequence[Transcript], understood: Any) -> Step:
        [whole] = channels
        if isinstance(whole.audio.file, HeldSamples):
            whole = replace(whole, audio=whole.audio.file.audio)
        return _with_turns(whole, lambda audio: understood)


def _with_turns(whole: Transcript, turns_of: Callable[[AudioInfo], Sequence[Turn]]) -> Transcript | Failure:
    """Return the transcript with the speakers of a recording's turns."""
    try:
        return with_speakers(whole, turns_of(whole.audio))
    except Exception as error:  # one bad file becomes a Failure and the run goes on
        return to_failure(whole.audio, "assemble", error)


_MIN_WORD_S = 0.01  # punctuation may take no time
_EQUAL_S = 1e-6
Timed = TypeVar("Timed", Word, Gap, Alternative)


def with_speakers(transcript: Transcript, turns: Sequence[Turn]) -> Transcript:
    """Return the transcript with a speaker for each word, segment, token, gap and alternative.

    Args:
        transcript: A recording's transcript without speakers.
        turns: Who speaks when, on the recording's clock. Without any, no word gets a speaker.
    """
    if not turns:
        return transcript
    table = _TurnTable(turns)
    words = table.name(transcript.words)
    segments, at = [], 0
    for segment in transcript.segments:
        own = words[at : at + len(segment.words)]
        at += len(segment.words)
        segments += _split(segment, own)
    nbest = tuple(replace(one, words=tuple(table.name(one.words))) for one in table.name(transcript.nbest))
    return replace(
        transcript,
        segments=tuple(segments),
        tokens=tuple(_of_words(transcript.tokens, words)),
        gaps=tuple(table.name(transcript.gaps)),
        nbest=nbest,
        speakers=tuple(table.speakers),
        turns=tuple(turns),
    )


def _split(segment: Segment, words: Sequence[Word]) -> list[Segment]:
    """Return the parts of a segment of one speaker each."""
    parts = [list(group) for _, group in groupby(words, lambda word: word.speaker)]
    if len(parts) == 1:
        return [replace(segment, words=tuple(words), speaker=words[0].speaker)]
    return [replace(make_segment(part), line=segment.line, speaker=part[0].speaker) for part in parts]


def _of_words(tokens: Sequence[Token], words: Sequence[Word]) -> list[Token]:
    """Give each token the speaker of the word in which it begins."""
    if not words:
        return list(tokens)
    starts = [word.start_s for word in words]
    places = [max(0, bisect_right(starts, token.start_s + _EQUAL_S) - 1) for token in tokens]
    return [token._replace(speaker=words[at].speaker) for token, at in zip(tokens, places, strict=True)]


class _TurnTable:
    """Turns by speaker, for questions about many spans at once.

    Attributes:
        speakers: The names, in the order in which they begin to speak.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        ordered = sorted(turns, key=lambda turn: turn.start_s)
        self.speakers = list(dict.fromkeys(turn.speaker for turn in ordered))
        self._spans = [_joined([turn for turn in ordered if turn.speaker == name]) for name in self.speakers]

    def name(self, items: Sequence[Timed]) -> list[Timed]:
        """Return the items with their speakers."""
        named, last = [], -1
        starts = np.array([item.start_s for item in items], np.float64)
        ends = np.maximum([item.end_s for item in items], starts + _MIN_WORD_S)
        overlaps = np.array([_overlap(spans, starts, ends) for spans in self._spans]).T
        distances = np.array([_distance(spans, starts, ends) for spans in self._spans]).T
        for item, overlap, distance in zip(items, overlaps, distances, strict=True):
            most = overlap.max()
            if most <= _EQUAL_S:
                last = int(distance.argmin())
            elif last < 0 or overlap[last] < most - _EQUAL_S:
                last = int(overlap.argmax())
            named.append(_named(item, self.speakers[last]))
        return named


def _named(item: Timed, speaker: str) -> Timed:
    return item._replace(speaker=speaker) if isinstance(item, Gap) else replace(item, speaker=speaker)


def _joined(turns: Sequence[Turn]) -> Float64Array:
    """Return a speaker's turns as spans that do not overlap [number, (start, end)], in order."""
    spans: list[list[float]] = []
    for turn in turns:
        if spans and turn.start_s <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], turn.end_s)
        else:
            spans.append([turn.start_s, turn.end_s])
    return np.array(spans, np.float64)


def _overlap(spans: Float64Array, starts: Float64Array, ends: Float64Array) -> Float64Array:
    """Return the seconds that a speaker speaks within each [start, end]."""
    times = spans.ravel()
    spoken = np.repeat(np.concatenate([[0.0], np.cumsum(spans[:, 1] - spans[:, 0])]), 2)[1:-1]  # until each of them
    seconds: Float64Array = np.interp(ends, times, spoken) - np.interp(starts, times, spoken)
    return seconds


def _distance(spans: Float64Array, starts: Float64Array, ends: Float64Array) -> Float64Array:
    """Return the seconds from each [start, end], which is outside all turns, to the speaker's nearest turn."""
    after = np.searchsorted(spans[:, 0], ends)
    begins, lasts = np.append(spans[:, 0], np.inf), np.append(-np.inf, spans[:, 1])
    seconds: Float64Array = np.minimum(begins[after] - ends, starts - lasts[after])
    return seconds
