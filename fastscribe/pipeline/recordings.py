"""The recordings in flight: utterances that are decoded in any order become transcripts, and gap recovery adds to them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import is_held
from fastscribe.config import CHANNELS, Options
from fastscribe.pipeline.dialogues import Dialogues, speakers_of
from fastscribe.pipeline.executor import ModelFacts
from fastscribe.pipeline.gap_recovery import Candidate, GapRecovery
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.voices import VoicePrints
from fastscribe.pipeline.windows import PreparedInput, num_channels, release, work_s
from fastscribe.segmentation.speaker_turns import stitched, turns_of
from fastscribe.speaker_config import SpeakerModelConfig
from fastscribe.text import transcript
from fastscribe.text.nbest import nbest
from fastscribe.text.rttm import RttmTurns
from fastscribe.text.speakers import with_speakers
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Failure, HeldSamples, Hypothesis, Transcript, Turn, Utterance

if TYPE_CHECKING:
    from fastscribe.pipeline.alignment import TextAligner


class RecordingsInFlight:
    """A recording is here from its plan until its result leaves; nothing is kept of it then.

    Args:
        options: The run's options.
        recover_gaps: Decode speech without words again.
        searchers: Threads that search gaps and read what dialogues need.
        tokenizer: The model's tokenizer.
        facts: What the executor says of the model.
        progress: Counts the audio that is done, and times the assembly.
        rttm: Has the turns of each recording's speakers; None: they come from elsewhere.

    Attributes:
        aligner: Makes results of known texts instead of the decoder's; None: the texts are the decoder's.
        finished: Results that wait to leave.
        recovery: Decodes speech without words again.
        dialogues: Merges the channels of a recording.
        voices: Makes voice prints of the speakers.
    """

    def __init__(
        self,
        options: Options,
        recover_gaps: bool,
        searchers: ReplacingThreadPool,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        progress: Progress,
        rttm: RttmTurns | None = None,
    ) -> None:
        self._nbest, self._tokenizer, self._facts, self._progress = options.nbest, tokenizer, facts, progress
        self._waiting: dict[int, tuple[int, list[DecodedUtterance]]] = {}  # by index: utterances expected, decoded
        self._undone: dict[int, _Undone] = {}  # by index: audio of a recording in flight that is not decoded yet
        self._to_align: list[tuple[AudioInfo, Sequence[DecodedUtterance]]] = []  # decoded recordings
        self.aligner: TextAligner | None = None
        self.finished: deque[Transcript | Failure] = deque()
        self._has_channels = options.speakers == CHANNELS
        self._rttm, self._names = rttm, options.speaker_names
        self._turns: dict[int, tuple[Turn, ...]] = {}  # by index: of recordings in flight that a speaker model has seen
        self._audio_of: dict[int, dict[str, AudioInfo]] = {}  # by index: where to hear each speaker of a dialogue
        self._hears_voices = facts.voice_model is not None
        self.voices = VoicePrints(self.finished.append, progress.lost_prints)
        self.dialogues = Dialogues(options, searchers, self._hear)
        self.recovery = GapRecovery(options, recover_gaps, searchers, self._finish)

    def undone_s(self) -> float:
        """Return the seconds of audio in flight that are not decoded yet, of all channels."""
        return sum(undone.work_s for undone in self._undone.values())

    def begin(self, items: Sequence[PreparedInput]) -> list[Utterance]:
        """Take in recordings. Return their utterances, which the run decodes; failures are finished."""
        for item in items:
            if isinstance(item, tuple):
                self._undone[item[0].audio.index] = _Undone(work_s(item), num_channels(item))
        return [utterance for item in items for utterance in self._expect(item)]

    def align(self) -> None:
        """Align the recordings that wait for the aligner of texts, together."""
        if self.aligner is not None and self._to_align:
            recordings, self._to_align = self._to_align, []
            with self._progress.stopwatch.time("align"):
                self.finished += self.aligner.align(recordings)

    def take_finished(self) -> Iterator[Transcript | Failure]:
        """Yield the finished recordings, each once."""
        self.recovery.collect_searched()
        self.dialogues.collect()
        while self.finished:
            yield _released(self.finished.popleft())

    def utterances_to_recover(self) -> list[Utterance]:
        found = self.recovery.take_utterances()
        return [utterance for utterances in found for utterance in self._expect(utterances)]

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> None:
        """Add an utterance to its recording. After one that failed, the recording's others are dropped."""
        index = utterance.audio.index
        if utterance.purpose == "voices":
            self.voices.add(utterance, outcome)
            return
        if index not in self._waiting:
            return
        expected, parts = self._waiting[index]
        if not isinstance(outcome, Failure):
            parts.append((utterance, outcome if self.aligner is None or expected == 1 else self.aligner.held(outcome)))
            if len(parts) < expected:
                self._count_done(index, 0.0 if utterance.purpose == "turns" else utterance.duration_s)
                return
        del self._waiting[index]
        self._count_done(index, math.inf)
        candidates = self.recovery.pop_candidates(index)
        if isinstance(outcome, Failure):  # if the second decoding fails, the words of the first stay
            release(utterance.audio.file if utterance.audio.unread is None else utterance.audio.unread.file)
            self._finish([one.with_gaps(one.transcript) for one in candidates] or outcome)
        elif not candidates:
            self._complete(parts)
        else:
            decoded = _by_channel(parts)
            results = [self._add_words(one, decoded.get(one.transcript.audio.channel, ())) for one in candidates]
            self._finish(_all_or_failure(results))

    def _expect(self, item: PreparedInput) -> tuple[Utterance, ...]:
        """Return the utterances to decode; none if the recording has failed or is silent."""
        if isinstance(item, Failure):
            self.finished.append(item)
            return ()
        silent = [(utterance, Hypothesis()) for utterance in item if not utterance.num_samples]
        if len(silent) == len(item):
            self._count_done(item[0].audio.index, math.inf)
            self._complete(silent)
            return ()
        self._waiting[item[0].audio.index] = len(item), silent
        return tuple(utterance for utterance in item if utterance.num_samples) if silent else item

    def _count_done(self, index: int, duration_s: float) -> None:
        """Count audio as done; gap recovery decodes what is counted already."""
        undone = self._undone.pop(index, _NOTHING)
        self._progress.done_s += min(duration_s, undone.work_s) / undone.num_channels
        if duration_s < undone.work_s:
            self._undone[index] = undone._replace(work_s=undone.work_s - duration_s)

    def _complete(self, parts: Sequence[DecodedUtterance]) -> None:
        """Assemble a recording that was decoded for the first time; gap recovery finishes it, or the aligner of texts."""
        if self.aligner is not None:
            self._to_align.append((parts[0][0].audio, parts))
            return
        if (model := self._facts.speaker_model) is not None:
            spans = [one for one in parts if one[0].purpose == "turns"]
            self._turns[parts[0][0].audio.index] = _turns(spans, model, self._names)
            parts = [one for one in parts if one[0].purpose == "words"]
        channels = list(_by_channel(parts).values())
        results = _all_or_failure([self._assemble(own[0][0].audio, own) for own in channels])
        if isinstance(results, Failure):
            self._finish(results)
        else:
            self.recovery.submit(list(zip(results, channels, strict=True)))

    def _finish(self, channels: Sequence[Transcript] | Failure) -> None:
        """Finish a recording: of several channels, the dialogue."""
        if isinstance(channels, Failure):
            self._turns.pop(channels.index, None)
            self.finished.append(channels)
        elif self._has_channels:
            if self._hears_voices:
                audios = [one.audio for one in channels]
                names = speakers_of([audio.channel or 0 for audio in audios], self._names)
                self._audio_of[channels[0].index] = dict(zip(names, audios, strict=True))
            self.dialogues.submit(channels)
        else:
            for transcript in channels:
                if self._hears_voices:
                    self._audio_of[transcript.index] = {"": transcript.audio}
                self._hear(self._with_speakers(transcript))

    def _hear(self, result: Transcript | Failure) -> None:
        """Finish a result; with a voice model, after the prints of its voices."""
        audio_of = self._audio_of.pop(result.index, {})
        if isinstance(result, Failure) or not self._hears_voices:
            self.finished.append(result)
        else:
            self.voices.submit(result, audio_of)

    def _with_speakers(self, transcript: Transcript) -> Transcript | Failure:
        """Return the transcript with the speakers that are known."""
        file = transcript.audio.file
        if isinstance(file, HeldSamples):
            transcript = replace(transcript, audio=file.audio)
        try:
            turns = self._turns.pop(transcript.index, ()) if self._rttm is None else self._rttm.of(transcript.audio)
            with self._progress.stopwatch.time("assemble"):
                return with_speakers(transcript, turns)
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(transcript.audio, "assemble", error)

    def _add_words(self, candidate: Candidate, decoded: Sequence[DecodedUtterance]) -> Transcript | Failure:
        """Return the transcript of a channel with the words of its utterances that were decoded again."""
        result = self._assemble(candidate.transcript.audio, candidate.parts, decoded)
        return result if isinstance(result, Failure) else candidate.with_gaps(result, decoded)

    def _assemble(
        self, audio: AudioInfo, parts: Sequence[DecodedUtterance], recovered: Sequence[DecodedUtterance] = ()
    ) -> Transcript | Failure:
        no_time, frame_s = self._facts.zero_duration_punctuation, self._facts.token_frame_s
        try:
            with self._progress.stopwatch.time("assemble"):
                result = transcript.assemble(audio, parts, self._tokenizer, frame_s, no_time, recovered)
                if self._nbest is None:
                    return result
                return replace(result, nbest=nbest(parts, self._nbest, self._tokenizer, frame_s, no_time))
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(audio, "assemble", error)


def _turns(
    parts: Sequence[DecodedUtterance], config: SpeakerModelConfig, names: Sequence[str] | None
) -> tuple[Turn, ...]:
    """Return the turns of a recording from what a speaker model found in its windows. Nobody speaks in digital silence."""
    audio, rate = parts[0][0].audio, config.features.sample_rate
    frame_samples = round(config.frame_s * rate)
    found = []
    for utterance, hypothesis in sorted(parts, key=lambda part: part[0].start):
        speakers_TN = hypothesis.speakers_TN
        if speakers_TN is None:
            speakers_TN = np.zeros((config.num_frames(utterance.num_samples), config.num_speakers), np.float32)
        found.append((utterance.start // frame_samples, speakers_TN))
    return turns_of(stitched(found), config.frame_s, audio.duration_s, names)


class _Undone(NamedTuple):
    """Seconds of audio that are not decoded yet, of all channels that are transcribed by themselves, and their number."""

    work_s: float
    num_channels: int


_NOTHING = _Undone(0.0, 1)


def _by_channel(parts: Sequence[DecodedUtterance]) -> dict[int | None, list[DecodedUtterance]]:
    """Return the parts of each channel, in the order of the channels."""
    found: dict[int | None, list[DecodedUtterance]] = {}
    for part in sorted(parts, key=lambda part: part[0].audio.channel or 0):
        found.setdefault(part[0].audio.channel, []).append(part)
    return found


def _all_or_failure(results: Sequence[Transcript | Failure]) -> list[Transcript] | Failure:
    """Return the transcripts, or the first failure."""
    failed = next((result for result in results if isinstance(result, Failure)), None)
    return [result for result in results if isinstance(result, Transcript)] if failed is None else failed


def _released(result: Transcript | Failure) -> Transcript | Failure:
    """Return the result without the caller's data, which would stay in memory with it."""
    if isinstance(result, Failure):
        return result
    release(result.audio.file)
    return replace(result, audio=replace(result.audio, file="")) if is_held(result.audio.file) else result
