"""Voice prints of the speakers of finished transcripts: the run's voice model hears each one where no other speaks.

A print is the mean of the vectors of a speaker's stretches, each of length 1 and weighted by its seconds. The stretches are
utterances like others: the run puts those of many recordings into one batch, and results wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fastscribe.pipeline.stats import LostPrints
from fastscribe.segmentation.loudness import frame_length
from fastscribe.speakers.voice_spans import alone, choose_stretches, example, turns_of_words
from fastscribe.types import AudioInfo, Failure, Float32Array, Hypothesis, Transcript, Utterance, UtteranceKey, Voice


@dataclass
class _Waiting:
    """A transcript whose stretches are not all heard yet."""

    transcript: Transcript
    speakers: dict[UtteranceKey, int] = field(default_factory=dict)  # by stretch: number of its voice
    sums: dict[int, Float32Array] = field(default_factory=dict)  # by number of a voice: weighted vectors so far
    lost: set[int] = field(default_factory=set)  # numbers of voices of which a stretch has failed


class VoicePrints:
    """The recordings of a run whose voices are heard. One thread uses it.

    Args:
        finish: Called with each transcript, with its voices.
        lost: Counts the speakers of whom a stretch cannot be heard. They have no print.
    """

    def __init__(self, finish: Callable[[Transcript], None], lost: LostPrints) -> None:
        self._finish, self._lost = finish, lost
        self._waiting: dict[int, _Waiting] = {}  # by the recording's index
        self._to_hear: list[Utterance] = []
        self._held_s = 0.0  # length of the recordings of `_to_hear`

    def submit(self, transcript: Transcript, audio_of: Mapping[str, AudioInfo]) -> None:
        """Take in a transcript with speakers.

        Args:
            transcript: The transcript.
            audio_of: Where to hear each speaker, by name; "" for all others.
        """
        spans_of = alone(transcript.turns or turns_of_words(transcript))
        waiting, voices = _Waiting(transcript), []
        for number, speaker in enumerate(transcript.speakers):
            spans = spans_of.get(speaker, [])
            speech_s = sum(end_s - begin_s for begin_s, end_s in spans)
            voices.append(Voice(speaker, speech_s, *example(spans)))
            audio = audio_of.get(speaker, audio_of.get("", transcript.audio))
            for span in choose_stretches(spans):
                utterance = _utterance(audio, *span)
                waiting.speakers[utterance.key] = number
                self._to_hear.append(utterance)
        waiting.transcript = replace(transcript, voices=tuple(voices))
        if waiting.speakers:
            self._waiting[transcript.index] = waiting
            self._held_s += transcript.audio.duration_s
        else:
            self._finish(waiting.transcript)

    def take_utterances(self, num_seconds: float = 0.0, max_held_s: float = math.inf) -> list[Utterance]:
        """Return the stretches to hear.

        Args:
            num_seconds: None are returned before they have this length together.
            max_held_s: All are returned if their recordings, which may be held in memory, are longer than this together.
        """
        if sum(one.duration_s for one in self._to_hear) < num_seconds and self._held_s <= max_held_s:
            return []
        to_hear, self._to_hear, self._held_s = self._to_hear, [], 0.0
        return to_hear

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> None:
        """Take in a stretch that was heard; digital silence counts for nothing. One that failed costs the speaker's print."""
        index = utterance.audio.index
        waiting = self._waiting[index]
        number = waiting.speakers.pop(utterance.key)
        if isinstance(outcome, Failure):
            if number not in waiting.lost:
                self._lost.add(outcome.path, waiting.transcript.voices[number].speaker, outcome.message)
            waiting.lost.add(number)
        elif (voice_E := outcome.found) is not None:
            weighted_E = voice_E * np.float32(utterance.duration_s / np.linalg.norm(voice_E))
            waiting.sums[number] = waiting.sums[number] + weighted_E if number in waiting.sums else weighted_E
        if not waiting.speakers:
            del self._waiting[index]
            self._finish(_with_prints(waiting))


def _utterance(audio: AudioInfo, begin_s: float, end_s: float) -> Utterance:
    """Return a stretch as an utterance, which begins at a whole frame as all do."""
    frame_samples = frame_length(audio.sample_rate)
    start = round(begin_s * audio.sample_rate) // frame_samples * frame_samples
    end = min(round(end_s * audio.sample_rate), audio.num_samples)
    return Utterance(audio, start, max(0, end - start), "voices")


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
