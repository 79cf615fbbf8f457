"""Voice prints of the speakers of finished transcripts: the run's voice model hears each one where no other speaks.

A print is the mean of the vectors of a speaker's stretches, each of length 1 and weighted by its seconds. The stretches are
utterances like others: the run puts those of many recordings into one batch, and results wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from fastscribe.segmentation.loudness import frame_length
from fastscribe.speakers.config import VOICES, VoiceModelConfig
from fastscribe.types import (
    AudioInfo,
    Failure,
    Float32Array,
    Hypothesis,
    Transcript,
    Turn,
    Utterance,
    UtteranceKey,
    Voice,
)


@dataclass
class _Waiting:
    """A transcript whose stretches are not all heard yet."""

    transcript: Transcript
    speakers: dict[UtteranceKey, int] = field(default_factory=dict)  # by stretch: number of its voice
    sums: dict[int, Float32Array] = field(default_factory=dict)  # by number of a voice: weighted vectors so far
    lost: set[int] = field(default_factory=set)  # numbers of voices of which a stretch has failed


class VoicePrints:
    """The recordings of a run whose voices are heard (RecordingsInFlight calls it). One thread uses it.

    Args:
        config: The voice model's.
        batch_size: Options.batch_size.
    """

    purpose = VOICES

    def __init__(self, config: VoiceModelConfig, batch_size: int | None) -> None:
        self._config, self._batch_size = config, batch_size
        self._num_lost = 0  # speakers without a print because a stretch of theirs could not be read or heard
        self._first_lost = ""  # what happened to the first of them
        self._waiting: dict[int, _Waiting] = {}  # by the recording's index
        self._to_hear: list[Utterance] = []
        self._held_s = 0.0  # length of the recordings of `_to_hear`

    def begin(self, transcript: Transcript, audio: AudioInfo) -> Transcript | None:
        """Take in a transcript with speakers, who are heard in `audio`. Return it if there is nothing to hear."""
        channels = zip(transcript.speakers, transcript.speaker_channels, strict=False)
        audio_of = {name: replace(audio, channel=channel) for name, channel in channels}
        spans_of = alone(transcript.turns or turns_of_words(transcript))
        waiting, voices = _Waiting(transcript), []
        for number, speaker in enumerate(transcript.speakers):
            spans = spans_of.get(speaker, [])
            speech_s = sum(end_s - begin_s for begin_s, end_s in spans)
            voices.append(Voice(speaker, speech_s, *example(spans)))
            for span in choose_stretches(spans):
                utterance = _utterance(audio_of.get(speaker, audio), *span)
                waiting.speakers[utterance.key] = number
                self._to_hear.append(utterance)
        waiting.transcript = replace(transcript, voices=tuple(voices))
        if not waiting.speakers:
            return waiting.transcript
        self._waiting[transcript.index] = waiting
        self._held_s += transcript.audio.duration_s
        return None

    def take(self, batch_frames: float = 0.0, max_held_s: float = math.inf) -> list[Utterance]:
        """Return the stretches to hear.

        Args:
            batch_frames: None are returned before they fill a batch of this number of frames; infinite: of the number of rows
                that the options name.
            max_held_s: All are returned if their recordings, which may be held in memory, are longer than this together.
        """
        batch_s = (self._batch_size or 1) * MAX_STRETCH_S
        if math.isfinite(batch_frames):
            batch_s = batch_frames * self._config.frame_s
        if sum(one.duration_s for one in self._to_hear) < batch_s and self._held_s <= max_held_s:
            return []
        to_hear, self._to_hear, self._held_s = self._to_hear, [], 0.0
        return to_hear

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> Transcript | None:
        """Take in the result of a stretch. Return the transcript if none of its stretches is left.

        Digital silence counts for nothing. A stretch that failed costs the speaker's print.
        """
        index = utterance.audio.index
        waiting = self._waiting[index]
        number = waiting.speakers.pop(utterance.key)
        if isinstance(outcome, Failure):
            if number not in waiting.lost:
                speaker = waiting.transcript.voices[number].speaker
                self._num_lost += 1
                self._first_lost = self._first_lost or f"{outcome.path}, {speaker}: {outcome.message}"
            waiting.lost.add(number)
        elif (voice_E := outcome.found) is not None:
            weighted_E = voice_E * np.float32(utterance.duration_s / np.linalg.norm(voice_E))
            waiting.sums[number] = waiting.sums[number] + weighted_E if number in waiting.sums else weighted_E
        if waiting.speakers:
            return None
        del self._waiting[index]
        return _with_prints(waiting)

    def lines(self) -> list[str]:
        """A line for the user about speakers without a print because a stretch of theirs failed, if there are any."""
        if not self._num_lost:
            return []
        speakers = "1 speaker has" if self._num_lost == 1 else f"{self._num_lost:,} speakers have"
        first = self._first_lost if self._num_lost == 1 else f"the first is {self._first_lost}"
        return [f"--voices: {speakers} no print, because a stretch could not be heard: {first}"]


def _utterance(audio: AudioInfo, begin_s: float, end_s: float) -> Utterance:
    """Return a stretch as an utterance, which begins at a whole frame as all do."""
    frame_samples = frame_length(audio.sample_rate)
    start = round(begin_s * audio.sample_rate) // frame_samples * frame_samples
    end = min(round(end_s * audio.sample_rate), audio.num_samples)
    return Utterance(audio, start, max(0, end - start), VOICES)


def _with_prints(waiting: _Waiting) -> Transcript:
    transcript = waiting.transcript
    voices = list(transcript.voices)
    for number, sum_E in waiting.sums.items():
        if number in waiting.lost:
            continue
        length = np.linalg.norm(sum_E)
        if length > 0:
            voices[number] = replace(voices[number], embedding_E=(sum_E / length).astype(np.float32))
    return replace(transcript, voices=tuple(voices))


Span = tuple[float, float]  # begin and end in seconds

MIN_STRETCH_S, MAX_STRETCH_S = 1.0, 10.0  # shorter ones tell little of a voice; longer ones are cut
MIN_SPEECH_S, MAX_SPEECH_S = 3.0, 20.0  # of all stretches; a print of less is not made, more is not heard
_PAUSE_S = 0.6  # words with a longer pause between them are two turns


def turns_of_words(transcript: Transcript) -> list[Turn]:
    """Return a transcript's turns by its words; a longer pause divides them."""
    turns: list[Turn] = []
    for speaker in transcript.speakers:
        begin_s = end_s = -math.inf
        for word in (one for one in transcript.words if one.speaker == speaker):
            if word.start_s - end_s > _PAUSE_S:
                turns += [Turn(begin_s, end_s, speaker)] if end_s > begin_s else []
                begin_s = word.start_s
            end_s = max(end_s, word.end_s)
        turns += [Turn(begin_s, end_s, speaker)] if end_s > begin_s else []
    return turns


def alone(turns: Iterable[Turn]) -> dict[str, list[Span]]:
    """Return where each speaker speaks and no other one does, in order."""
    edges: list[tuple[float, int, str]] = []
    for turn in turns:
        edges += [(turn.start_s, 1, turn.speaker), (turn.end_s, -1, turn.speaker)]
    edges.sort()
    active: dict[str, int] = {}
    found: dict[str, list[Span]] = {}
    for (time_s, change, speaker), (next_s, *_) in pairwise([*edges, (math.inf, 0, "")]):
        active[speaker] = active.get(speaker, 0) + change
        if not active[speaker]:
            del active[speaker]
        if len(active) != 1 or next_s <= time_s:
            continue
        spans = found.setdefault(next(iter(active)), [])
        if spans and spans[-1][1] == time_s:
            spans[-1] = spans[-1][0], next_s
        else:
            spans.append((time_s, next_s))
    return found


def choose_stretches(spans: Sequence[Span]) -> list[Span]:
    """Return the stretches to make a voice print of, the longest first; none if they are too short together."""
    stretches = sorted((part for span in spans for part in _parts(span)), key=lambda part: part[0] - part[1])
    chosen: list[Span] = []
    total_s = 0.0
    for begin_s, end_s in stretches:
        end_s = min(end_s, begin_s + MAX_SPEECH_S - total_s)
        if end_s - begin_s < MIN_STRETCH_S:
            break
        chosen.append((begin_s, end_s))
        total_s += end_s - begin_s
    return chosen if total_s >= MIN_SPEECH_S else []


def _parts(span: Span) -> list[Span]:
    """Cut a span into equal parts that are not too long."""
    begin_s, end_s = span
    number = max(1, math.ceil((end_s - begin_s) / MAX_STRETCH_S))
    step_s = (end_s - begin_s) / number
    return [(begin_s + at * step_s, begin_s + (at + 1) * step_s) for at in range(number)]


def example(spans: Sequence[Span]) -> Span:
    """Return a stretch to listen to: the longest, up to MAX_STRETCH_S."""
    begin_s, end_s = max(spans, key=lambda span: span[1] - span[0], default=(0.0, 0.0))
    return begin_s, min(end_s, begin_s + MAX_STRETCH_S)
